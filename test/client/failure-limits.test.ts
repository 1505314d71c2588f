import { expect, test } from "vitest";
import { FailureLimits } from "../../client/failure-limits.ts";
import { parsePolicy } from "../../core/policies/parse-policy.ts";
import type { Policy } from "../../core/policies/policy.ts";

const parsed = (onFailure: unknown) =>
  parsePolicy("p", { algorithm: "token-bucket", limit: 100, window: "1s", onFailure });
const policyOf = (onFailure: unknown): Policy => {
  const policy = parsed(onFailure);
  if ("problems" in policy) throw new Error(policy.problems.join());
  return policy;
};
const POLICY = policyOf({ limit: 4, window: "10s" });

test("in no time more is admitted than the limit and its rate, and each wait is exact", () => {
  const limits = new FailureLimits();
  let admitted = 0;
  for (let nowMs = 0; nowMs < 30_000;) {
    const { success, retryAfterMs } = limits.decide(POLICY, "a", 1, nowMs);
    if (success) admitted += 1;
    else {
      expect(limits.decide(POLICY, "a", 1, nowMs + Number(retryAfterMs) - 1).success).toBe(false);
      nowMs += Number(retryAfterMs);
    }
    expect(admitted).toBeLessThanOrEqual(4 + (4 * nowMs) / 10_000);
  }
  expect(admitted).toBe(4 + 11);
});

test("of more keys than the bound the one that came least recently is forgotten", () => {
  const limits = new FailureLimits(2);
  for (const key of ["a", "b", "a", "c"]) limits.decide(POLICY, key, 2, 0);
  expect(limits.decide(POLICY, "a", 0, 0).remaining).toBe(0);
  expect(limits.decide(POLICY, "c", 0, 0).remaining).toBe(2);
  expect(limits.decide(POLICY, "b", 4, 0).success).toBe(true);
});

test("what is no cost or no key is denied and takes nothing", () => {
  const limits = new FailureLimits();
  for (const cost of [-5, 0.5, Number.NaN, "2" as never, null as never])
    expect(limits.decide(POLICY, "a", cost, 0)).toMatchObject({ success: false, reason: "degraded" });
  expect(limits.decide(POLICY, "a".repeat(513), 1, 0).success).toBe(false);
  expect(limits.decide(POLICY, "a", 4, 0).success).toBe(true);
});

test("a policy says what is wrong with it", () => {
  for (const onFailure of [
    {},
    { limit: 0, window: "1s" },
    { limit: 5 },
    { limit: 5, window: 10 },
    "shut",
    [5],
  ])
    expect(parsed(onFailure)).toMatchObject({
      problems: [
        expect.stringMatching(/^onFailure is .*must be "closed", "open", "local", or a table \{ limit/),
      ],
    });
  expect(parsed({ limit: 5, window: "1s", burst: 3 })).toHaveProperty("problems");
  expect(policyOf("open")).not.toHaveProperty("failureLimit");
});
