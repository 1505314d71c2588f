import type { Rule } from "../policies/policy.ts";
import type { RuleDecision } from "../protocol/answers.ts";
import { costOf, type Cost } from "../protocol/cost.ts";
import { admit, decide, delayMs, place, placeNoted, type Account, type AccountDecision } from "./account.ts";
import type { Hold } from "./hold.ts";

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
export type NewHold = Omit<Hold, "units" | "isStored">;

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
  if (!admitsTogether(ruleAccounts, nowMs, cost)) return denied(ruleAccounts, nowMs, cost);
  const accounts: Account[] = [];
  const rules: RuleDecision[] = [];
  for (const { rule, account } of ruleAccounts) {
    const units = costOf(rule, cost);
    const held = units === 0 ? account : heldBy(rule, account, nowMs, units, taking);
    const decision = held === undefined ? decide(rule, account, nowMs, units) : decide(rule, held, nowMs, 0);
    accounts.push(held ?? (decision.allowed ? decision.account : account));
    const after = decision.allowed ? decision.account : account;
    rules.push(ruleDecision(rule, after, nowMs, decision, held && delayMs(rule, account, nowMs, units)));
  }
  return { admitted: true, accounts, rules };
}

/** Whether every rule admits a cost. Quicker than `decideTogether`, since no wait has to be found. */
export function admitsTogether(ruleAccounts: readonly RuleAccount[], nowMs: number, cost: Cost): boolean {
  return ruleAccounts.every(({ rule, account }) => admit(rule, account, nowMs, costOf(rule, cost)));
}

/** What every rule would say of a cost. Nothing is taken, so the figures are those of now. */
export function withoutTaking(
  ruleAccounts: readonly RuleAccount[],
  nowMs: number,
  cost: Cost,
): RuleDecision[] {
  return ruleAccounts.map(({ rule, account }) => {
    const units = costOf(rule, cost);
    const passes = admit(rule, account, nowMs, units) !== undefined;
    const decision = decide(rule, account, nowMs, passes ? 0 : units);
    const delay = passes ? delayMs(rule, account, nowMs, units) : undefined;
    return ruleDecision(rule, account, nowMs, decision, delay);
  });
}

/** The account with units that pass held or leased; `undefined`: the units are used at once. */
function heldBy(
  rule: Rule,
  account: Account,
  nowMs: number,
  units: number,
  { hold, lease }: Taking,
): Account | undefined {
  if (rule.lease === undefined)
    return hold && placeNoted(rule, account, nowMs, { ...hold, units, isStored: true });
  return lease && place(admit(rule, account, nowMs, units) ?? account, { ...lease, units, isStored: true });
}

/** A denial, with the new accounts when a rule counts denials. A cost that can never pass is not counted. */
function denied(ruleAccounts: readonly RuleAccount[], nowMs: number, cost: Cost): JointDecision {
  const decided = ruleAccounts.map(({ rule, account }) => {
    const units = costOf(rule, cost);
    const passes = admit(rule, account, nowMs, units) !== undefined;
    return { rule, account, decision: decide(rule, account, nowMs, passes ? 0 : units) };
  });
  const isNever = decided.some(({ decision }) => !decision.allowed && decision.retryAfterMs === null);
  let hasCounted = false;
  const accounts: Account[] = [];
  const rules = decided.map(({ rule, account, decision }) => {
    const counted = decision.allowed || isNever ? undefined : decision.counted;
    hasCounted ||= counted !== undefined;
    accounts.push(counted?.account ?? account);
    const said = counted === undefined ? decision : { ...counted, allowed: false as const };
    return ruleDecision(rule, account, nowMs, said);
  });
  return hasCounted ? { admitted: false, accounts, rules } : { admitted: false, rules };
}

function ruleDecision(
  rule: Rule,
  { state }: Account,
  nowMs: number,
  decision: AccountDecision,
  heldDelayMs?: number,
): RuleDecision {
  const { allowed, remaining, quotaRemaining, resetAfterMs } = decision;
  const delay = heldDelayMs ?? (allowed ? decision.delayMs : undefined);
  const { name, algorithm, config, capacity, apart = 0 } = rule;
  const limitNow = algorithm.limitNow?.(config, state, nowMs);
  return {
    name,
    success: allowed,
    limit: limitNow === undefined ? capacity : Math.max(0, limitNow - apart),
    remaining,
    ...(quotaRemaining !== undefined && { quotaRemaining }),
    resetAfterMs,
    retryAfterMs: allowed ? 0 : decision.retryAfterMs,
    reason: allowed ? "ok" : decision.reason,
    ...(delay !== undefined && { delayMs: delay }),
  };
}
