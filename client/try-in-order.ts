/** The order of a call that charges the first check that admits: the worker and clients in their callers' processes keep it. */
import type { AnyDecision, Decision } from "../core/protocol/decision.ts";
import { type Answered, Problem } from "../core/protocol/problems.ts";

/** Tries checks until one admits. A problem ends the call: nothing was charged, as all checks before have denied. */
export async function tryInOrder<Check>(
  checks: readonly Check[],
  decide: (check: Check) => Decision | Problem | Promise<Decision | Problem>,
): Answered<AnyDecision> {
  const decisions: Decision[] = [];
  for (const [index, check] of checks.entries()) {
    const decided = decide(check);
    const decision = decided instanceof Promise ? await decided : decided;
    if (decision instanceof Problem) return decision;
    decisions.push(decision);
    if (decision.success) return { success: true, chosen: index, decisions };
    // Without an answer it is not known whether the check was charged: a second one must not be.
    if (decision.source === "fallback") break;
  }
  return { success: false, chosen: null, decisions };
}
