import { expect, test } from "vitest";
import { DENIAL_REASONS } from "../../../core/algorithms/algorithm.ts";
import {
  CALL_REASONS,
  callerDecision,
  type Decision,
  effectDecision,
} from "../../../core/protocol/decision.ts";
import { deniedBody } from "../../../core/protocol/denied-body.ts";
import { setQuotaHeaders } from "../../../core/protocol/headers.ts";
import { parsePolicies } from "../../support/milliseconds.ts";

const denied = (reason: Decision["reason"]): Decision => ({
  success: false,
  policy: "api",
  key: "k",
  limit: 1,
  retryAfterMs: null,
  reason,
  source: "isolate",
  rules: [],
});

test("only a cost over the limit is called that, and a blocked key is called blocked", () => {
  for (const reason of [...DENIAL_REASONS, ...CALL_REASONS].filter(
    (each) => each !== "degraded" && each !== "shed",
  ))
    expect(deniedBody(denied(reason)).detail.includes("over the limit"), reason).toBe(
      reason === "cost-over-limit",
    );
  expect(deniedBody(denied("blocked")).detail).toBe("the key is blocked, and no wait ends that");
});

test("a block says when it is over, and one without an end that nothing returns", () => {
  const nowMs = 1_760_000_000_000;
  const [policy] = parsePolicies({
    p: { limit: 5, window: 1_000, algorithm: "token-bucket", headers: ["x-ratelimit"] },
  }).values();
  if (policy === undefined) throw new Error("the policy is there");
  const rule = { name: "p", success: false, limit: 5, remaining: 0, resetAfterMs: 7, retryAfterMs: 7 };
  const rules = [{ ...rule, reason: "quota" } as const];
  for (const [ends, resetAfterMs, retryAfterMs, reset] of [
    [{}, 2 ** 52 - nowMs, null, []],
    [{ endsAtMs: nowMs + 5_000 }, 5_000, 5_000, ["1760000005"]],
  ] as const) {
    const override = { pattern: "k", effect: "blocked", ...ends } as const;
    const said = { reason: "blocked", override: "k", resetAfterMs, retryAfterMs };
    expect(effectDecision(policy, "k", override, nowMs)).toMatchObject(said);
    const ofRules = callerDecision(
      { ...policy, override },
      "k",
      { rules },
      "object",
      Math.random,
      () => nowMs,
    );
    expect(ofRules).toMatchObject(said);
    const headers = new Map<string, string>();
    setQuotaHeaders(headers, policy, ofRules, () => nowMs);
    expect([headers.get("X-RateLimit-Reset") ?? []].flat()).toEqual(reset);
  }
});
