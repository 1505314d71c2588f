/** The rules of a key as a call sees them: by its plan, priority and group. */
import { underRule } from "../../core/accounts/account.ts";
import { type RuleAccount, seenByGroup } from "../../core/accounts/hold.ts";
import { forPriority, type Policy } from "../../core/policies/policy.ts";
import { planOf } from "../../core/policies/seen-policy.ts";
import type { SeenBy } from "../../core/protocol/calls.ts";
import type { ChosenVersion } from "./versions.ts";

/** The policy by the plan that a call names. While it waits, others may have named other plans for the key. */
export function policyFor({ policy, whole, inForce }: ChosenVersion, { inForce: named }: SeenBy): Policy {
  const plan = named?.plan;
  return plan === undefined || plan === inForce?.plan ? policy : planOf(whole, plan);
}

/**
 * The rules with their accounts. A plan's rules are the policy's with other figures, so the accounts can be read under them,
 * and also be written under the plan in force after a call has taken units.
 */
export function seenRules<State extends RuleAccount>(
  ruleStates: readonly State[],
  chosen: ChosenVersion,
  call: SeenBy,
  nowMs: number,
): readonly State[] {
  const { priority, group, namedBy } = call;
  // Where rules are compared with another version's (versions.ts), or are a region's parts, these decide for all plans.
  const isPlain = () => ruleStates.every(({ rule }, index) => rule === chosen.policy.rules[index]);
  const named = policyFor(chosen, call);
  const isOther = named !== chosen.policy && isPlain();
  const policy = isOther ? named : chosen.policy;
  const states = isOther ? underPlan(ruleStates, policy, nowMs) : ruleStates;
  const { rules } = forPriority(policy, priority);
  if (rules === policy.rules && (group === undefined || !policy.isFair)) return states;
  return states.map((state, index) => {
    const rule = seenByGroup(state.rule, group, namedBy);
    // The rule may be compared with another version's (versions.ts).
    const { apart = 0 } = rules[index] ?? {};
    const capacity = Math.max(0, rule.capacity - apart);
    return { ...state, rule: apart === 0 ? rule : { ...rule, apart, capacity } };
  });
}

/**
 * For a commit of accounts that a call of another plan has changed: they are stored exactly, as at each change of the plan,
 * because how far memory may be ahead of storage depends on the plan.
 */
export function exactly({ chosen }: { readonly chosen: ChosenVersion }, call: SeenBy): { isExact?: true } {
  return policyFor(chosen, call) === chosen.policy ? {} : { isExact: true };
}

function underPlan<State extends RuleAccount>(
  ruleStates: readonly State[],
  { rules }: Policy,
  nowMs: number,
): readonly State[] {
  return ruleStates.map((state, index) => {
    const rule = rules[index] ?? state.rule;
    return { ...state, rule, account: underRule(rule, state.account, nowMs) };
  });
}
