import type { Rule } from "../policies/policy.ts";
import { costOf, type Cost } from "../protocol/cost.ts";
import type { RuleDecision } from "../protocol/messages.ts";
import { decide, place, placeNoted, type Account, type AccountDecision } from "./account.ts";

/** A rule of a policy, and a key's account of it. */
export interface RuleAccount {
  readonly rule: Rule;
  readonly account: Account;
}

/** How the units of an admitted cost are taken. */
export interface Taking {
  /** The hold for the units of rules that do not lease; absent: these units are used at once. */
  readonly hold?: NewHold;
  /** The lease for the units of rules that lease. */
  readonly lease?: NewHold;
}

/** A hold without its units: each rule's part of the cost. */
export interface NewHold {
  readonly id: string;
  readonly expiresAtMs: number;
}

/** What all rules of a policy say of one cost. */
export interface JointDecision {
  readonly admitted: boolean;
  /** The new accounts, in the order of the rules; absent: nothing has changed. */
  readonly accounts?: readonly Account[];
  readonly rules: readonly RuleDecision[];
}

/** Decides on a cost under all rules: all or nothing. When one rule denies, no rule takes units. Pure. */
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

/** What every rule would say of a cost. Nothing is taken, so the figures are those of now. */
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

/** The account with the units held or leased; `undefined`: the units are used at once. */
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

/** A denial, with the new accounts when a rule counts denials. A cost that can never pass is not counted. */
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
