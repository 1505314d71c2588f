/** How long a cost has to wait, behind others too. Pure. */
import type { Cost } from "../protocol/cost.ts";
import { advance } from "./account.ts";
import { decideTogether, withoutTaking, type RuleAccount } from "./joint-decision.ts";

/** What is known of somebody in line. */
export interface Queued {
  readonly cost: Cost;
  /** How long a lease would be, to say how long those behind will wait. */
  readonly ttlMs: number;
  /** When the waiting ends without anything. */
  readonly untilMs: number;
}

/**
 * The exact wait for a cost behind those who wait already, if nobody else comes and every lease runs to its end:
 * each gets its lease as soon as it can, or leaves when its time is over. `null`: it never passes.
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

/** How long until every rule admits a cost. */
export function jointWaitMs(ruleAccounts: readonly RuleAccount[], cost: Cost, nowMs: number): number | null {
  let longest = 0;
  for (const { retryAfterMs } of withoutTaking(ruleAccounts, nowMs, cost)) {
    if (retryAfterMs === null) return null;
    longest = Math.max(longest, retryAfterMs);
  }
  return longest;
}
