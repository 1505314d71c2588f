import { randomFraction, readClockMs } from "../core/clock.ts";
import type { HeldPolicy } from "../core/policies/held-policy.ts";
import type { Decided } from "../core/protocol/answers.ts";
import { publicDecision, type Decision } from "../core/protocol/decision.ts";
import { withOverride } from "../core/protocol/override-decisions.ts";
import { withJitter } from "../core/protocol/retry-jitter.ts";

/** An answer to a message; `told`: a limiter that is elsewhere has decided it, by figures that are not known here. */
export type Heard = Decided & { readonly told?: Decision };

/** The decision of a call as its caller is told it: with the jitter of the policy, if it has one. */
export function toldDecision(
  policy: HeldPolicy,
  key: string,
  decided: Decided,
  decidedBy?: "isolate" | "object",
): Decision {
  const decision = withJitter(policy, publicDecision(policy, key, decided, decidedBy), randomFraction);
  return policy.override === undefined ? decision : withOverride(decision, policy.override, readClockMs());
}
