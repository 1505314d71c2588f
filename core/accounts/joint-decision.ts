import { type Cost, costOf, type Rule } from "../policies/policy.ts";
import type { RuleDecision } from "../protocol/answers.ts";
import {
  type Account,
  type AccountDecision,
  admit,
  decide,
  delayMs,
  Outlook,
  place,
  placeNoted,
} from "./account.ts";
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

/* How long a cost has to wait, alone or behind callers that wait already. Pure. */

/** A caller in the queue. */
export interface QueuedCost {
  readonly cost: Cost;
  /** How long the lease will last: callers behind this one may have to wait for its end. */
  readonly ttlMs: number;
  /** The instant at which this caller gives up. */
  readonly untilMs: number;
  /** Of each rule, units that this call may not have, since they are kept for more important ones. Absent: none. */
  readonly apart?: readonly number[] | undefined;
  /** Callers with the same one make the same call: the first that is served takes units for all. */
  readonly idempotencyKey?: string | undefined;
}

/**
 * The exact wait in milliseconds for a cost behind the callers in the queue; `null`: the cost never passes. It is
 * exact if no other call comes and every lease runs to its end. It plays the queue through: each waiter in turn gets
 * its lease as soon as the rules admit it, or gives up at `untilMs`.
 *
 * Time only moves on: nobody looks further ahead than to the instant at which its wait ends. So the whole queue takes
 * one walk through the holds.
 */
export function waitBehindMs(
  ruleAccounts: readonly RuleAccount[],
  waiters: readonly QueuedCost[],
  cost: Cost,
  nowMs: number,
): number | null {
  const joint = new JointOutlook(ruleAccounts);
  const served = new Set<string>();
  let atMs = nowMs;
  for (const waiter of waiters) {
    const { idempotencyKey } = waiter;
    if (idempotencyKey !== undefined && served.has(idempotencyKey)) continue;
    const passesAtMs = joint.passesAtMs(atMs, waiter.cost, waiter.untilMs, waiter.apart ?? []);
    const isServed = passesAtMs <= waiter.untilMs;
    atMs = isServed ? passesAtMs : Math.max(atMs, waiter.untilMs);
    joint.moveTo(atMs);
    if (!isServed) continue;
    joint.take(atMs, waiter.cost, atMs + waiter.ttlMs, waiter.apart ?? []);
    if (idempotencyKey !== undefined) served.add(idempotencyKey);
  }
  const passesAtMs = joint.passesAtMs(atMs, cost);
  return passesAtMs === Infinity ? null : passesAtMs - nowMs;
}

/**
 * The wait in milliseconds for a cost behind the callers in the queue if every unit that is held or leased came back
 * unused at this instant; `null`: the cost never passes. What rates have used is all that such a call waits for, so
 * nothing but a refund, a reset or a waiter that goes ends its wait sooner.
 */
export function leastWaitMs(
  ruleAccounts: readonly RuleAccount[],
  waiters: readonly QueuedCost[],
  cost: Cost,
  nowMs: number,
): number | null {
  if (ruleAccounts.some(({ rule }) => costOf(rule, cost) > rule.capacity)) return null;
  // What a share says of its wait is only when to ask the pool again.
  const isRate = ({ rule }: RuleAccount) => rule.lease === undefined && rule.algorithm.isShare !== true;
  const rates = ruleAccounts
    .filter(isRate)
    .map(({ rule, account: { state } }) => ({ rule, account: { state, holds: [] } }));
  const ahead = waiters.map((waiter) => ({
    ...waiter,
    apart: waiter.apart?.filter((_, index) => ruleAccounts.slice(index, index + 1).some(isRate)),
  }));
  return rates.length === 0 ? 0 : waitBehindMs(rates, ahead, cost, nowMs);
}

/**
 * The wait in milliseconds until every rule admits a cost: the longest of the rules; `null`: the cost never passes.
 */
export function jointWaitMs(ruleAccounts: readonly RuleAccount[], cost: Cost, nowMs: number): number | null {
  const passesAtMs = new JointOutlook(ruleAccounts).passesAtMs(nowMs, cost);
  return passesAtMs === Infinity ? null : passesAtMs - nowMs;
}

/** The outlooks of all rules of a policy. */
class JointOutlook {
  readonly #outlooks: readonly (readonly [Rule, Outlook])[];

  constructor(ruleAccounts: readonly RuleAccount[]) {
    this.#outlooks = ruleAccounts.map(({ rule, account: { state, holds } }) => [
      rule,
      new Outlook(rule, state, holds),
    ]);
  }

  /** As of one `Outlook`: the latest of the rules. */
  passesAtMs(fromMs: number, cost: Cost, untilMs?: number, apart?: readonly number[]): number {
    let latestMs = fromMs;
    for (const [index, [rule, outlook]] of this.#outlooks.entries()) {
      const kept = apart === undefined ? undefined : (apart[index] ?? 0);
      latestMs = Math.max(latestMs, outlook.passesAtMs(fromMs, costOf(rule, cost), untilMs, kept));
      if (latestMs === Infinity) break;
    }
    return latestMs;
  }

  moveTo(atMs: number): void {
    for (const [, outlook] of this.#outlooks) outlook.moveTo(atMs);
  }

  /** Takes a cost if every rule admits it. */
  take(atMs: number, cost: Cost, endsAtMs: number, apart: readonly number[]): void {
    // The wait that a share names is only when to ask again.
    if (this.passesAtMs(atMs, cost, atMs, apart) > atMs) return;
    for (const [rule, outlook] of this.#outlooks) outlook.take(atMs, costOf(rule, cost), endsAtMs);
  }
}
