/** How long a cost has to wait, alone or behind callers that wait already. Pure. */
import type { Rule } from "../policies/policy.ts";
import { costOf, type Cost } from "../protocol/cost.ts";
import { Outlook } from "./account.ts";
import type { RuleAccount } from "./joint-decision.ts";

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
