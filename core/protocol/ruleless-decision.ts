/** Decisions that no rule has made: by `onFailure`, load shedding, an override, or a problem of one check of many. */
import { MAX_UNITS } from "../algorithms/algorithm.ts";
import { type AppliedOverride, type PolicyView, publicName } from "../policies/policy.ts";
import { planIn } from "../policies/seen-policy.ts";
import type { Shed } from "./answers.ts";
import { blockedForMs, type Decision } from "./decision.ts";

/** The policy's `onFailure`, when the object did not answer: without `remaining` and waits. */
export function degradedDecision(policy: PolicyView, key: string): Decision {
  const success = policy.shadow || policy.onFailure === "open";
  return { ...withoutRules(policy, key), success, reason: "degraded", source: "fallback" };
}

/** An immediate retry would only add load to busy machines. */
const MIN_RETRY_MS = 1_000;

export function shedDecision(policy: PolicyView, key: string, { restoredInMs }: Shed): Decision {
  return { ...withoutRules(policy, key), retryAfterMs: Math.max(MIN_RETRY_MS, restoredInMs), reason: "shed" };
}

export function refusedDecision(
  policy: PolicyView,
  key: string,
  { status, code, detail }: NonNullable<Decision["problem"]>,
): Decision {
  return { ...withoutRules(policy, key), reason: "refused", problem: { status, code, detail } };
}

/** The decision on a key whose override blocks it or lifts its limit. Nothing is counted. */
export function effectDecision(
  policy: PolicyView,
  key: string,
  { pattern, effect, endsAtMs }: AppliedOverride,
  nowMs: number,
): Decision {
  const isBlocked = effect === "blocked";
  const units = isBlocked ? 0 : MAX_UNITS;
  const waitMs = isBlocked ? blockedForMs(endsAtMs, nowMs) : 0;
  const success = !isBlocked || policy.shadow;
  return {
    success,
    policy: publicName(policy.name),
    key,
    limit: units,
    remaining: units,
    resetAfterMs: waitMs ?? 0,
    retryAfterMs: success ? 0 : waitMs,
    reason: !isBlocked ? "ok" : success ? "shadow" : "blocked",
    source: "isolate",
    rules: [],
    ...(isBlocked && { violated: [] }),
    override: pattern,
  };
}

function withoutRules(policy: PolicyView, key: string) {
  const limit = Math.min(...policy.rules.map(({ capacity }) => capacity));
  const source = "isolate" as const;
  const place = { policy: publicName(policy.name), key };
  return { success: false, ...place, limit, source, rules: [], ...planIn(policy) };
}
