import { expect, test } from "vitest";
import { parsePolicies } from "../../../core/policies/parse-policies.ts";

const parse = (fields: object) => parsePolicies({ a: { algorithm: "unlimited", ...fields } }).get("a");
const SLOTS = { algorithm: "concurrency", limit: 10 };

test("nothing is shed unless the policy says so", () => {
  expect(parse({})?.shedding).toBeUndefined();
  expect(parse({ shed: false })?.shedding).toBeUndefined();
});

test("the usual figures, and figures of one's own", () => {
  const usual = { good: 0.7, bad: 0.8, afterMs: 28_000, overMs: 120_000 };
  expect(parse({ shed: true })?.shedding).toEqual({ ...usual, by: "reports" });
  expect(parse({ ...SLOTS, shed: {} })?.shedding).toEqual({ ...usual, by: "leases" });
  const own = { good: 0.5, bad: 0.9, after: "1ms", over: "20s", by: "reports" };
  const { after: _, over: _over, ...shares } = own;
  expect(parse({ ...SLOTS, shed: own })?.shedding).toEqual({ ...shares, afterMs: 1, overMs: 20_000 });
});

test.each([
  [{ shed: 1 }, "shed is 1: must be true, false, or a table { good, bad, after, over, by }"],
  [{ shed: { good: 70 } }, "shed.good is 70: must be a number above 0 and below 1"],
  [{ shed: { good: 0.9 } }, "shed.bad is 0.8: must be above the good utilization, which is 0.9"],
  [{ shed: { after: "soon" } }, 'shed.after is "soon": must be'],
  [{ shed: { over: "30s" } }, 'shed.over is "30s": must be at least 80s with bad - good = 0.1'],
  [{ shed: { by: "leases" } }, 'shed.by is "leases": must be "reports", since no rule leases units'],
  [{ shed: { worse: 1 } }, "shed: worse is not a field: there are good, bad, after, over, by"],
  [
    { algorithm: "token-bucket", limit: 1, window: "1s", pool: "redis", shed: true },
    'shed is true: must be left out with pool = "redis"',
  ],
])("%j is refused", (fields, said) => {
  expect(() => parse(fields)).toThrow(said);
});
