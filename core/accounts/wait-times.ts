/** How long a cost has to wait, alone or behind callers that wait already. Pure. */
import type { Cost } from "../protocol/cost.ts";
import { advance } from "./account.ts";
import { decideTogether, withoutTaking, type RuleAccount } from "./joint-decision.ts";

/** A caller in the queue. */
export interface Queued {
  readonly cost: Cost;
  /** How long the lease will last: callers behind this one may have to wait for its end. */
  readonly ttlMs: number;
  /** The instant at which this caller gives up. */
  readonly untilMs: number;
}

/**
 * The exact wait in milliseconds for a cost behind the callers in the queue; `null`: the cost never passes. It is
 * exact if no other call comes and every lease runs to its end. It plays the queue through: each waiter in turn gets
 * its lease as soon as the rules admit it, or gives up at `untilMs`.
 */
export function waitBehindMs(
  ruleAccounts: readonly RuleAccount[],
  waiters: readonly Queued[],
  cost: Cost,
  nowMs: number,
): number | null {
  let [current, atMs] = [ruleAccounts, nowMs];
  const moveTo = (toMs: number) => {
    atMs = toMs;
    current = current.map(({ rule, account }) => ({ rule, account: advance(rule, account, toMs) }));
  };
  for (const [index, waiter] of waiters.entries()) {
    const waitMs = jointWaitMs(current, waiter.cost, atMs);
    if (waitMs === null || atMs + waitMs > waiter.untilMs) {
      moveTo(Math.max(atMs, waiter.untilMs));
      continue;
    }
    moveTo(atMs + waitMs);
    const lease = { id: `waiter ${index}`, expiresAtMs: atMs + waiter.ttlMs };
    const { accounts } = decideTogether(current, atMs, waiter.cost, { lease });
    current = current.map(({ rule, account }, each) => ({ rule, account: accounts?.[each] ?? account }));
  }
  const waitMs = jointWaitMs(current, cost, atMs);
  return waitMs === null ? null : atMs + waitMs - nowMs;
}

/**
 * The wait in milliseconds until every rule admits a cost: the longest of the rules; `null`: the cost never passes.
 */
export function jointWaitMs(ruleAccounts: readonly RuleAccount[], cost: Cost, nowMs: number): number | null {
  let longest = 0;
  for (const { retryAfterMs } of withoutTaking(ruleAccounts, nowMs, cost)) {
    if (retryAfterMs === null) return null;
    longest = Math.max(longest, retryAfterMs);
  }
  return longest;
}
