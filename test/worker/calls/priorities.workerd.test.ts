import { exports } from "cloudflare:workers";
import { expect, test } from "vitest";
import type { Limiter } from "../../../worker/rpc/limiter.ts";
import { acquire, call, freshKey, limit, release, report } from "../../support/limiter.ts";

const take = async (key: string, priority: string | undefined, cost = 1) =>
  (await limit("kept", key, { cost, ...(priority !== undefined && { priority }) })).body;

test("a call takes nothing that is kept for more important ones", async () => {
  const key = freshKey();
  expect(await take(key, "low", 6)).toMatchObject({ success: true, limit: 7, remaining: 1 });
  expect(await take(key, undefined)).toMatchObject({ success: true, remaining: 0 });
  expect(await take(key, "normal")).toMatchObject({ success: false, reason: "shed", violated: ["kept"] });
  expect(await take(key, "high", 2)).toMatchObject({ success: false, reason: "shed" });
  expect(await take(key, "high")).toMatchObject({ success: true, limit: 8, remaining: 0 });
  expect(await take(key, "critical", 2)).toMatchObject({ success: true, limit: 10, remaining: 0 });
  expect(await take(key, "critical")).toMatchObject({ success: false, reason: "quota" });
  // What can never pass is not shed.
  expect(await take(key, "low", 8)).toMatchObject({ reason: "cost-over-limit", retryAfterMs: null });
});

test("a denial by shedding is a 503 where the status has to tell, with the wait", async () => {
  const key = freshKey();
  await take(key, "low", 7);
  const body = { policy: "kept", key, priority: "low" };
  const shed = await call("/v1/limit?deny=429", { body });
  expect(shed).toMatchObject({
    status: 503,
    body: {
      type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
      decision: { reason: "shed" },
    },
  });
  expect(Number(shed.headers.get("Retry-After"))).toBeGreaterThan(0);
  expect((await call("/v1/limit?deny=429", { body: { ...body, cost: 8 } })).status).toBe(429);
});

test("holds, looks and checks on several keys have priorities too", async () => {
  const [key, other] = [freshKey(), freshKey()];
  const hold = (priority: string) => call("/v1/holds", { body: { policy: "kept", key, units: 8, priority } });
  expect((await hold("normal")).body).toMatchObject({ success: false, reason: "cost-over-limit" });
  expect((await hold("high")).body).toMatchObject({ success: true, hold: { units: 8 } });
  expect((await limit("kept", key, { cost: 0, priority: "critical" })).body).toMatchObject({ remaining: 2 });
  expect((await limit("kept", key, { cost: 0 })).body).toMatchObject({ remaining: 0 });
  const all = (priority: string) =>
    call("/v1/limit/all", {
      body: {
        checks: [
          { policy: "kept", key: other },
          { policy: "kept", key },
        ],
        priority,
      },
    });
  expect((await all("high")).body).toMatchObject({ success: false });
  expect((await all("critical")).body).toMatchObject({ success: true });
  expect((await limit("kept", other, { cost: 0, priority: "critical" })).body).toMatchObject({
    remaining: 9,
  });
});

test("leases have priorities, under the policy's own names", async () => {
  const key = freshKey();
  const lease = async (priority?: string) =>
    (await acquire("kept-slots", key, { ...(priority !== undefined && { priority }) })).body;
  expect(await lease()).toMatchObject({ success: true, limit: 2 });
  expect(await lease("free")).toMatchObject({ success: true });
  expect(await lease("free")).toMatchObject({ success: false, reason: "shed" });
  expect(await lease("paid")).toMatchObject({ success: true, limit: 4 });
  expect(await lease("paid")).toMatchObject({ success: true });
  expect(await lease("paid")).toMatchObject({ success: false, reason: "quota" });
});

test("who waits for a lease is served by priority", async () => {
  const key = freshKey();
  const held = (await acquire("crowd-slots", key)).body["lease"] as { id: string };
  const ended: string[] = [];
  const wait = async (priority: string) => {
    const { body } = await acquire("crowd-slots", key, { waitMs: 10_000, priority });
    ended.push(priority);
    await release((body["lease"] as { id: string }).id);
  };
  const waiting = ["low", "normal", "critical", "high"].map(wait);
  while ((await report("crowd-slots", key)).body["queueLength"] !== 4);
  await release(held.id);
  await Promise.all(waiting);
  expect(ended).toEqual(["critical", "high", "normal", "low"]);
});

test("who waits for a rate is served by priority, and the important pass who may not have what is kept", async () => {
  const key = freshKey();
  const ended: string[] = [];
  const wait = async (priority: string) => {
    const { body } = await limit("kept-rate", key, { waitMs: 10_000, priority });
    ended.push(`${priority} ${String(body["success"])}`);
  };
  await limit("kept-rate", key, { cost: 10, priority: "critical" });
  await Promise.all(["low", "low", "critical", "high", "critical"].map(wait));
  expect(ended).toEqual(["critical true", "critical true", "high true", "low true", "low true"]);
});

test("hot keys are decided in the isolate for each priority, and what is kept stays", async () => {
  const key = freshKey();
  const COST = 4;
  const ask = async (priority: string) => (await limit("kept-hot", key, { priority, cost: COST })).body;
  const sources = new Set<unknown>();
  let admitted = 0;
  for (let units = 0; units < 700; units += COST) {
    const { success, source } = await ask((units / COST) % 2 === 0 ? "low" : "normal");
    sources.add(source);
    admitted += success === true ? COST : 0;
  }
  expect(sources).toContain("isolate");
  expect(admitted).toBeLessThanOrEqual(500);
  let critical = 0;
  for (let units = 0; units < 600; units += COST)
    critical += (await ask("critical"))["success"] === true ? COST : 0;
  expect(critical).toBeGreaterThanOrEqual(500 - 62);
  expect(admitted + critical).toBeLessThanOrEqual(1_000);
});

test("a priority that the policy does not have is refused, and nothing is taken", async () => {
  const key = freshKey();
  const allowed = 'must be one of "critical", "high", "normal", "low", the policy\'s priorities';
  for (const [path, fields] of [
    ["limit", {}],
    ["holds", { units: 1 }],
  ] as const) {
    const body = { policy: "kept", key, priority: "urgent", ...fields };
    expect(await call(`/v1/${path}`, { body })).toMatchObject({
      status: 422,
      body: { errors: [{ pointer: "/priority", detail: `priority is "urgent": ${allowed}` }] },
    });
  }
  expect((await acquire("kept-slots", key, { priority: "low" })).status).toBe(422);
  expect((await limit("kept", key, { cost: 0, priority: "critical" })).body).toMatchObject({ remaining: 10 });
});

test("the binding has priorities", async () => {
  const { Limiter: limiter } = exports as unknown as { Limiter: Limiter };
  const key = freshKey();
  expect(await limiter.limit({ policy: "kept", key, cost: 7, priority: "low" })).toMatchObject({
    success: true,
  });
  expect(await limiter.limit({ policy: "kept", key, priority: "low" })).toMatchObject({ reason: "shed" });
  expect(await limiter.limit({ policy: "kept", key, priority: "critical" })).toMatchObject({ success: true });
});
