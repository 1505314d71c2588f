import type { HeldPolicy } from "./held-policy.ts";
import type { Policy } from "./policy.ts";

/** The policy as a call of this priority sees it; `undefined`: the priority of calls that say none. */
export function seenBy(policy: Policy, priority: string | undefined): Policy;
export function seenBy(policy: HeldPolicy, priority: string | undefined): HeldPolicy;
export function seenBy(policy: HeldPolicy, priority: string | undefined): HeldPolicy {
  const { usual, seen } = policy.priorities;
  return seen.get(priority ?? usual) ?? policy;
}
