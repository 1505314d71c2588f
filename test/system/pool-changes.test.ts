/** Policies with a pool are changed, overridden and tried at run time: what was used stays used, in all regions. */
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { inMilliseconds } from "../support/milliseconds.ts";
import { startWorld, type World } from "../support/regions.ts";
import { BACKGROUND_MS } from "../support/served.ts";

const POOL = { pool: "redis", deadlineMs: 8_000 };
const RATE = { window: "30d", ...POOL };
const bucket = (limit: number, fields: object = {}) => ({
  algorithm: "token-bucket",
  limit,
  burst: limit,
  ...RATE,
  ...fields,
});
const log = (limit: number) => ({ algorithm: "sliding-log", limit, ...RATE });
const slots = (limit: number) => ({ algorithm: "concurrency", limit, ttl: "10m", ...POOL });
const rule = (limit: number, unit = "requests") => ({
  algorithm: "token-bucket",
  limit,
  burst: limit,
  window: "30d",
  unit,
});
const LOCAL = { onFailure: "local", localShare: 0.25, deadlineMs: 1_000 };
const POLICIES = {
  lowered: bucket(8_000),
  raised: bucket(10),
  again: bucket(400),
  other: bucket(20),
  plans: bucket(20),
  alone: bucket(40, LOCAL),
  slots: slots(6),
  customer: bucket(20, { plans: { pro: { limit: 100, burst: 100 } } }),
  tried: bucket(20),
  "tried-slots": slots(4),
  ruled: { rules: { requests: rule(50), tokens: rule(90, "tokens") }, ...POOL },
};

let world: World;
beforeAll(async () => {
  // As in production the regions have one catalog, and isolates of their own.
  const options = { isOneProcess: true, isolates: 2, backgroundMs: BACKGROUND_MS };
  world = await startWorld(inMilliseconds(POLICIES), ["EU", "NA"], options);
});
afterAll(() => world.stop());

const [EU, NA] = [0, 1];
const BOTH = [EU, NA];
const call = async (region: number, method: string, path: string, body?: unknown) =>
  await (world.regions[region] as World["regions"][number]).client.call(method, path, body);
const limit = async (region: number, policy: string, key: string, fields: object = {}) =>
  (await call(region, "POST", "/v1/limit", { policy, key, ...fields })).body;
const change = async (method: string, path: string, body?: object) => {
  const answer = await call(EU, method, `/v1/policies/${path}`, body);
  expect(answer.status, JSON.stringify(answer.body)).toBeLessThan(300);
};
const refused = async (path: string, body: object) => {
  const { status, body: answer } = await call(EU, "PUT", `/v1/policies/${path}`, body);
  expect(status).toBe(422);
  return (answer["errors"] as { readonly detail: string }[]).map(({ detail }) => detail).join("; ");
};
/** When both regions know what was changed. */
const known = async (policy: string, key: string, capacity: number) =>
  await vi.waitFor(
    async () => {
      for (const region of BOTH)
        expect(await limit(region, policy, key, { cost: 0 })).toMatchObject({ limit: capacity });
    },
    { timeout: 20_000, interval: 100 },
  );
const remaining = async (region: number, policy: string, key: string) =>
  (await limit(region, policy, key, { cost: 0 }))["remaining"];

test("a lower limit holds in all regions: they return what they had reserved under the one before", async () => {
  let used = 0;
  const all = async (rounds: number, callers: number) => {
    for (let round = 0; round < rounds; round += 1) {
      const calls = BOTH.flatMap((region) => Array.from({ length: callers }, () => region));
      const answers = await Promise.all(calls.map((region) => limit(region, "lowered", "busy")));
      used += answers.filter(({ success }) => success === true).length;
    }
  };
  await all(30, 20);
  expect(used).toBe(1_200);
  await change("PUT", "lowered", bucket(1_210));
  // Both isolates know it, by another key. Each region has reserved far more than the 10 that are left of the new limit.
  await known("lowered", "idle", 1_210);
  await all(5, 20);
  expect(used).toBeLessThanOrEqual(1_210);
  await vi.waitFor(
    async () => {
      await all(1, 1);
      expect(used).toBeGreaterThanOrEqual(1_210);
    },
    { timeout: 20_000, interval: 100 },
  );
  await all(5, 20);
  expect(used).toBe(1_210);
});

test("a higher limit admits at once, also where the region repeated a denial", async () => {
  for (let count = 0; count < 12; count += 1) await limit(count % 2, "raised", "a");
  await change("PUT", "raised", bucket(30));
  expect(await limit(EU, "raised", "a")).toMatchObject({ success: true, remaining: 19 });
  await known("raised", "a", 30);
  expect(await limit(NA, "raised", "a", { cost: 20 })).toMatchObject({ success: false, remaining: 19 });
  expect(await limit(NA, "raised", "a", { cost: 19 })).toMatchObject({ success: true, remaining: 0 });
});

test("calls of all regions are decided by the plan that they name, with what all have used", async () => {
  const pro = { plan: "pro" };
  expect(await limit(EU, "customer", "a", { ...pro, cost: 30 })).toMatchObject({
    success: true,
    plan: "pro",
  });
  expect(await limit(NA, "customer", "a", { ...pro, cost: 20 })).toMatchObject({
    success: true,
    remaining: 50,
  });
  const own = await limit(NA, "customer", "a");
  expect(own).toMatchObject({ success: false, limit: 20, remaining: 0 });
  expect(own).not.toHaveProperty("plan");
  expect(await limit(EU, "customer", "a", { ...pro, cost: 50 })).toMatchObject({
    success: true,
    remaining: 0,
  });
  expect(await limit(NA, "customer", "a", pro)).toMatchObject({ success: false, limit: 100, remaining: 0 });
});

test("a call that only looks is answered by the plan that it names, and leaves the region's key its plan", async () => {
  const pro = { plan: "pro" };
  const peek = async (query: string) =>
    (await call(EU, "GET", `/v1/policies/customer/keys/looks${query}`)).body;
  await limit(EU, "customer", "looks", { cost: 5 });
  expect(await peek("?plan=pro")).toMatchObject({ plan: "pro", limit: 100, remaining: 95 });
  expect(await limit(EU, "customer", "looks", { ...pro, cost: 0 })).toMatchObject({
    limit: 100,
    remaining: 95,
  });
  const own = await peek("");
  expect(own).toMatchObject({ limit: 20, remaining: 15 });
  expect(own).not.toHaveProperty("plan");
});

test("a limit that was lowered and is raised again counts all that was used", async () => {
  await limit(EU, "again", "a", { cost: 300 });
  await change("PUT", "again", bucket(10));
  await known("again", "a", 10);
  expect(await limit(NA, "again", "a")).toMatchObject({ success: false, remaining: 0 });
  const refund = { policy: "again", key: "a", units: 2, idempotencyKey: "back" };
  expect((await call(NA, "POST", "/v1/refund", refund)).body).toMatchObject({ remaining: 2 });
  expect(await limit(NA, "again", "a")).toMatchObject({ success: true, remaining: 1 });
  await change("DELETE", "again");
  await known("again", "a", 400);
  expect(await remaining(NA, "again", "a")).toBe(101);
});

test("under another algorithm the used units count", async () => {
  await limit(EU, "other", "a", { cost: 12 });
  await change("PUT", "other", log(30));
  await known("other", "a", 30);
  expect(await remaining(NA, "other", "a")).toBe(18);
  expect(await limit(NA, "other", "a", { cost: 3 })).toMatchObject({ success: true, remaining: 15 });
  await change("PUT", "other", bucket(40));
  await known("other", "a", 40);
  expect(await remaining(EU, "other", "a")).toBe(25);
});

test("overrides: figures, a factor, blocked and unlimited, in all regions and for holds", async () => {
  await change("PUT", "plans/overrides/customer:*", { limit: 5, burst: 5 });
  await change("PUT", "plans/overrides/customer:1", { multiply: 2 });
  await change("PUT", "plans/overrides/customer:2", { blocked: true });
  await change("PUT", "plans/overrides/customer:3", { unlimited: true });
  await known("plans", "customer:9", 5);
  await known("plans", "customer:1", 40);
  expect(await limit(EU, "plans", "customer:9", { cost: 4 })).toMatchObject({ success: true, limit: 5 });
  expect(await limit(NA, "plans", "customer:9", { cost: 2 })).toMatchObject({
    success: false,
    remaining: 1,
    override: "customer:*",
  });
  const hold = async (region: number, key: string, units: number) =>
    (await call(region, "POST", "/v1/holds", { policy: "plans", key, units })).body;
  expect(await hold(NA, "customer:9", 2)).toMatchObject({ success: false, limit: 5 });
  expect(await limit(NA, "plans", "customer:1", { cost: 30 })).toMatchObject({
    success: true,
    remaining: 10,
  });
  for (const region of BOTH) {
    expect(await limit(region, "plans", "customer:2")).toMatchObject({ success: false, reason: "blocked" });
    expect(await limit(region, "plans", "customer:3", { cost: 1_000 })).toMatchObject({ success: true });
    expect(await hold(region, "customer:3", 1_000)).toMatchObject({ success: true });
  }
  expect(await limit(EU, "plans", "other", { cost: 6 })).toMatchObject({ success: true, limit: 20 });
  await change("DELETE", "plans/overrides/customer:*");
  await known("plans", "customer:9", 20);
  expect(await remaining(NA, "plans", "customer:9")).toBe(16);
});

test("a region alone has its part of the limit in force", async () => {
  expect(await refused("alone/overrides/tiny", { limit: 3, burst: 3 })).toContain(
    "a region alone has 3 times 0.250 units of alone, which is less than one",
  );
  expect(await refused("alone", bucket(3, LOCAL))).toContain("must have a larger localShare");
  await change("PUT", "alone/overrides/few", { limit: 8, burst: 8 });
  await known("alone", "few", 8);
  world.network.setFault({ kind: "lose-request" });
  try {
    const decisions = [];
    for (let count = 0; count < 3; count += 1) decisions.push(await limit(NA, "alone", "few"));
    expect(decisions.map(({ success }) => success)).toEqual([true, true, false]);
    expect(decisions[0]).toMatchObject({ source: "fallback", limit: 2, override: "few" });
    expect(await limit(NA, "alone", "many")).toMatchObject({ source: "fallback", limit: 10 });
  } finally {
    world.network.setFault({ kind: "pass" });
  }
});

test("fewer slots: a region leases none of its own again while all regions together have too many", async () => {
  const acquire = async (region: number) =>
    (await call(region, "POST", "/v1/leases", { policy: "slots", key: "a" })).body as {
      readonly success: boolean;
      readonly lease?: { readonly id: string };
    };
  const held: { readonly region: number; readonly id: string }[] = [];
  const take = async (region: number) => {
    const { lease } = await acquire(region);
    if (lease !== undefined) held.push({ region, id: lease.id });
  };
  for (let count = 0; count < 6; count += 1) await take(count % 2);
  expect(held).toHaveLength(6);
  await change("PUT", "slots", slots(2));
  await known("slots", "a", 2);
  while (held.length > 2) {
    const { region, id } = held.shift() as (typeof held)[number];
    expect((await call(region, "DELETE", `/v1/leases/${id}`)).status).toBe(204);
    const before = held.length;
    for (const each of BOTH) await take(each);
    expect(held).toHaveLength(before);
  }
  const { region, id } = held.shift() as (typeof held)[number];
  await call(region, "DELETE", `/v1/leases/${id}`);
  await vi.waitFor(
    async () => {
      for (const each of BOTH) await take(each);
      expect(held).toHaveLength(2);
    },
    { timeout: 20_000, interval: 100 },
  );
});

test("a candidate has a pool of its own, and is counted; promoted, it counts what was used", async () => {
  interface Read {
    readonly compared: { readonly calls: number };
  }
  await change("PUT", "tried/candidate", bucket(3));
  await known("tried", "a", 20);
  const compared = async (calls: number) =>
    await vi.waitFor(
      async () => {
        const { body } = await call(EU, "GET", "/v1/policies/tried/candidate");
        expect((body as unknown as Read).compared.calls).toBe(calls);
        return body;
      },
      { timeout: 20_000, interval: 100 },
    );
  const settled = () => new Promise((done) => setTimeout(done, 250));
  let calls = 0;
  for (const limits of [3, 2]) {
    await change("PUT", "tried/candidate", bucket(limits));
    // Another candidate begins untouched.
    const since = calls;
    for (let count = 0; count < 5; count += 1) {
      expect(await limit(EU, "tried", "a")).toMatchObject({ success: true, limit: 20 });
      calls += 1;
      await settled();
    }
    expect(await compared(calls - since)).toMatchObject({
      compared: { admittedByBoth: limits, deniedByCandidateAlone: 5 - limits, undecided: 0 },
    });
  }
  await change("POST", "tried/candidate/promote");
  await known("tried", "a", 2);
  expect(await limit(NA, "tried", "a")).toMatchObject({ success: false, limit: 2, remaining: 0 });
});

test("what only a deployment changes is refused, with what must be", async () => {
  const { pool: _, ...unpooled } = bucket(20);
  expect(await refused("plans", unpooled)).toBe(
    'pool is left out: must be "redis", as in wrangler.toml, since only a deployment moves keys',
  );
  expect(await refused("added", bucket(20))).toBe(
    'pool is "redis": must be left out of a policy that is made at run time',
  );
  expect(await refused("ruled", { rules: { requests: rule(50), words: rule(90, "tokens") }, ...POOL })).toBe(
    'rules are "requests", "words": must be "requests", "tokens", as in wrangler.toml, since the policy\'s pool counts by them',
  );
  expect(await refused("slots", bucket(6))).toContain('must be "slots" (concurrency)');
  expect(await refused("plans", { ...bucket(20), algorithm: "leaky-bucket" })).toContain(
    'pool is "redis": must be left out with algorithm "leaky-bucket"',
  );
});
