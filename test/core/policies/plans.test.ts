/** Plans in a policy's table, and the policies that calls of each plan see. */
import { describe, expect, test } from "vitest";
import { PoliciesInForce, problemsOf as problemsOfWrite } from "../../../core/catalog/policies-in-force.ts";
import { parsePolicy } from "../../../core/policies/parse-policy.ts";
import { later, type Policy } from "../../../core/policies/policy.ts";
import { namedPlan, planIn, planOf, withCallLimits } from "../../../core/policies/seen-policy.ts";
import { parseDeployment } from "../../support/milliseconds.ts";

const BUCKET = { algorithm: "token-bucket", limit: 100, window: "1s", burst: 200 };
const RULES = {
  requests: { algorithm: "token-bucket", limit: 60, window: "1m" },
  tokens: { algorithm: "sliding-log", limit: 1_000, window: "1m", unit: "tokens" },
};

function parsed(fields: object): Policy {
  const policy = parsePolicy("api", fields);
  if ("problems" in policy) throw new Error(policy.problems.map(({ detail }) => detail).join("; "));
  return policy;
}

function problemsOf(fields: object): readonly string[] {
  const policy = parsePolicy("api", fields);
  return "problems" in policy ? policy.problems.map(({ detail }) => detail) : [];
}

const capacities = ({ rules }: Policy) => rules.map(({ capacity }) => capacity);

test("a plan has its own figures, and else those of the policy", () => {
  const policy = parsed({
    ...BUCKET,
    plans: { pro: { limit: 1_000, burst: 5_000 }, free: {}, slow: { window: "1m" } },
  });
  expect(capacities(policy)).toEqual([200]);
  expect(capacities(planOf(policy, "pro"))).toEqual([5_000]);
  expect(capacities(planOf(policy, "free"))).toEqual([200]);
  expect(planOf(policy, "slow").rules[0].quota).toEqual({ units: 100, windowMs: 60_000 });
  expect(planOf(policy, undefined)).toBe(policy);
  expect(namedPlan(policy, "gold")).toBeUndefined();
  const several = parsed({ rules: RULES, plans: { pro: { rules: { tokens: { limit: 5_000 } } } } });
  expect(capacities(planOf(several, "pro"))).toEqual([60, 5_000]);
});

describe("a bad plan is refused with its place", () => {
  test.each([
    [
      "another algorithm's field",
      { ...BUCKET, plans: { pro: { ttl: "1s" } } },
      /^plans\.pro: ttl is no figure of this rule/,
    ],
    [
      "another algorithm",
      { ...BUCKET, plans: { pro: { algorithm: "gcra" } } },
      /algorithm is the same for all keys/,
    ],
    [
      "a field of the policy",
      { ...BUCKET, plans: { pro: { shadow: true } } },
      /plans\.pro: shadow is no figure/,
    ],
    ["a plan in a plan", { ...BUCKET, plans: { pro: { plans: {} } } }, /plans\.pro: plans is no figure/],
    ["a bad value", { ...BUCKET, plans: { pro: { limit: -1 } } }, /^plans\.pro: limit is -1/],
    ["a bad name", { ...BUCKET, plans: { "a b": { limit: 1 } } }, /^plans\.a b: its name is "a b"/],
    [
      "no name",
      { ...BUCKET, plans: { "": { limit: -5, foo: 1 } } },
      /^plans\.: its name is "": must be 1 to 64 letters/,
    ],
    [
      "a rule that is none",
      { rules: RULES, plans: { pro: { rules: { tokns: { limit: 1 } } } } },
      /tokns is not a rule.*did you mean tokens/,
    ],
    ["no table", { ...BUCKET, plans: 5 }, /^plans is 5: must be a table of 1 to 64 plans/],
    ["no plans", { ...BUCKET, plans: {} }, /^plans has 0: must be a table of 1 to 64 plans/],
    [
      "too many plans",
      { ...BUCKET, plans: Object.fromEntries(Array.from({ length: 65 }, (_, plan) => [`p${plan}`, {}])) },
      /^plans has 65: must be a table of 1 to 64 plans/,
    ],
    [
      "a figure where there is none",
      { algorithm: "unlimited", plans: { pro: { limit: 4 } } },
      /limit is no figure of this rule: a plan cannot change it$/,
    ],
    [
      "too large a limit in calls",
      { ...BUCKET, limitInCall: { max: 1e12 } },
      /^limitInCall\.max is 1000000000000: must be an integer from 1 to 1000000000$/,
    ],
    ["a limit in calls of 0", { ...BUCKET, limitInCall: { max: 0 } }, /^limitInCall\.max is 0: must be an/],
    ["a limit in calls that is less", { ...BUCKET, limitInCall: { max: -1 } }, /^limitInCall\.max is -1: /],
    ["no limit in calls", { ...BUCKET, limitInCall: {} }, /^limitInCall\.max is missing: must be an integer/],
    [
      "a number as limit in calls",
      { ...BUCKET, limitInCall: 5 },
      /^limitInCall is 5: must be a table \{ max \}/,
    ],
    ["a misspelt limit in calls", { ...BUCKET, limitInCall: { mx: 5 } }, /did you mean max/],
    [
      "limits in calls of a pool",
      { ...BUCKET, pool: "redis", limitInCall: { max: 5 } },
      /limitInCall .*left out with a pool/,
    ],
  ])("%s", (_, fields, problem) => {
    expect(problemsOf(fields)).toEqual([expect.stringMatching(problem)]);
  });
});

test.each([
  [{ ...BUCKET, plans: { pro: { limit: -1 } } }, ["plans", "pro", "limit"]],
  [{ ...BUCKET, plans: { pro: { ttl: "1s" } } }, ["plans", "pro", "ttl"]],
  [{ ...BUCKET, plans: { pro: { limit: 1, burst: 0 } } }, ["plans", "pro", "burst"]],
  [{ ...BUCKET, plans: { "a.b c": { limit: 1 } } }, ["plans", "a.b c"]],
  [{ ...BUCKET, plans: { pro: 5 } }, ["plans", "pro"]],
  [
    { rules: RULES, plans: { pro: { rules: { tokens: { limit: 0.5 } } } } },
    ["plans", "pro", "rules", "tokens", "limit"],
  ],
  [{ rules: RULES, plans: { pro: { rules: { tokns: {} } } } }, ["plans", "pro", "rules", "tokns"]],
  [{ ...BUCKET, limitInCall: { max: -1 } }, ["limitInCall", "max"]],
  [{ ...BUCKET, notify: [0.5, 1.1] }, ["notify", "1"]],
  [{ ...BUCKET, onFailure: { limit: 0, window: "1s" } }, ["onFailure", "limit"]],
  [{ ...BUCKET, fair: true, weights: { "gold.x:*": 0 } }, ["weights", "gold.x:*"]],
])("a policy that is written is refused with the place of what is wrong: %j", (fields, path) => {
  expect(problemsOfWrite("api", fields)).toEqual([{ path, detail: expect.any(String) as string }]);
});

describe("a limit of calls that no rule can count is refused when the policy is written", () => {
  const log = { algorithm: "sliding-log", limit: 1_000, window: "30d" };
  test.each([
    [
      "a log of many units",
      { ...log, limitInCall: { max: 1e9 } },
      'limitInCall.max is 1000000000: must be an integer from 1 to 1000000, the largest limit that algorithm "sliding-log" can count',
    ],
    [
      "a plan of a longer window",
      { ...log, window: "1s", limitInCall: { max: 1e9 }, plans: { pro: { window: "1d" } } },
      'limitInCall.max is 1000000000: must be an integer from 1 to 1000000, the largest limit that algorithm "sliding-log" can count in the plan pro',
    ],
    [
      "one of several rules",
      { rules: { ...RULES, tokens: { ...log, unit: "tokens" } }, limitInCall: { max: 2e6 } },
      'limitInCall.max is 2000000: must be an integer from 1 to 1000000, the largest limit that algorithm "sliding-log" can count',
    ],
    [
      "a bucket",
      { ...BUCKET, window: "365d", limitInCall: { max: 1e9 } },
      'limitInCall.max is 1000000000: must be an integer from 1 to 285616, the largest limit that algorithm "token-bucket" can count',
    ],
    [
      "a limit that is too small for another field",
      { algorithm: "fixed-window", limit: 100, window: "1h", carry: 500, limitInCall: { max: 5 } },
      'limitInCall.max is 5: must be a limit that algorithm "fixed-window" can have (carry is 500: must be at most 12 times the limit: 60)',
    ],
    [
      "no limit at all",
      { algorithm: "unlimited", limitInCall: { max: 5 } },
      'limitInCall.max is 5: must be left out: algorithm "unlimited" has no limit',
    ],
  ])("%s", (_, fields, detail) => {
    expect(problemsOfWrite("api", fields)).toEqual([{ path: ["limitInCall", "max"], detail }]);
    expect(() => parseDeployment({ policies: { api: fields } })).toThrow(detail);
    // It may be stored, and in force, since an earlier version.
    expect(problemsOf(fields)).toEqual([]);
  });
  test("a window of a plan is quoted as it was written, with the limit that can be counted, which is allowed", () => {
    const fields = (limit: number) => ({ ...log, plans: { m: { limit, window: "1 h" } } });
    expect(problemsOfWrite("api", fields(9_000))).toEqual([
      {
        path: ["plans", "m", "window"],
        detail:
          'plans.m: window is "1 h": must be longer, or the limit at most 1388: algorithm "sliding-log" counts at ' +
          "most 1000000 units, here also in the longest window of the policy's plans, 30d",
      },
    ]);
    expect(problemsOfWrite("api", fields(1_388))).toEqual([]);
    expect(problemsOfWrite("api", fields(1_389))).toHaveLength(1);
    const rules = { ...RULES, tokens: { ...log, unit: "tokens" } };
    const named = { rules, plans: { m: { rules: { tokens: { limit: 9_000, window: "60m" } } } } };
    expect(problemsOfWrite("api", named)[0]?.detail).toContain(
      'rules.tokens.window is "60m": must be longer',
    );
  });
  test("the largest that it names is allowed, and a rule without a limit beside others stays", () => {
    expect(problemsOfWrite("api", { ...log, limitInCall: { max: 1e6 } })).toEqual([]);
    const fields = { rules: { ...RULES, any: { algorithm: "unlimited" } }, limitInCall: { max: 1e6 } };
    expect(problemsOfWrite("api", fields)).toEqual([]);
    const limited = namedPlan(parsed(fields), withCallLimits("", { requests: 7 }));
    expect(limited && capacities(limited)).toEqual([7, 1_000, 1_000_000_000]);
  });
});

test("limits of a call count instead of the plan's, and the same ones are the same policy", () => {
  const policy = parsed({ ...BUCKET, limitInCall: { max: 1_000 }, plans: { pro: { window: "1m" } } });
  const pro = namedPlan(policy, withCallLimits("pro", { requests: 7 }));
  expect(pro?.rules[0].quota).toEqual({ units: 7, windowMs: 60_000 });
  expect(pro).toBe(namedPlan(policy, withCallLimits("pro", { requests: 7 })));
  expect(pro && planIn(pro)).toEqual({ plan: "pro" });
  // A call that brings none names no other plan.
  expect(withCallLimits("pro", {})).toBe("pro");
  expect(capacities(planOf(policy, withCallLimits("", { requests: 7 })))).toEqual([7]);
  expect(withCallLimits("", { b: 1, a: 2 })).toBe(withCallLimits("", { a: 2, b: 1 }));
});

test("an override comes before a plan, and a factor multiplies what the plan says", () => {
  const { policies, tables, regions } = parseDeployment({
    policies: { api: { ...BUCKET, window: 1_000, plans: { pro: { limit: 1_000, burst: 5_000 } } } },
  });
  const inForce = new PoliciesInForce({ policies, tables, regions });
  inForce.apply({
    revision: 1,
    isWhole: true,
    policies: [{ name: "api", version: 1 }],
    overrides: [
      { policy: "api", pattern: "own", fields: { burst: 70 } },
      { policy: "api", pattern: "twice", fields: { multiply: 2 } },
    ],
  } as never);
  const api = inForce.named.get("api");
  const burstOf = (key: string, plan: string) => {
    const found = api?.overrides?.find(key, 0) ?? api;
    return found && capacities(planOf(found, plan))[0];
  };
  expect([burstOf("other", ""), burstOf("other", "pro")]).toEqual([200, 5_000]);
  expect([burstOf("own", ""), burstOf("own", "pro")]).toEqual([70, 70]);
  expect([burstOf("twice", ""), burstOf("twice", "pro")]).toEqual([400, 10_000]);
});

test("the later version keeps the plan that a key has, and an older one changes nothing", () => {
  const pro = { version: 2, plan: "pro" };
  expect(later(pro, { version: 3 })).toEqual({ version: 3, plan: "pro" });
  expect(later(pro, { version: 3, plan: "" })).toEqual({ version: 3, plan: "" });
  expect(later(pro, { version: 2, plan: "free" })).toEqual({ version: 2, plan: "free" });
  expect(later(pro, { version: 1, plan: "free" })).toBe(pro);
  expect(later(pro, { version: 2 })).toBe(pro);
  expect(later(pro, pro)).toBe(pro);
  expect(later(undefined, { version: 0 })).toBeUndefined();
  expect(later(undefined, { version: 0, plan: "" })).toEqual({ version: 0, plan: "" });
});
