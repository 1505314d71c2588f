/** How long a cost has to wait, alone or behind callers in the queue. */
import { type Cost, costOf, type NamingPlan } from "../policies/policy.ts";
import { Outlook, type RuleAccount } from "./hold.ts";

export interface QueuedCost extends NamingPlan {
  readonly cost: Cost;
  readonly ttlMs: number;
  /** The instant at which this caller gives up. */
  readonly untilMs: number;
  /** For each rule, units kept from this call for more important ones. */
  readonly apart?: readonly number[] | undefined;
  /** Whose call it is, where groups share a rule, and the caller that names it. */
  readonly group?: string | undefined;
  readonly namedBy?: string | undefined;
  /** Callers with the same one make the same call: the first that is served takes units for all. */
  readonly idempotencyKey?: string | undefined;
}

/** A call in line, with the rules as its plan has them; absent: as the call behind it has them. */
export interface PlannedCost extends QueuedCost {
  readonly ruleAccounts?: readonly RuleAccount[] | undefined;
}

type Waited = Pick<QueuedCost, "cost" | "apart" | "group">;

/**
 * The exact wait for a cost behind the callers in the queue, if no other call comes and every lease runs to its end;
 * `null`: never admitted. It simulates the queue: each waiter gets its lease when the rules admit it, or gives up at
 * `untilMs`. Time only moves forward, so the queue takes one walk through the holds.
 */
export function waitBehindMs(
  ruleAccounts: readonly RuleAccount[],
  waiters: readonly PlannedCost[],
  cost: Cost,
  nowMs: number,
): number | null {
  const own = outlooksOf(ruleAccounts);
  const byPlan = new Map([[ruleAccounts, own]]);
  for (const { ruleAccounts: planned } of waiters)
    if (planned !== undefined && !byPlan.has(planned)) byPlan.set(planned, outlooksOf(planned));
  const all = [...byPlan.values()].flat();
  /** As of one `Outlook`: the latest of the rules. */
  const passes = (outlooks: Outlooks, fromMs: number, of: Waited, untilMs?: number) => {
    let latestMs = fromMs;
    for (const [index, { rule, outlook }] of outlooks.entries()) {
      const as = { group: of.group, apart: of.apart && (of.apart[index] ?? 0) };
      latestMs = Math.max(latestMs, outlook.passesAtMs(fromMs, costOf(rule, of.cost), untilMs, as));
      if (latestMs === Infinity) break;
    }
    return latestMs;
  };
  const served = new Set<string>();
  let atMs = nowMs;
  for (const {
    idempotencyKey,
    cost: waiting,
    untilMs,
    ttlMs,
    group,
    apart = [],
    ruleAccounts: its,
  } of waiters) {
    const waiter = { cost: waiting, group, apart };
    if (idempotencyKey !== undefined && served.has(idempotencyKey)) continue;
    const outlooks = (its && byPlan.get(its)) ?? own;
    const passesAtMs = passes(outlooks, atMs, waiter, untilMs);
    const isServed = passesAtMs <= untilMs;
    atMs = isServed ? passesAtMs : Math.max(atMs, untilMs);
    for (const { outlook } of all) outlook.moveTo(atMs);
    if (!isServed) continue;
    // A share's wait is only the time until the next request.
    const isTaken = passes(outlooks, atMs, waiter, atMs) <= atMs;
    for (const { rule, outlook } of isTaken ? all : [])
      outlook.take(atMs, costOf(rule, waiting), atMs + ttlMs, group);
    if (idempotencyKey !== undefined) served.add(idempotencyKey);
  }
  const passesAtMs = passes(own, atMs, { cost });
  return passesAtMs === Infinity ? null : passesAtMs - nowMs;
}

type Outlooks = ReturnType<typeof outlooksOf>;

function outlooksOf(ruleAccounts: readonly RuleAccount[]) {
  return ruleAccounts.map(({ rule, account: { state, holds } }) => ({
    rule,
    outlook: new Outlook(rule, state, holds),
  }));
}

/**
 * The wait behind the queue if every held or leased unit came back unused now; `null`: never admitted. Only a refund,
 * a reset or a leaving waiter shortens it.
 */
export function leastWaitMs(
  ruleAccounts: readonly RuleAccount[],
  waiters: readonly PlannedCost[],
  cost: Cost,
  nowMs: number,
): number | null {
  if (ruleAccounts.some(({ rule }) => costOf(rule, cost) > rule.capacity)) return null;
  // A share's wait is only the time until its next request to the pool.
  const isRate = ({ rule }: RuleAccount) => rule.lease === undefined && rule.algorithm.isShare !== true;
  const ratesOf = (all: readonly RuleAccount[]) =>
    all.filter(isRate).map(({ rule, account: { state } }) => ({ rule, account: { state, holds: [] } }));
  const rates = ratesOf(ruleAccounts);
  const byPlan = new Map(waiters.map(({ ruleAccounts: planned }) => [planned, planned && ratesOf(planned)]));
  const ahead = waiters.map((waiter) => ({
    ...waiter,
    ruleAccounts: byPlan.get(waiter.ruleAccounts),
    apart: waiter.apart?.filter((_, index) => ruleAccounts.slice(index, index + 1).some(isRate)),
  }));
  return rates.length === 0 ? 0 : waitBehindMs(rates, ahead, cost, nowMs);
}
