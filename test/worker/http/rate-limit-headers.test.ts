import { describe, expect, test } from "vitest";
import type { RuleDecision } from "../../../core/protocol/answers.ts";
import { degradedDecision, publicDecision } from "../../../core/protocol/decision.ts";
import { decisionHeaders } from "../../../worker/api/responses.ts";
import { parsePolicies } from "../../support/milliseconds.ts";

const BUCKET = { algorithm: "token-bucket", limit: 100, window: "1s", burst: 500 };
const NOW_MS = 1_700_000_000_001;

function policyOf(fields: object) {
  const policy = parsePolicies({ p: fields }).get("p");
  if (policy === undefined) throw new Error("no policy");
  return policy;
}

/** The headers about limits, of a decision in which each rule said this. */
function headersOf(fields: object, ...said: readonly Partial<RuleDecision>[]) {
  const policy = policyOf(fields);
  const rules = policy.rules.map(({ name, capacity }, index): RuleDecision => ({
    name,
    success: true,
    limit: capacity,
    remaining: 499,
    resetAfterMs: 10,
    retryAfterMs: 0,
    reason: "ok",
    ...said[index],
  }));
  const all = decisionHeaders(policy, publicDecision(policy, "k", { rules }), () => NOW_MS);
  const { "content-type": _, "cache-control": __, ...headers } = all;
  return headers;
}

const DENIED = {
  success: false,
  remaining: 2,
  resetAfterMs: 5_000,
  reason: "quota",
  retryAfterMs: 30,
} as const;

describe("draft 7", () => {
  test("tells limit, remaining and reset, and the quota with its window and its burst", () => {
    expect(headersOf({ ...BUCKET, headers: "draft-7" })).toEqual({
      "RateLimit-Policy": "100;w=1;burst=500",
      RateLimit: "limit=500, remaining=499, reset=1",
    });
    expect(headersOf({ algorithm: "sliding-log", limit: 5, window: "15m", headers: ["draft-7"] })).toEqual({
      "RateLimit-Policy": "5;w=900",
      RateLimit: "limit=5, remaining=499, reset=1",
    });
  });

  test("a denial resets when it may be made again, as Retry-After says", () => {
    expect(headersOf({ ...BUCKET, headers: "draft-7" }, DENIED)).toMatchObject({
      RateLimit: "limit=500, remaining=2, reset=1",
      "Retry-After": "1",
    });
    const never = { ...DENIED, reason: "cost-over-limit", retryAfterMs: null } as const;
    const headers = headersOf({ ...BUCKET, headers: "draft-7" }, never);
    expect(headers).toMatchObject({ RateLimit: "limit=500, remaining=2, reset=5" });
    expect(headers).not.toHaveProperty("Retry-After");
  });

  test("several rules are several quotas, and the figures are those of the rule that binds", () => {
    const log = { algorithm: "sliding-log", window: "1h" };
    const rules = { burst: BUCKET, hour: { ...log, limit: 1_000 }, same: { ...log, limit: 100 } };
    expect(headersOf({ rules, headers: "draft-7" }, {}, { remaining: 7, resetAfterMs: 60_000 })).toEqual({
      // Two quotas of as many units are not allowed, so the third rule is not listed.
      "RateLimit-Policy": "100;w=1;burst=500, 1000;w=3600",
      RateLimit: "limit=1000, remaining=7, reset=60",
    });
  });

  test("a rule without a window is no quota", () => {
    expect(headersOf({ algorithm: "concurrency", limit: 3, headers: "draft-7" })).toEqual({
      RateLimit: "limit=3, remaining=499, reset=1",
    });
  });
});

describe("X-RateLimit", () => {
  test("its reset is an instant in Unix seconds, rounded up; or the seconds until then", () => {
    const told = { remaining: 7, resetAfterMs: 60_000 };
    expect(headersOf({ ...BUCKET, headers: "x-ratelimit" }, told)).toEqual({
      "X-RateLimit-Limit": "500",
      "X-RateLimit-Remaining": "7",
      "X-RateLimit-Reset": "1700000061",
    });
    expect(headersOf({ ...BUCKET, headers: "x-ratelimit-delta" }, told)).toEqual({
      "X-RateLimit-Limit": "500",
      "X-RateLimit-Remaining": "7",
      "X-RateLimit-Reset": "60",
    });
  });

  test("a denial resets when it may be made again", () => {
    const denied = { ...DENIED, retryAfterMs: 2_500 };
    expect(headersOf({ ...BUCKET, headers: "x-ratelimit" }, denied)).toMatchObject({
      "X-RateLimit-Reset": "1700000003",
      "Retry-After": "3",
    });
    expect(headersOf({ ...BUCKET, headers: "x-ratelimit-delta" }, denied)).toMatchObject({
      "X-RateLimit-Reset": "3",
    });
  });
});

test("a policy may have two styles, and without the field it has draft 11", () => {
  const headers = headersOf({ ...BUCKET, headers: ["x-ratelimit-delta", "draft-11"] });
  expect(headers).toEqual({
    ...headersOf(BUCKET),
    "X-RateLimit-Limit": "500",
    "X-RateLimit-Remaining": "499",
    "X-RateLimit-Reset": "1",
  });
  expect(headersOf(BUCKET)).toEqual({
    "RateLimit-Policy": '"p";q=100;w=1',
    RateLimit: '"p";r=499;t=1',
  });
});

test("a degraded decision has no figures in any style", () => {
  for (const [style, names] of [
    ["draft-7", ["RateLimit-Policy"]],
    ["x-ratelimit", []],
    ["x-ratelimit-delta", []],
    ["draft-11", ["RateLimit-Policy"]],
  ] as const) {
    const policy = policyOf({ ...BUCKET, headers: style });
    const headers = decisionHeaders(policy, degradedDecision(policy, "k"), () => NOW_MS);
    expect(Object.keys(headers)).toEqual(["content-type", "cache-control", ...names]);
  }
});
