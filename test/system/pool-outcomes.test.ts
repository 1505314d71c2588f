/** Each way in which Redis does not answer, and what callers are answered by the policy's `onFailure`. */
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { IS_DEEP } from "../support/depth.ts";
import { pooled } from "../support/pool-load.ts";
import { startWorld, type World } from "../support/regions.ts";
import type { Fault } from "../support/unreliable-http.ts";

/** The pool has half of it, and a busy machine may pause for as long as it takes most answers. */
const BRIEF = { deadlineMs: 1_000 };
const RATE = { limit: 40, windowMs: 3_600_000, burst: 40 };
const POLICIES = {
  closed: pooled(RATE, BRIEF),
  open: pooled(RATE, { ...BRIEF, onFailure: "open" }),
  local: pooled(RATE, { ...BRIEF, onFailure: "local", localShare: 0.25 }),
  half: pooled(RATE, { ...BRIEF, onFailure: "local" }),
  log: pooled({ limit: 40, windowMs: 3_600_000 }, BRIEF),
  spaced: pooled({ limit: 40, windowMs: 3_600_000 }, { ...BRIEF, minInterval: "1ms" }),
  slots: { algorithm: "concurrency", limit: 4, ttl: "1m", pool: "redis", ...BRIEF },
  "local-slots": {
    algorithm: "concurrency",
    limit: 4,
    ttl: "1m",
    pool: "redis",
    ...BRIEF,
    onFailure: "local",
    localShare: 0.5,
  },
};

const answer = (status: number, body: string): Fault => ({ kind: "answer", status, body });
const FAULTS: Record<string, Fault> = {
  "is away": { kind: "lose-request" },
  "is slow": { kind: "delay-request", ms: 1_500 },
  "carries out and never answers": { kind: "hang-reply" },
  "refuses the token": answer(401, '{"error":"WRONGPASS invalid or missing auth token"}'),
  "has no quota left": answer(
    400,
    '{"error":"ERR max requests limit exceeded. Limit: 500000, Usage: 500000."}',
  ),
  "answers an error page": answer(502, "<html>Bad Gateway</html>"),
  "answers garbage": answer(200, '{"result":"garbage"}'),
  "answers something else": answer(200, '{"result":"{\\"hello\\":1}"}'),
  "answers nothing": answer(200, ""),
};

let world: World;
let keys = 0;
const freshKey = () => `key ${(keys += 1)}`;
beforeAll(async () => {
  world = await startWorld(POLICIES, ["EU", "NA"]);
});
afterEach(() => world.network.setFault({ kind: "pass" }));
afterAll(() => world.stop());

const [EU, NA] = [0, 1];
const call = async (region: number, method: string, path: string, body?: unknown) =>
  await (world.regions[region] as World["regions"][number]).client.call(method, path, body);
const limit = async (region: number, policy: string, key: string, fields: object = {}) =>
  await call(region, "POST", "/v1/limit", { policy, key, ...fields });
const lease = async (region: number, policy: string, key: string) =>
  await call(region, "POST", "/v1/leases", { policy, key });

/** Until the pool decides again: a breaker may still be open. */
async function expectBack(policy: string): Promise<void> {
  for (const region of [EU, NA])
    await expect
      .poll(async () => (await limit(region, policy, freshKey())).body["source"], { timeout: 10_000 })
      .toBe("pool");
}

/** One of each kind: no way, no answer, a refusal, and an answer that is none. */
const GROSS = ["is away", "carries out and never answers", "refuses the token", "answers garbage"];
const TRIED = Object.entries(FAULTS).filter(([name]) => IS_DEEP || GROSS.includes(name));

describe.each(TRIED)("Redis %s", (_, fault) => {
  test("closed denies, and says why", async () => {
    world.network.setFault(fault);
    const key = freshKey();
    const { status, body } = await limit(EU, "closed", key);
    expect(status).toBe(200);
    expect(body).toEqual({
      success: false,
      policy: "closed",
      key,
      limit: 40,
      reason: "degraded",
      source: "fallback",
      rules: [],
    });
    const denied = await call(EU, "POST", "/v1/limit?deny=429", { policy: "closed", key });
    expect(denied.status).toBe(503);
    world.network.setFault({ kind: "pass" });
    await expectBack("closed");
  });

  test("open admits, and says why", async () => {
    world.network.setFault(fault);
    const { body } = await limit(EU, "open", freshKey());
    expect(body).toMatchObject({ success: true, reason: "degraded", source: "fallback", rules: [] });
    world.network.setFault({ kind: "pass" });
    await expectBack("open");
  });

  test("local goes on with its share in each region, and with the pool when it is back", async () => {
    world.network.setFault(fault);
    const key = freshKey();
    const share = async (region: number) => {
      const answers = [];
      for (let count = 0; count < 12; count += 1) answers.push((await limit(region, "local", key)).body);
      const admitted = answers.filter(({ success }) => success === true);
      expect(admitted).toHaveLength(10);
      expect(admitted[0]).toMatchObject({ reason: "degraded", source: "fallback", remaining: 9, limit: 10 });
      expect(answers[11]).toMatchObject({ success: false, reason: "quota", limit: 10 });
      expect(answers[11]?.["retryAfterMs"]).toBeGreaterThan(0);
    };
    await Promise.all([EU, NA].map(share));
    world.network.setFault({ kind: "pass" });
    await expectBack("local");
  });

  test("a charge of the pool is given back by the pool, from any region, and not by a region alone", async () => {
    const key = freshKey();
    await expectBack("local");
    const { body } = await limit(EU, "local", key, { cost: 5, refundable: true });
    world.network.setFault(fault);
    const refund = { policy: "local", key, units: 5, idempotencyKey: "back", charge: body["charge"] };
    expect((await call(NA, "POST", "/v1/refund", refund)).status).toBe(503);
    world.network.setFault({ kind: "pass" });
    await expect
      .poll(async () => (await call(NA, "POST", "/v1/refund", refund)).body, { timeout: 10_000 })
      .toMatchObject({ success: true, remaining: 40, source: "pool" });
    const again = { ...refund, idempotencyKey: "again" };
    await expect
      .poll(async () => (await call(EU, "POST", "/v1/refund", again)).status, { timeout: 10_000 })
      .toBe(404);
  });

  test("a refund, a settling and a look say that they are not known to be done", async () => {
    const key = freshKey();
    await expectBack("closed");
    const held = await call(EU, "POST", "/v1/holds", { policy: "closed", key, units: 5 });
    const { id } = held.body["hold"] as { id: string };
    world.network.setFault(fault);
    const refund = { policy: "closed", key, units: 1, idempotencyKey: "once" };
    expect((await call(EU, "POST", "/v1/refund", refund)).status).toBe(503);
    expect((await call(EU, "POST", `/v1/holds/${id}/settle`, { used: 1 })).status).toBe(503);
    expect((await call(EU, "GET", `/v1/policies/closed/keys/${encodeURIComponent(key)}`)).status).toBe(503);
    expect((await call(EU, "POST", "/v1/holds", { policy: "closed", key, units: 5 })).body).toMatchObject({
      success: false,
      reason: "degraded",
    });
    world.network.setFault({ kind: "pass" });
    // Once, whether or not it was carried out the first time.
    await expect
      .poll(async () => (await call(EU, "POST", "/v1/refund", refund)).body, { timeout: 10_000 })
      .toMatchObject({ success: true });
    const settled = await call(EU, "POST", `/v1/holds/${id}/settle`, { used: 1 });
    expect(settled.body).toMatchObject({ success: true });
    const seen = await call(NA, "GET", `/v1/policies/closed/keys/${encodeURIComponent(key)}`);
    // The hold that nobody heard of may be there, until it expires.
    expect([34, 39, 40]).toContain(seen.body["remaining"]);
  });
});

describe("writes that Redis loses count as the whole quota, from the region's next call on", () => {
  const isAdmitted = async (reply: Promise<{ readonly body: Record<string, unknown> }>) =>
    (await reply).body["success"];
  const hold = (policy: string, key: string) => call(EU, "POST", "/v1/holds", { policy, key, units: 20 });
  const once = (policy: string, key: string, idempotencyKey = "first") =>
    limit(EU, policy, key, { cost: 20, idempotencyKey });
  const plain = (policy: string, key: string) => limit(EU, policy, key, { cost: 20 });

  describe.each(["closed", "log", "spaced"])("policy %s", (policy) => {
    test.each([
      ["a first call", plain, plain],
      ["a hold", hold, plain],
      ["a call after a hold with an idempotency key", hold, once],
      ["calls with idempotency keys", once, (name: string, key: string) => once(name, key, "second")],
      ["a hold after a call", plain, hold],
    ])("%s", async (_, before, after) => {
      const key = freshKey();
      await expectBack("closed");
      if (policy === "spaced") for (let count = 0; count < 4; count += 1) await limit(EU, policy, key);
      else expect(await isAdmitted(before(policy, key))).toBe(true);
      await world.restartRedis();
      await expectBack("closed");
      expect(await isAdmitted(after(policy, key))).toBe(false);
      expect(await isAdmitted(limit(NA, policy, key))).toBe(false);
    });
  });
});

test("after repeated failures nothing is asked for a moment", async () => {
  world.network.setFault(answer(500, "no"));
  const key = freshKey();
  const before = world.network.requests();
  const sinceMs = Date.now();
  let calls = 0;
  for (; Date.now() < sinceMs + 2_000 || calls < 60; calls += 1) {
    const { body } = await limit(EU, "closed", key);
    expect(body).toMatchObject({ success: false, reason: "degraded" });
  }
  // Five failures open it, and once a second one call tries, twice.
  const seconds = (Date.now() - sinceMs) / 1_000;
  expect(world.network.requests() - before).toBeLessThan(10 + 3 * seconds);
  world.network.setFault({ kind: "pass" });
  await expectBack("closed");
});

test("by default a region alone has 1 divided by the number of regions, of which there are six", async () => {
  world.network.setFault({ kind: "lose-request" });
  const { body } = await limit(EU, "half", freshKey());
  expect(body).toMatchObject({ success: true, reason: "degraded", limit: 6, remaining: 5 });
  world.network.setFault({ kind: "pass" });
  await expectBack("half");
});

test("leases go on while Redis is away: released slots are given again, none are new", async () => {
  const key = freshKey();
  const first = await lease(EU, "slots", key);
  const { id } = first.body["lease"] as { id: string };
  world.network.setFault({ kind: "lose-request" });
  expect((await lease(EU, "slots", key)).body).toMatchObject({ success: false, reason: "degraded" });
  expect((await call(EU, "DELETE", `/v1/leases/${id}`)).status).toBe(204);
  expect((await lease(EU, "slots", key)).body).toMatchObject({ success: true });
});

test("a region alone leases its share, and what was leased then is released and renewed by its id", async () => {
  const key = freshKey();
  await expectBack("closed");
  world.network.setFault({ kind: "lose-request" });
  const leases = [];
  for (let count = 0; count < 3; count += 1) leases.push((await lease(NA, "local-slots", key)).body);
  expect(leases.map(({ success }) => success)).toEqual([true, true, false]);
  expect(leases[0]).toMatchObject({ reason: "degraded", source: "fallback", limit: 2 });
  const { id } = (leases[0] as Record<string, unknown>)["lease"] as { id: string };
  expect((await call(NA, "POST", `/v1/leases/${id}/renew`, {})).status).toBe(200);
  world.network.setFault({ kind: "pass" });
  await expectBack("closed");
  expect((await call(NA, "POST", `/v1/leases/${id}/renew`, {})).status).toBe(200);
  expect((await call(NA, "DELETE", `/v1/leases/${id}`)).status).toBe(204);
  expect((await call(NA, "DELETE", `/v1/leases/${id}`)).status).toBe(404);
});
