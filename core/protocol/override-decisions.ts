import type { HeldPolicy } from "../policies/held-policy.ts";
import type { AppliedOverride } from "../policies/in-force.ts";
/** Decisions on keys that have an override (core/catalog/overrides.ts). */
import { MOST_UNITS } from "../policies/most-units.ts";
import { publicName } from "../policies/policy-names.ts";
import type { Decision } from "./decision.ts";

/** The decision on a key that is blocked, or that has no limit. Nobody is asked, and nothing is counted. */
export function effectDecision(
  policy: HeldPolicy,
  key: string,
  { pattern, effect, endsAtMs }: AppliedOverride,
  nowMs: number,
): Decision {
  const place = { policy: publicName(policy.name), key };
  if (effect !== "blocked")
    return {
      success: true,
      ...place,
      limit: MOST_UNITS,
      remaining: MOST_UNITS,
      resetAfterMs: 0,
      retryAfterMs: 0,
      reason: "ok",
      source: "isolate",
      rules: [],
      override: pattern,
    };
  const isAdmitted = policy.shadow;
  return {
    success: isAdmitted,
    ...place,
    limit: 0,
    remaining: 0,
    // Of a block without an end nobody knows when it is over.
    resetAfterMs: blockedForMs(endsAtMs, nowMs) ?? 0,
    retryAfterMs: isAdmitted ? 0 : blockedForMs(endsAtMs, nowMs),
    reason: isAdmitted ? "shadow" : "blocked",
    source: "isolate",
    rules: [],
    violated: [],
    override: pattern,
  };
}

/** The decision with the override that applied. Of a key that is blocked an object knows only that its limit is 0. */
export function withOverride(
  decision: Decision,
  { pattern, effect, endsAtMs }: AppliedOverride,
  nowMs: number,
): Decision {
  if (effect !== "blocked" || decision.success) return { ...decision, override: pattern };
  return { ...decision, reason: "blocked", retryAfterMs: blockedForMs(endsAtMs, nowMs), override: pattern };
}

/** How long a key stays blocked; `null`: until somebody takes the override away. */
function blockedForMs(endsAtMs: number | undefined, nowMs: number): number | null {
  return endsAtMs === undefined ? null : Math.max(1, endsAtMs - nowMs);
}
