/** All rules of a policy, decided together: all or nothing. Pure. */
import { decide, type Account, type AccountDecision } from "./holds.ts";
import type { Rule } from "./policies.ts";
import type { RuleDecision } from "./protocol.ts";

/** A rule and its account. */
export interface Ruled {
  readonly rule: Rule;
  readonly account: Account;
}

/** What all rules say of one cost. Only an admission carries the accounts to go on with. */
export type JointDecision =
  | {
      readonly admitted: true;
      readonly accounts: readonly Account[];
      readonly rules: readonly RuleDecision[];
    }
  | { readonly admitted: false; readonly rules: readonly RuleDecision[] };

/** Decides on `cost` units under every rule; one denial denies. */
export function decideTogether(ruled: readonly Ruled[], nowMs: number, cost: number): JointDecision {
  const accounts: Account[] = [];
  const rules: RuleDecision[] = [];
  for (const { rule, account } of ruled) {
    const decision = decide(rule, account, nowMs, cost);
    if (!decision.allowed) return { admitted: false, rules: withoutTaking(ruled, nowMs, cost) };
    accounts.push(decision.account);
    rules.push(inWords(rule, decision));
  }
  return { admitted: true, accounts, rules };
}

/** What every rule would say of `cost`, with the figures as they stand while nothing is taken. */
export function withoutTaking(ruled: readonly Ruled[], nowMs: number, cost: number): RuleDecision[] {
  return ruled.map(({ rule, account }) => {
    const decision = decide(rule, account, nowMs, cost);
    if (!decision.allowed || cost === 0) return inWords(rule, decision);
    const { remaining, resetAfterMs } = decide(rule, account, nowMs, 0);
    return { ...inWords(rule, decision), remaining, resetAfterMs };
  });
}

function inWords(rule: Rule, decision: AccountDecision): RuleDecision {
  const { allowed, remaining, resetAfterMs } = decision;
  const { name, capacity } = rule;
  return {
    name,
    success: allowed,
    limit: capacity,
    remaining,
    resetAfterMs,
    retryAfterMs: allowed ? 0 : decision.retryAfterMs,
    reason: allowed ? "ok" : decision.reason,
  };
}
