/**
 * Accounts: for one key and one rule, the algorithm's state and the holds. A hold is units that are set apart for a
 * holder (an isolate or a caller).
 *
 * Every level holds units of the level beneath it, spends them without asking, and settles later. Units that are held
 * are not in the algorithm's state. They are `outstanding`, and what can be admitted is what the state offers minus
 * what is outstanding. A debit happens only when a hold is settled or expires: at that instant, with the units that
 * were really used (at expiry: all of them). So units that were held and not used come back without a credit.
 *
 * Why no bound is exceeded: the units used in any interval are, at its end, either debited or still outstanding. Both
 * together never exceed what the algorithm offers in that interval. Late messages, the order of holders and crashes
 * do not change that.
 *
 * A lease is a hold too. Its units are occupied and not used up, so they are free when it is settled or expires: the
 * debit of its algorithm takes no units.
 *
 * Pure: values in, values out, and time is an argument.
 */
import type { Allowed, Denial } from "../algorithms/algorithm.ts";
import type { Rule } from "../policies/policy.ts";

/** Units that are set apart for a holder. */
export interface Hold {
  /** Unique within its account. */
  readonly id: string;
  readonly units: number;
  /** From this instant on the units count as used; those of a lease are free. */
  readonly expiresAtMs: number;
  /** The hold is in storage too, so it is still there after a crash. */
  readonly isStored?: boolean;
}

/** One rule's state and holds, for one key. */
export interface Account {
  /** `undefined`: an untouched quota. */
  readonly state: unknown;
  /** In the order in which they expire. */
  readonly holds: readonly Hold[];
}

/** The account of a key that was never used. */
export const UNTOUCHED: Account = { state: undefined, holds: [] };

/** What a rule says of a cost, with the new account if it has changed. */
export type AccountDecision =
  | (Omit<Allowed<unknown>, "state"> & { readonly allowed: true; readonly account: Account })
  | (Denial & {
      readonly allowed: false;
      /** Present when the rule counts denials: the account with this denial, and the figures of that account. */
      readonly counted?: Denial & { readonly account: Account };
    });

/** Decides on `cost` units. The account must have been advanced to `nowMs`. */
export function decide(rule: Rule, account: Account, nowMs: number, cost: number): AccountDecision {
  const outstanding = outstandingOf(account);
  const decision = rule.algorithm.decide(rule.config, account.state, nowMs, cost, outstanding);
  // The figures of a share are the pool's, and the pool knows of the units that are held here.
  const isExact = outstanding === 0 || rule.algorithm.isShare === true;
  if (decision.allowed) {
    const { state, remaining } = decision;
    const after = { state, holds: account.holds };
    const resetAfterMs = isExact ? decision.resetAfterMs : wholeAtMs(rule, after, nowMs) - nowMs;
    return { allowed: true, account: after, remaining, resetAfterMs };
  }
  const { counted, ...denied } = decision;
  /** The denial with figures for the case that every hold is used when it expires. */
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

/** Debits every hold that has expired by `nowMs`, each at the instant when it expired. */
export function advance(rule: Rule, account: Account, nowMs: number): Account {
  const { holds } = account;
  let [state, expired] = [account.state, 0];
  for (let next = holds[0]; next !== undefined && next.expiresAtMs <= nowMs; next = holds[expired]) {
    state = rule.algorithm.debit(rule.config, state, next.expiresAtMs, next.units);
    expired += 1;
  }
  return expired === 0 ? account : { state, holds: holds.slice(expired) };
}

/** Adds a hold. It does not check that there are enough units: ask `decide` first. */
export function place({ state, holds }: Account, hold: Hold): Account {
  const index = holds.findLastIndex(({ expiresAtMs }) => expiresAtMs <= hold.expiresAtMs);
  return { state, holds: holds.toSpliced(index + 1, 0, hold) };
}

/** Adds a hold of a rate, and lets the algorithm note the instant of the call (`noteHold`). */
export function placeNoted(rule: Rule, account: Account, nowMs: number, hold: Hold): Account {
  const state = rule.algorithm.noteHold(rule.config, account.state, nowMs);
  return place({ state, holds: account.holds }, hold);
}

/** Moves the expiry of a hold. An unknown id changes nothing. */
export function extend(account: Account, id: string, expiresAtMs: number): Account {
  const hold = account.holds.find((each) => each.id === id);
  if (hold === undefined) return account;
  const holds = account.holds.filter((each) => each !== hold);
  return place({ state: account.state, holds }, { ...hold, expiresAtMs });
}

/** Ends a hold with the units really used, which may be more than were held. An unknown id changes nothing. */
export function settle(rule: Rule, account: Account, nowMs: number, id: string, used: number): Account {
  const holds = account.holds.filter((hold) => hold.id !== id);
  if (holds.length === account.holds.length) return account;
  return { state: rule.algorithm.debit(rule.config, account.state, nowMs, used), holds };
}

/** Gives back units that were taken and not used. */
export function refund(rule: Rule, account: Account, nowMs: number, units: number): Account {
  return { state: rule.algorithm.credit(rule.config, account.state, nowMs, units), holds: account.holds };
}

/** The units of all holds. */
export function outstandingOf(account: Account): number {
  let units = 0;
  for (const hold of account.holds) units += hold.units;
  return units;
}

/** The units of holds that are in memory only. */
export function unstoredOf(account: Account): number {
  let units = 0;
  for (const hold of account.holds) units += hold.isStored === true ? 0 : hold.units;
  return units;
}

/** The first instant, `nowMs` or later, from which the account equals an untouched one if no call comes before. */
export function wholeAtMs(rule: Rule, account: Account, nowMs: number): number {
  const last = account.holds.at(-1)?.expiresAtMs ?? nowMs;
  // An expired lease leaves nothing behind, so the loop below is not needed. There may be thousands of leases.
  if (rule.lease !== undefined) return Math.max(last, nowMs);
  const { state } = advance(rule, account, last);
  if (state === undefined) return Math.max(last, nowMs);
  return Math.max(last, nowMs, rule.algorithm.wholeAtMs(rule.config, state));
}

/**
 * The exact wait in milliseconds for a cost that fits the capacity, if every hold is used when it expires; `null`:
 * the cost never passes. Looks at one expiry after another.
 */
function waitMs(rule: Rule, account: Account, nowMs: number, cost: number): number | null {
  if (rule.lease !== undefined) return leaseWaitMs(rule, account, nowMs, cost);
  const { holds } = account;
  let { state } = account;
  let [atMs, outstanding, next] = [nowMs, outstandingOf(account), 0];
  for (;;) {
    const decision = rule.algorithm.decide(rule.config, state, atMs, cost, outstanding);
    if (decision.allowed) return atMs - nowMs;
    const nextExpiryMs = holds[next]?.expiresAtMs;
    const passesAtMs = decision.retryAfterMs === null ? undefined : atMs + decision.retryAfterMs;
    if (nextExpiryMs === undefined || (passesAtMs !== undefined && passesAtMs <= nextExpiryMs)) {
      return passesAtMs === undefined ? null : passesAtMs - nowMs;
    }
    atMs = nextExpiryMs;
    for (let hold = holds[next]; hold !== undefined && hold.expiresAtMs <= atMs; hold = holds[next]) {
      state = rule.algorithm.debit(rule.config, state, hold.expiresAtMs, hold.units);
      outstanding -= hold.units;
      next += 1;
    }
  }
}

/** The same for leases: the wait until enough of them have expired. */
function leaseWaitMs(rule: Rule, account: Account, nowMs: number, cost: number): number | null {
  let missing = cost + outstandingOf(account) - rule.capacity;
  for (const { units, expiresAtMs } of account.holds) {
    missing -= units;
    if (missing <= 0) return expiresAtMs - nowMs;
  }
  return null;
}
