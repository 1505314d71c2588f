/**
 * Holds: units set apart for somebody who may still use them, or, when the rule leases units, who has them.
 *
 * Every level holds units of the level beneath it, spends from them without asking, and settles later.
 * Units held are not in the algorithm's state; they are `outstanding`, and what can be admitted is what
 * the state offers minus what is outstanding. Only settling, or expiry, debits, at that moment and with
 * the units really used. So units that were held and not used come back without a credit, and in any
 * interval the units used are by its end either debited or outstanding, which the level covers: no
 * schedule of holders, late messages or crashes can exceed the bound.
 *
 * A lease is a hold too. Its units are occupied and not used, so its rule's debit takes nothing, and units are free
 * again when it is settled or expires.
 *
 * Pure: values in, values out, time an argument.
 */
import type { Allowed, Denial } from "../algorithms/algorithm.ts";
import type { Rule } from "../policies/policy.ts";

export interface Hold {
  /** Unique within its account. */
  readonly id: string;
  readonly units: number;
  /** At this instant the units count as used, or, of a lease, are free. */
  readonly expiresAtMs: number;
  /** Storage has it as well, so it comes back by itself after a crash. */
  readonly isStored?: boolean;
}

/** One rule's books for one key. Absent state is an untouched quota. */
export interface Account {
  readonly state: unknown;
  /** Soonest to expire first. */
  readonly holds: readonly Hold[];
}

export const UNTOUCHED: Account = { state: undefined, holds: [] };

export type AccountDecision =
  | (Omit<Allowed<unknown>, "state"> & { readonly allowed: true; readonly account: Account })
  | (Denial & {
      readonly allowed: false;
      /** Present when the rule counts what it denied: the account then, and the figures once it has been counted. */
      readonly counted?: Denial & { readonly account: Account };
    });

/** Decides on `cost` units. The account must have been advanced to `nowMs`; a denial leaves it as it is. */
export function decide(rule: Rule, account: Account, nowMs: number, cost: number): AccountDecision {
  const outstanding = outstandingOf(account);
  const decision = rule.algorithm.decide(rule.config, account.state, nowMs, cost, outstanding);
  // A share's figures are of the level beneath, where what is held from here is reckoned with.
  const isExact = outstanding === 0 || rule.algorithm.isShare === true;
  if (decision.allowed) {
    const { state, remaining } = decision;
    const after = { state, holds: account.holds };
    const resetAfterMs = isExact ? decision.resetAfterMs : wholeAtMs(rule, after, nowMs) - nowMs;
    return { allowed: true, account: after, remaining, resetAfterMs };
  }
  const { counted, ...denied } = decision;
  /** The same once holds are reckoned with, which are used as they expire. */
  const withHolds = (of: Account, denial: Denial): Denial =>
    isExact
      ? denial
      : {
          ...denial,
          retryAfterMs: cost > rule.capacity ? null : waitMs(rule, of, nowMs, cost),
          resetAfterMs: wholeAtMs(rule, of, nowMs) - nowMs,
        };
  if (counted === undefined) return { ...withHolds(account, denied), allowed: false };
  const { state, ...countedDenial } = counted;
  const after = { state, holds: account.holds };
  return {
    ...withHolds(account, denied),
    allowed: false,
    counted: { ...withHolds(after, countedDenial), account: after },
  };
}

/** Debits every hold that has expired by `nowMs`, each at its own instant. */
export function advance(rule: Rule, account: Account, nowMs: number): Account {
  const { holds } = account;
  let [state, expired] = [account.state, 0];
  for (let next = holds[0]; next !== undefined && next.expiresAtMs <= nowMs; next = holds[expired]) {
    state = rule.algorithm.debit(rule.config, state, next.expiresAtMs, next.units);
    expired += 1;
  }
  return expired === 0 ? account : { state, holds: holds.slice(expired) };
}

/** Sets `units` apart. Whether there are that many is the caller's question: ask `decide` first. */
export function place({ state, holds }: Account, hold: Hold): Account {
  const index = holds.findLastIndex(({ expiresAtMs }) => expiresAtMs <= hold.expiresAtMs);
  return { state, holds: holds.toSpliced(index + 1, 0, hold) };
}

/** Sets units apart of a rate, whose own state may have to note that something was admitted. */
export function placeNoted(rule: Rule, account: Account, nowMs: number, hold: Hold): Account {
  const state = rule.algorithm.noteHold(rule.config, account.state, nowMs);
  return place({ state, holds: account.holds }, hold);
}

/** Moves a hold's expiry. An unknown id changes nothing. */
export function extend(account: Account, id: string, expiresAtMs: number): Account {
  const hold = account.holds.find((each) => each.id === id);
  if (hold === undefined) return account;
  const holds = account.holds.filter((each) => each !== hold);
  return place({ state: account.state, holds }, { ...hold, expiresAtMs });
}

/** Ends a hold with the units really used: more than were held are debited too. An unknown id changes nothing. */
export function settle(rule: Rule, account: Account, nowMs: number, id: string, used: number): Account {
  const holds = account.holds.filter((hold) => hold.id !== id);
  if (holds.length === account.holds.length) return account;
  return { state: rule.algorithm.debit(rule.config, account.state, nowMs, used), holds };
}

/** Gives units back that were taken and not used. */
export function refund(rule: Rule, account: Account, nowMs: number, units: number): Account {
  return { state: rule.algorithm.credit(rule.config, account.state, nowMs, units), holds: account.holds };
}

export function outstandingOf(account: Account): number {
  let units = 0;
  for (const hold of account.holds) units += hold.units;
  return units;
}

/** Units of holds that only memory has. */
export function unstoredOf(account: Account): number {
  let units = 0;
  for (const hold of account.holds) units += hold.isStored === true ? 0 : hold.units;
  return units;
}

/** The instant from which the account equals an untouched one if nobody comes: `nowMs` when it does already. */
export function wholeAtMs(rule: Rule, account: Account, nowMs: number): number {
  const last = account.holds.at(-1)?.expiresAtMs ?? nowMs;
  // Leases leave nothing behind; there may be thousands.
  if (rule.lease !== undefined) return Math.max(last, nowMs);
  const { state } = advance(rule, account, last);
  if (state === undefined) return Math.max(last, nowMs);
  return Math.max(last, nowMs, rule.algorithm.wholeAtMs(rule.config, state));
}

/** The exact wait for a cost that fits the capacity, while holds expire one after another, all of them used. */
function waitMs(rule: Rule, account: Account, nowMs: number, cost: number): number | null {
  if (rule.lease !== undefined) return leaseWaitMs(rule, account, nowMs, cost);
  let current = account;
  let atMs = nowMs;
  for (;;) {
    const { state, holds } = current;
    const outstanding = outstandingOf(current);
    const decision = rule.algorithm.decide(rule.config, state, atMs, cost, outstanding);
    if (decision.allowed) return atMs - nowMs;
    const nextExpiryMs = holds[0]?.expiresAtMs;
    const passesAtMs = decision.retryAfterMs === null ? undefined : atMs + decision.retryAfterMs;
    if (nextExpiryMs === undefined || (passesAtMs !== undefined && passesAtMs <= nextExpiryMs)) {
      return passesAtMs === undefined ? null : passesAtMs - nowMs;
    }
    atMs = nextExpiryMs;
    current = advance(rule, current, atMs);
  }
}

/** The same of leases: until as many have expired as have to. */
function leaseWaitMs(rule: Rule, account: Account, nowMs: number, cost: number): number | null {
  let missing = cost + outstandingOf(account) - rule.capacity;
  for (const { units, expiresAtMs } of account.holds) {
    missing -= units;
    if (missing <= 0) return expiresAtMs - nowMs;
  }
  return null;
}
