import { expect, test } from "vitest";
import { acquire, call, freshKey, idIn, limit, release, report, type Called } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";
import { at } from "../../support/virtual-date.ts";

const figures = ({ body }: Called) =>
  (body["rules"] as { name: string; success: boolean; remaining: number }[]).map(
    ({ name, success, remaining }) => [name, success, remaining] as const,
  );

test("rules are decided together: all are named, the one that binds is on top", async () => {
  const called = await limit("several", freshKey(), { cost: { requests: 1, tokens: 98 } });
  expect(called.body).toMatchObject({ success: true, limit: 100, remaining: 2, reason: "ok" });
  expect(figures(called)).toEqual([
    ["requests", true, 4],
    ["tokens", true, 2],
  ]);
  expect(called.headers.get("ratelimit-policy")).toBe(
    '"requests";q=5;w=2592000, "tokens";q=100;w=2592000;qu="tokens"',
  );
  expect(called.headers.get("ratelimit")).toMatch(/^"requests";r=4;t=\d+, "tokens";r=2;t=2592000$/);
});

test("a denial by one rule takes nothing from any, and names who denied", async () => {
  const key = freshKey();
  await limit("several", key, { cost: { tokens: 60 } });
  const denied = await limit("several", key, { cost: { tokens: 41 } });
  expect(denied.body).toMatchObject({ success: false, violated: ["tokens"], reason: "quota", remaining: 40 });
  expect(figures(denied)).toEqual([
    ["requests", true, 4],
    ["tokens", false, 40],
  ]);
  expect(figures(await report("several", key))).toEqual([
    ["requests", true, 4],
    ["tokens", true, 40],
  ]);
  const both = await limit("several", key, { cost: { requests: 5, tokens: 41 } });
  expect(both.body["violated"]).toEqual(["requests", "tokens"]);
});

test("a number costs the same under every rule, and a unit that is left out costs 1", async () => {
  const key = freshKey();
  expect(figures(await limit("several", key, { cost: 2 }))).toEqual([
    ["requests", true, 3],
    ["tokens", true, 98],
  ]);
  expect(figures(await limit("several", key, { cost: { requests: 0, tokens: 8 } }))).toEqual([
    ["requests", true, 3],
    ["tokens", true, 90],
  ]);
  expect(figures(await limit("several", key))).toEqual([
    ["requests", true, 2],
    ["tokens", true, 89],
  ]);
});

test.each([
  [{ tokens: 1, words: 2 }, "/cost/words", "words is not a unit of this policy: there are requests, tokens"],
  ['{"__proto__":1}', "/cost/__proto__", "__proto__ is not a unit of this policy"],
  [{ tokens: -1 }, "/cost/tokens", "must be an integer from 0 to 1000000000"],
  [{ tokens: 1.5 }, "/cost/tokens", "must be an integer from 0 to 1000000000"],
  [[1], "/cost", "cost is an array of 1: must be an integer"],
  ["1", "/cost", 'cost is "1": must be an integer'],
])("a cost of %j is refused at %s", async (cost, pointer, detail) => {
  const text = typeof cost === "string" && cost.startsWith("{") ? cost : JSON.stringify(cost);
  const called = await call("/v1/limit", { body: `{"policy":"several","key":"a","cost":${text}}` });
  expect(called.status).toBe(422);
  expect(called.body["errors"]).toEqual([{ pointer, detail: expect.stringContaining(detail) }]);
});

test("an acquire charges the rates only if the slot is granted, and not when it is given back", async () => {
  const key = freshKey();
  const ids = [idIn(await acquire("mixed", key)), idIn(await acquire("mixed", key))];
  const denied = await acquire("mixed", key);
  expect(denied.body).toMatchObject({ success: false, violated: ["slots"] });
  expect(figures(denied)).toEqual([
    ["rate", true, 1],
    ["slots", false, 0],
  ]);
  for (const id of ids) await release(id);
  expect(figures(await report("mixed", key))).toEqual([
    ["rate", true, 1],
    ["slots", true, 2],
  ]);
});

test("a rate that denies leases nothing", async () => {
  const key = freshKey();
  const denied = await acquire("mixed", key, { units: { requests: 4, "concurrent-requests": 1 } });
  expect(denied.body).toMatchObject({ success: false, violated: ["rate"], retryAfterMs: null });
  expect((await report("mixed", key)).body).toMatchObject({ leases: 0 });
});

test.each([
  [
    { "concurrent-requests": 0, requests: 1 },
    "/units/concurrent-requests",
    "is 0: must be an integer from 1",
  ],
  [{ "concurrent-requests": 0, requests: 0 }, "/units", "at least one of them not 0"],
  [0, "/units", "units is 0: must be an integer from 1"],
])("an acquire of %j would be no lease, and is refused", async (units, pointer, detail) => {
  const key = freshKey();
  const refused = await acquire("mixed", key, { units });
  expect(refused.body["errors"]).toEqual([{ pointer, detail: expect.stringContaining(detail) }]);
  expect(figures(await report("mixed", key))[0]).toEqual(["rate", true, 3]);
});

test("several rules survive a crash, each with what was taken of it", async () => {
  const key = freshKey();
  await limit("several", key, { cost: { tokens: 60 } });
  await objectOf("several", key).crash();
  expect(figures(await report("several", key))).toEqual([
    ["requests", true, 4],
    ["tokens", true, 40],
  ]);
});

test("a rule that counts denied attempts counts each once: made again it is decided anew", async () => {
  const key = freshKey();
  at(0);
  await limit("hammered", key, { cost: 2 });
  at(1_000);
  const denied = await limit("hammered", key, { cost: 2, idempotencyKey: "a" });
  // The attempt itself counts, so its own units have to leave too.
  expect(denied.body["retryAfterMs"]).toBe(3_600_000);
  const before = await objectOf("hammered", key).stored();
  at(3_600_999);
  const again = await limit("hammered", key, { cost: 2, idempotencyKey: "a" });
  expect(again.body).toMatchObject({ success: false, retryAfterMs: 1 });
  expect(await objectOf("hammered", key).stored()).toEqual(before);
  at(3_601_000);
  const passed = await limit("hammered", key, { cost: 2, idempotencyKey: "a" });
  expect(passed.body).toMatchObject({ success: true, remaining: 0 });
  expect((await limit("hammered", key, { cost: 2, idempotencyKey: "a" })).body).toEqual(passed.body);
});

test("looking at a rule that counts denied attempts does not count, nor does its wait pretend so", async () => {
  const key = freshKey();
  at(0);
  await limit("hammered", key, { cost: 2 });
  at(1_000);
  expect((await report("hammered", key)).body).toMatchObject({ success: false, retryAfterMs: 3_599_000 });
  at(3_600_000);
  expect((await limit("hammered", key)).body["success"]).toBe(true);
});

test("a large log goes to storage in segments and comes back after a crash, run by run", async () => {
  const key = freshKey();
  const object = objectOf("long-log", key);
  const taken = Array.from({ length: 300 }, (_, index) => ({
    atMs: index * 10,
    cost: 1 + ((index * 7) % 300),
  }));
  for (const { atMs, cost } of taken) {
    at(atMs);
    await object.limit(cost);
  }
  expect((await object.stored()).tables["segments"]?.length).toBeGreaterThan(2);
  await object.crash();
  const windowMs = 30 * 86_400_000;
  for (const leftMs of [-1, 0, 500, 1_234, 2_990]) {
    at(windowMs + leftMs);
    const counted = taken.filter(({ atMs }) => atMs > leftMs).reduce((sum, { cost }) => sum + cost, 0);
    // Of the units that memory may have been ahead by, 0.1 % of the limit, none is given out again.
    const lost = 100_000 - counted - Number(await object.remaining());
    expect(lost).toBeGreaterThanOrEqual(0);
    expect(lost).toBeLessThanOrEqual(100);
  }
  await object.reset();
  expect((await object.stored()).tables["segments"]).toEqual([]);
});
