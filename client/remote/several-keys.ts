/** Calls on several keys in a caller's process: what is decided here, and what is answered without the limiter. */
import { normaliseKey } from "../../core/catalog/keys.ts";
import { type Cost, forPriority, type PolicyView, takesNothing } from "../../core/policies/policy.ts";
import { MAX_CHECKS } from "../../core/protocol/calls.ts";
import type { AllDecisions, AnyDecision, Decision } from "../../core/protocol/decision.ts";
import { type Answered, Problem } from "../../core/protocol/problems.ts";
import type { DescribedPolicy } from "../../core/protocol/reservation-messages.ts";
import type { LimitAnyRequest, LimitRequest } from "../limiter.ts";
import { plainCall, type PlainCall } from "../local-limiter.ts";
import { tryInOrder } from "../try-in-order.ts";
import { isOf, seenBy } from "./described-policies.ts";

/** The decision on a check without an answer of the limiter. */
type Failed = (check: LimitRequest) => Decision;

/** If the limiter does not answer, each check is answered as its policy says. */
export function allFailed(checks: readonly LimitRequest[], failed: Failed): AllDecisions {
  const decisions = checks.map(failed);
  return { success: decisions.every(({ success }) => success), decisions };
}

/** The same of a call that charges the first check that admits: the first one is not answered, which ends the call. */
export function anyFailed(checks: readonly LimitRequest[], failed: Failed): AnyDecision {
  const { success, decisions } = allFailed(checks.slice(0, 1), failed);
  const isChosen = success && decisions.length > 0;
  return { success: isChosen, chosen: isChosen ? 0 : null, decisions };
}

interface LocalCall {
  readonly policy: PolicyView;
  readonly key: string;
  readonly cost: Cost;
}

/**
 * Tries the checks of a plain call one after the other, as `limit`: without a message for those that units or denials held
 * here decide. `undefined`: nothing was charged, and the limiter has to make the call.
 */
export async function tryHere(
  { checks, priority, ...more }: LimitAnyRequest,
  policyOf: (name: string) => DescribedPolicy | undefined,
  decide: (policy: PolicyView, key: string, cost: Cost) => Decision | Answered<Decision>,
): Promise<AnyDecision | undefined> {
  const isPlain = Object.values(more).every((value) => value === undefined) && Array.isArray(checks);
  if (!isPlain || checks.length === 0 || checks.length > MAX_CHECKS) return undefined;
  const calls: LocalCall[] = [];
  for (const check of checks) {
    const call = plainCall({ ...check, priority });
    const policy = call && seenBy(policyOf(call.policy), call);
    const local = policy && localCall(policy, call);
    if (local === undefined) return undefined;
    calls.push(local);
  }
  const answer = await tryInOrder(calls, ({ policy, key, cost }) => decide(policy, key, cost));
  return answer instanceof Problem ? undefined : answer;
}

/** A call that units or denials held here may decide. */
function localCall(policy: DescribedPolicy, call: PlainCall): LocalCall | undefined {
  const { cost, priority } = call;
  if (!policy.localDecisions.denies || takesNothing(policy, cost)) return undefined;
  const key = isOf(policy, call) ? normaliseKey(policy, call.key) : undefined;
  return key === undefined ? undefined : { policy: forPriority(policy, priority), key, cost };
}
