import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";
import { forPriority } from "../../../core/policies/policy.ts";

const BUCKET = { algorithm: "token-bucket", limit: 100, window: "1s" };
const parse = (fields: object) => parsePolicies({ a: { ...BUCKET, ...fields } }).get("a");
const capacitiesOf = (fields: object, priorities: readonly (string | undefined)[]) => {
  const policy = parse(fields);
  return priorities.map((name) => policy && forPriority(policy, name).rules.map(({ capacity }) => capacity));
};

test("calls see what is not kept for more important ones, and a call that says nothing is normal", () => {
  const reserve = { critical: "20%", high: "12.5 %" };
  const seen = capacitiesOf({ reserve }, ["critical", "high", "normal", "low", undefined]);
  expect(seen).toEqual([[100], [80], [67], [67], [67]]);
});

test("nothing is kept unless the policy says so", () => {
  expect(capacitiesOf({}, ["critical", "low", undefined])).toEqual([[100], [100], [100]]);
  expect(parse({})?.priorities.seen.size).toBe(0);
});

test("a policy may have names of its own, and say which one is usual", () => {
  const priorities = ["paid", "trial", "free"];
  const own = { priorities, reserve: { paid: "50%" } };
  expect(parse(own)?.priorities.usual).toBe("free");
  expect(parse({ ...own, defaultPriority: "paid" })?.priorities.usual).toBe("paid");
  expect(capacitiesOf({ ...own, defaultPriority: "paid" }, ["paid", "trial", undefined])).toEqual([
    [100],
    [50],
    [100],
  ]);
});

test("parts are kept of every rule, rounded up", () => {
  const rules = { few: { ...BUCKET, limit: 3 }, slots: { algorithm: "concurrency", limit: 10 } };
  const policy = parsePolicies({ a: { rules, reserve: { high: "20%", critical: "10%" } } }).get("a");
  expect(policy && forPriority(policy, "low").rules.map(({ capacity }) => capacity)).toEqual([2, 7]);
});

test.each([
  [{ reserve: { urgent: "20%" } }, 'a name in reserve is "urgent": must be one of "critical", "high"'],
  [{ reserve: { low: "20%" } }, 'reserve.low is "20%": must be left out: nothing is less important'],
  [{ reserve: { high: 20 } }, 'reserve.high is 20: must be a part such as "20%", above 0 and below 100%'],
  [{ reserve: { high: "0%" } }, 'reserve.high is "0%"'],
  [{ reserve: { high: "101%" } }, 'reserve.high is "101%"'],
  [{ reserve: { critical: "60%", high: "40%" } }, "such that normal calls see at least one unit of a"],
  [{ limit: 1, reserve: { critical: "1%" } }, "such that high calls see at least one unit of a"],
  [{ reserve: "20%" }, 'reserve is "20%": must be a table of parts by priority'],
  [{ priorities: ["one"] }, "priorities is an array of 1: must be a list of 2 to 8 different names"],
  [{ priorities: ["a", "a"] }, "priorities is an array of 2"],
  [{ priorities: ["a", "b c"] }, "priorities is an array of 2"],
  [{ priorities: "high" }, 'priorities is "high"'],
  [{ defaultPriority: "middle" }, 'defaultPriority is "middle": must be one of "critical"'],
  [{ ageing: "soon" }, 'ageing is "soon": must be a duration'],
  [{ pool: "redis", reserve: { high: "20%" } }, "reserve is an object: must be left out with pool"],
])("what is wrong with %j is said", (fields, error) => {
  expect(() => parse(fields)).toThrow(error);
});

test.each(["adaptive-concurrency", "credits"])(
  "nothing is kept of %s, whose limit is not what a key has",
  (algorithm) => {
    const policies = { a: { algorithm, limit: 20, reserve: { high: "20%" } } };
    expect(() => parsePolicies(policies)).toThrow(`left out with algorithm "${algorithm}"`);
  },
);
