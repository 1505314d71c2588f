import { expect, test } from "vitest";
import { MAX_PLANS, MAX_POLICIES, OTHER_PLANS, OTHER_POLICIES } from "../../../core/stats/counts.ts";
import { countHeld, HeldTimes } from "../../../core/stats/held-times.ts";
import { MAX_WITH_KEYS, Tally, type CountedDecision } from "../../../core/stats/tally.ts";

const told = (fields: Partial<CountedDecision> = {}): CountedDecision => ({
  policy: "api",
  key: "a",
  success: true,
  reason: "ok",
  source: "isolate",
  rules: [],
  ...fields,
});

test("a decision is counted by its policy, outcome, reason and source", () => {
  const tally = new Tally();
  tally.decided(told());
  tally.decided(told());
  tally.decided(told({ success: false, reason: "quota", source: "object" }));
  tally.decided(told({ policy: "b", reason: "degraded", source: "fallback" }));
  tally.decided(told({ success: false, reason: "refused" }));
  expect(tally.take()?.counts).toEqual({
    "decisions api admitted ok isolate": 2,
    "decisions api denied quota object": 1,
    "decisions api denied refused isolate": 1,
    "decisions b admitted degraded fallback": 1,
  });
});

test("an admitted call is near a limit while less than a fifth is left of any rule", () => {
  const tally = new Tally();
  const rule = { name: "r", success: true, resetAfterMs: 0, retryAfterMs: 0, reason: "ok" } as const;
  const left = (...remaining: number[]) =>
    remaining.map((each) => ({ ...rule, limit: 100, remaining: each }));
  for (const rules of [left(20), left(100, 20), [{ ...rule, limit: 100, remaining: 0, quotaRemaining: 20 }]])
    tally.decided(told({ rules }));
  tally.decided(told({ success: false, reason: "quota", rules: left(0) }));
  expect(Object.keys(tally.take()?.counts ?? {})).not.toContain("near_limit api");
  for (const rules of [left(19), left(100, 19), left(0)]) tally.decided(told({ rules }));
  expect(tally.take()?.counts["near_limit api"]).toBe(3);
});

test("held times that are counted together are as those that are counted one by one", () => {
  const [one, together] = [new Tally(), new Tally()];
  const held = new HeldTimes();
  for (const ms of [-5, 0, 1, 2, 30_000, 30_001, 60_000, 7_200_000, 7_200_001]) {
    countHeld(one, "api", 1_000, 1_000 + ms);
    held.note(ms);
  }
  countHeld(one, "api", undefined, 5);
  held.count(together, "api");
  held.count(together, "api");
  const counts = together.take()?.counts;
  expect(counts).toEqual(one.take()?.counts);
  expect(counts).toMatchObject({
    "lease_held_seconds api 1": 3,
    "lease_held_seconds api 5": 1,
    "lease_held_seconds api 60000": 2,
    "lease_held_seconds api inf": 1,
    "lease_held_seconds api sum": 14_520_005,
  });
});

test("a reason that another version has counts as another", () => {
  const tally = new Tally();
  tally.decided(told({ success: false, reason: "banished" as never, source: "moon" as never }));
  expect(tally.take()?.counts).toEqual({ "decisions api denied other other": 1 });
});

test("what was taken is not there again", () => {
  const tally = new Tally();
  expect(tally.take()).toBeUndefined();
  tally.decided(told());
  expect(tally.take()).toBeDefined();
  expect(tally.take()).toBeUndefined();
  tally.decided(told());
  expect(tally.take()?.counts).toEqual({ "decisions api admitted ok isolate": 1 });
});

test("durations have a bucket and a sum, and none is below 0", () => {
  const tally = new Tally();
  tally.decided(told({ waitedMs: 7 }));
  tally.decided(told({ waitedMs: 90_000 }));
  tally.lasted("object_latency_seconds", ["single"], -3);
  expect(tally.take()?.counts).toEqual({
    "decisions api admitted ok isolate": 2,
    "waited_seconds api 10": 1,
    "waited_seconds api inf": 1,
    "waited_seconds api sum": 90_007,
    "object_latency_seconds single 1": 1,
    "object_latency_seconds single sum": 0,
  });
});

test("keys are counted by policy: all that are active, and those that are denied", () => {
  const tally = new Tally();
  tally.decided(told());
  tally.decided(told({ key: "b", success: false, reason: "quota" }));
  tally.decided(told({ key: "b", success: false, reason: "quota" }));
  const [api] = tally.take()?.keys ?? [];
  expect(api?.policy).toBe("api");
  expect(api?.active?.keys).toEqual([
    ["b", 2, 0],
    ["a", 1, 0],
  ]);
  expect(api?.denied?.keys).toEqual([["b", 2, 0]]);
});

test("keys of a policy that has a jurisdiction are not counted, and its decisions are", () => {
  const tally = new Tally((policy) => policy !== "european");
  for (const policy of ["european", "api"]) tally.decided(told({ policy }));
  const { counts = {}, keys = [] } = tally.take() ?? {};
  expect(counts["decisions european admitted ok isolate"]).toBe(1);
  expect(keys.map(({ policy }) => policy)).toEqual(["api"]);
});

test("of very many policies the later ones share a name, and have no keys", () => {
  const tally = new Tally();
  for (let policy = 0; policy < MAX_POLICIES + 5; policy += 1) tally.decided(told({ policy: `p${policy}` }));
  tally.decided(told({ policy: "p0" }));
  const { counts = {}, keys = [] } = tally.take() ?? {};
  expect(counts["decisions p0 admitted ok isolate"]).toBe(2);
  expect(counts[`decisions ${OTHER_POLICIES} admitted ok isolate`]).toBe(5);
  expect(Object.values(counts).reduce((sum, count) => sum + count, 0)).toBe(MAX_POLICIES + 6);
  expect(keys.length).toBe(MAX_WITH_KEYS);
});

test("decisions by plans are counted by policy, plan and outcome, beside all decisions", () => {
  const tally = new Tally();
  for (const plan of ["pro", "pro", "free", "pro", undefined]) tally.decided(told(plan ? { plan } : {}));
  tally.decided(told({ plan: "pro", success: false, reason: "quota" }));
  tally.decided(told({ policy: "other", plan: "pro" }));
  const { counts } = tally.take() ?? {};
  expect(counts).toEqual({
    "decisions api admitted ok isolate": 5,
    "decisions api denied quota isolate": 1,
    "decisions other admitted ok isolate": 1,
    "plan_decisions api pro admitted": 3,
    "plan_decisions api pro denied": 1,
    "plan_decisions api free admitted": 1,
    "plan_decisions other pro admitted": 1,
  });
  tally.decided(told());
  expect(tally.take()?.counts).toEqual({ "decisions api admitted ok isolate": 1 });
});

test("groups are counted by policy, whatever their keys, beside the keys", () => {
  const tally = new Tally();
  for (const group of ["flood", "flood", "small"]) tally.decided(told({ group }));
  tally.decided(told({ group: "flood", key: "another", success: false, reason: "quota" }));
  const { counts, keys } = tally.take() ?? {};
  expect(keys?.find(({ policy }) => policy === "api~groups")).toEqual({
    policy: "api~groups",
    active: {
      keys: [
        ["flood", 3, 0],
        ["small", 1, 0],
      ],
      least: 0,
    },
    denied: { keys: [["flood", 1, 0]], least: 0 },
  });
  expect(Object.keys(counts ?? {}).filter((series) => series.includes("groups"))).toEqual([]);
});

test("a key has the plan of its last decision, and none after a call that names none", () => {
  const tally = new Tally();
  tally.decided(told({ plan: "pro" }));
  tally.decided(told({ plan: "free" }));
  tally.decided(told({ key: "b", plan: "pro", success: false, reason: "quota" }));
  tally.decided(told({ key: "b" }));
  const [api] = tally.take()?.keys ?? [];
  expect(api?.active?.keys).toEqual([
    ["a", 2, 0, "free"],
    ["b", 2, 0],
  ]);
  expect(api?.denied?.keys).toEqual([["b", 1, 0, "pro"]]);
});

test("of very many plans the later ones share a name, and lose no decision", () => {
  const tally = new Tally();
  for (let plan = 0; plan < MAX_PLANS + 5; plan += 1) tally.decided(told({ plan: `p${plan}` }));
  tally.decided(told({ plan: "p0" }));
  const { counts = {} } = tally.take() ?? {};
  expect(counts["plan_decisions api p0 admitted"]).toBe(2);
  expect(counts[`plan_decisions api ${OTHER_PLANS} admitted`]).toBe(5);
});
