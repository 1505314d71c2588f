import { expect, test } from "vitest";
import type { Policy } from "../../../core/policies/policy.ts";
import { type Decision, degradedDecision, publicDecision } from "../../../core/protocol/decision.ts";
import { decisionHeaders as headersAt } from "../../../worker/api/responses.ts";
import { parsePolicies } from "../../support/milliseconds.ts";

const decisionHeaders = (policy: Policy, decision: Decision) => headersAt(policy, decision, () => 0);

function headersOf(
  fields: { limit: number; window: number | string },
  decided = { remaining: 1, resetAfterMs: 1, retryAfterMs: 0 as number | null },
) {
  const policy = parsePolicies({ p: { algorithm: "token-bucket", ...fields } }).get("p");
  if (policy === undefined) throw new Error("no policy");
  const success = decided.retryAfterMs === 0;
  const rule = {
    name: "p",
    success,
    limit: 5,
    reason: success ? ("ok" as const) : ("quota" as const),
    ...decided,
  };
  return decisionHeaders(policy, publicDecision(policy, "k", { rules: [rule] }));
}

test.each([
  [{ limit: 100, window: "1s" }, '"p";q=100;w=1'],
  [{ limit: 5, window: "15m" }, '"p";q=5;w=900'],
  [{ limit: 10, window: 250 }, '"p";q=40;w=1'],
  [{ limit: 100, window: 1_500 }, '"p";q=133;w=2'],
  [{ limit: 1, window: "30d" }, '"p";q=1;w=2592000'],
])("%j is announced as %s: whole seconds, at the same rate or just below", (fields, header) => {
  expect(headersOf(fields)["RateLimit-Policy"]).toBe(header);
});

test("seconds are rounded up, so that who waits for them is not refused again", () => {
  const decided = { remaining: 0, resetAfterMs: 2_001, retryAfterMs: 1_001 };
  expect(headersOf({ limit: 5, window: 1_000 }, decided)).toMatchObject({
    RateLimit: '"p";r=0;t=3',
    "Retry-After": "2",
  });
});

test("what never comes back has no reset, in any style", () => {
  const given = (headers: string) =>
    parsePolicies({ p: { algorithm: "credits", limit: 5, headers } }).get("p") as Policy;
  const rule = {
    name: "p",
    success: false,
    limit: 5,
    remaining: 0,
    retryAfterMs: null,
    reason: "quota",
  } as const;
  const styles = ["draft-11", "draft-7", "x-ratelimit", "x-ratelimit-delta"].map((style) => {
    const decision = publicDecision(given(style), "k", {
      rules: [{ ...rule, resetAfterMs: 2 ** 52 - 1e13 }],
    });
    return decisionHeaders(given(style), decision);
  });
  const x = { "X-RateLimit-Limit": "5", "X-RateLimit-Remaining": "0" };
  const quotas = [{ RateLimit: '"p";r=0' }, { RateLimit: "limit=5, remaining=0" }, x, x];
  expect(styles).toMatchObject(quotas);
  for (const each of styles) expect(each).not.toHaveProperty("X-RateLimit-Reset");
});

test("no Retry-After when admitted, when waiting never helps, or when nobody knows", () => {
  expect(headersOf({ limit: 5, window: 1_000 })).not.toHaveProperty("Retry-After");
  const never = { remaining: 5, resetAfterMs: 0, retryAfterMs: null };
  expect(headersOf({ limit: 5, window: 1_000 }, never)).not.toHaveProperty("Retry-After");
  const policy = [...parsePolicies({ p: { algorithm: "token-bucket", limit: 5, window: 1 } }).values()][0];
  if (policy === undefined) throw new Error("no policy");
  const degraded = decisionHeaders(policy, degradedDecision(policy, "k"));
  expect(degraded).not.toHaveProperty("Retry-After");
  expect(degraded).not.toHaveProperty("RateLimit");
});
