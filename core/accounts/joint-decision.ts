import type { Rule } from "../policies/policy.ts";
import { costOf, type Cost } from "../protocol/cost.ts";
import type { RuleDecision } from "../protocol/messages.ts";
import { decide, place, placeNoted, type Account, type AccountDecision } from "./account.ts";
/** All rules of a policy, decided together: all or nothing. Pure. */

/** A rule and its account. */
export interface RuleAccount {
  readonly rule: Rule;
  readonly account: Account;
}

/** How what is admitted is taken. */
export interface Taking {
  /** Units of a rate are set apart until then; absent: they are used at once. */
  readonly hold?: NewHold;
  /** Units that are leased are leased until then. */
  readonly lease?: NewHold;
}

export interface NewHold {
  readonly id: string;
  readonly expiresAtMs: number;
}

/**
 * What all rules say of one cost. Accounts are what to go on with: those of an admission, or of a denial when a rule
 * counts what it denied.
 */
export interface JointDecision {
  readonly admitted: boolean;
  readonly accounts?: readonly Account[];
  readonly rules: readonly RuleDecision[];
}

/** Decides on a cost under every rule; one denial denies. */
export function decideTogether(
  ruleAccounts: readonly RuleAccount[],
  nowMs: number,
  cost: Cost,
  taking: Taking = {},
): JointDecision {
  const accounts: Account[] = [];
  const rules: RuleDecision[] = [];
  for (const { rule, account } of ruleAccounts) {
    const units = costOf(rule, cost);
    const decision = decide(rule, account, nowMs, units);
    if (!decision.allowed) return denied(ruleAccounts, nowMs, cost);
    const held = units === 0 ? account : taken(rule, account, decision.account, nowMs, units, taking);
    accounts.push(held ?? decision.account);
    rules.push(ruleDecision(rule, held === undefined ? decision : decide(rule, held, nowMs, 0)));
  }
  return { admitted: true, accounts, rules };
}

/** What every rule would say of a cost, with the figures as they stand while nothing is taken. */
export function withoutTaking(
  ruleAccounts: readonly RuleAccount[],
  nowMs: number,
  cost: Cost,
): RuleDecision[] {
  return ruleAccounts.map(({ rule, account }) => lookAt(rule, account, nowMs, costOf(rule, cost)));
}

function lookAt(rule: Rule, account: Account, nowMs: number, cost: number): RuleDecision {
  const decision = decide(rule, account, nowMs, cost);
  if (!decision.allowed || cost === 0) return ruleDecision(rule, decision);
  const { remaining, resetAfterMs } = decide(rule, account, nowMs, 0);
  return { ...ruleDecision(rule, decision), remaining, resetAfterMs };
}

/** The account when units are held; `undefined`: they are used at once. */
function taken(
  rule: Rule,
  before: Account,
  after: Account,
  nowMs: number,
  units: number,
  { hold, lease }: Taking,
): Account | undefined {
  if (rule.lease !== undefined) return lease && place(after, { ...lease, units, isStored: true });
  return hold && placeNoted(rule, before, nowMs, { ...hold, units, isStored: true });
}

/** A denial, and the accounts of those rules that count what they denied, unless it could never have passed. */
function denied(ruleAccounts: readonly RuleAccount[], nowMs: number, cost: Cost): JointDecision {
  const decided = ruleAccounts.map((each) => ({
    ...each,
    decision: decide(each.rule, each.account, nowMs, costOf(each.rule, cost)),
  }));
  const isNever = decided.some(({ decision }) => !decision.allowed && decision.retryAfterMs === null);
  let hasCounted = false;
  const accounts: Account[] = [];
  const rules = decided.map(({ rule, account, decision }) => {
    const counted = decision.allowed || isNever ? undefined : decision.counted;
    hasCounted ||= counted !== undefined;
    accounts.push(counted?.account ?? account);
    if (counted !== undefined) return ruleDecision(rule, { ...counted, allowed: false });
    return decision.allowed ? lookAt(rule, account, nowMs, costOf(rule, cost)) : ruleDecision(rule, decision);
  });
  return hasCounted ? { admitted: false, accounts, rules } : { admitted: false, rules };
}

function ruleDecision(rule: Rule, decision: AccountDecision): RuleDecision {
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
