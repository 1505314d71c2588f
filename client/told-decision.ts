import { randomFraction } from "../core/clock.ts";
import type { HeldPolicy } from "../core/policies/held-policy.ts";
import type { Decided } from "../core/protocol/answers.ts";
import { publicDecision, type Decision } from "../core/protocol/decision.ts";
import { withJitter } from "../core/protocol/retry-jitter.ts";

/** The decision of a call as its caller is told it: with the jitter of the policy, if it has one. */
export function toldDecision(
  policy: HeldPolicy,
  key: string,
  decided: Decided,
  decidedBy?: "isolate" | "object",
): Decision {
  return withJitter(policy, publicDecision(policy, key, decided, decidedBy), randomFraction);
}
