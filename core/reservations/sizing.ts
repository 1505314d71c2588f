/**
 * How many units a holder asks for, for how long, and how many it is given. All numbers of reservations stand here.
 *
 * A reservation spares calls and costs freedom: units that sit with one isolate are out of reach for the others until
 * they are used, given back or expire. So it should be as large as is needed soon, and no larger. Pure functions:
 *
 * - *Hot* is a key that is asked for `HOT_ASKS` times without a pause as long as the longest lifetime. Fewer would
 *   reserve for keys that come twice and not again; more would leave keys with a call every few seconds to the
 *   object.
 * - *Lifetime*: time enough for `ASKS_PER_LIFETIME` calls at the pace that was measured, within what the policy
 *   allows (1 to 8 s). A busy key has the shortest: what it wants is then least, it reacts to a change of demand
 *   within a second, and units of an isolate that vanished are out of reach no longer than that. A key with a call a
 *   second would use two units of such a reservation, so it keeps a few for longer, but only while they are at most
 *   `SPARE_SHARE` of what is free; where units are scarce the shortest lifetime is all there is.
 * - *Wanted* is the demand measured since the last message, over the lifetime; at most `GROWTH` times what was asked
 *   for meanwhile. So the first reservation is small, four small ones lead to any size, and a single burst reserves
 *   little. A rise is seen when the units run out early, and followed within a lifetime. A fall is seen in the last
 *   quarter of one: what is wanted has fallen to two thirds or less within a lifetime, and to the new demand within
 *   one and a half.
 * - *Granted* is a share of what is free or reserved in proportion to what is wanted, among those that hold or asked
 *   lately, with as much again for whoever comes next (a lone isolate gets half), unless calls wait for it already.
 *   Every call then has the same chance, wherever it came in. Near exhaustion the share comes to less than a unit,
 *   and units go one by one to who asks. Nobody holds more than `MOST_SHARE` of the capacity: that is what one
 *   vanished isolate costs, and why limits below 32 reserve nothing.
 * - *Refilled* is ahead of need: when what is left lasts `AHEAD_MS`, longer than a message takes, or is half of what
 *   there was; and in the last quarter of a lifetime.
 *
 * `test/simulation/` tries these with up to 32 isolates, and docs/performance.md has what comes out.
 */
import type { Lifetimes } from "../policies/lifetimes.ts";

const HOT_ASKS = 3;
const ASKS_PER_LIFETIME = 8;
const GROWTH = 4;
const MOST_SHARE = 1 / 16;
const SPARE_SHARE = 1 / 32;
const AHEAD_MS = 100;
/** A denial is believed so long at most: others may give units back. */
export const MOST_DENIED_MS = 1_000;
/**
 * The end of a lifetime in which nothing is spent any more: what is unused goes home in it, and clocks may differ.
 */
const MOST_MARGIN_MS = 250;
/** How much longer the object keeps units apart. */
const MOST_LATE_MS = 1_000;

/** What was asked for since `sinceMs`: how often, and how many units of each rule. */
export interface Measured {
  readonly asks: number;
  readonly units: readonly number[];
  readonly sinceMs: number;
}

/** Whether so many calls without a long pause make a key hot. */
export function isHot(asks: number): boolean {
  return asks >= HOT_ASKS;
}

export function lifetimeMs(
  { asks, sinceMs }: Measured,
  nowMs: number,
  { leastMs, mostMs }: Lifetimes,
): number {
  const paceMs = Math.max(1, nowMs - sinceMs) / Math.max(1, asks);
  return Math.min(mostMs, Math.max(leastMs, Math.ceil(ASKS_PER_LIFETIME * paceMs)));
}

/** Units to have when the answer is there, those that are left included. */
export function wantedUnits({ units, sinceMs }: Measured, nowMs: number, ttlMs: number): number[] {
  const lifetimes = ttlMs / Math.max(1, nowMs - sinceMs);
  return units.map((asked) => Math.min(Math.ceil(asked * lifetimes), GROWTH * asked));
}

/** How long units may be spent that were reserved for `ttlMs`. */
export function spendableMs(ttlMs: number): number {
  return ttlMs - Math.min(ttlMs / 4, MOST_MARGIN_MS);
}

/**
 * How long the object keeps apart what was reserved for `ttlMs`: also while a message that gives units back waits its
 * turn at a busy object, since what comes later counts as used.
 */
export function heldMs(ttlMs: number): number {
  return ttlMs + Math.min(ttlMs, MOST_LATE_MS);
}

/** The age at which a reservation is renewed by whoever comes next. */
export function refillMs(ttlMs: number): number {
  return 0.75 * spendableMs(ttlMs);
}

/** With so many units left, or fewer, it is time to ask for more. */
export function lowUnits(units: number, asked: number, elapsedMs: number): number {
  return Math.floor(Math.min(units / 2, (asked / Math.max(1, elapsedMs)) * AHEAD_MS));
}

/** What one rule says of a wish. */
export interface Wish {
  readonly wanted: number;
  /** Of those, units that the holder has already. */
  readonly kept: number;
  /** Units that nobody holds and nobody used. */
  readonly free: number;
  readonly capacity: number;
  /** What the others hold, and what they last wanted. */
  readonly heldByOthers: number;
  readonly wantedByOthers: number;
  readonly isShort: boolean;
}

/**
 * Units to grant beside those that are kept: of all rules the same part of what is wanted, since one alone is of no
 * use.
 */
export function grantedTogether(wishes: readonly Wish[]): number[] {
  const missing = wishes.map(({ wanted, kept }) => Math.max(0, wanted - kept));
  const parts = wishes.map((wish, index) => {
    const units = missing[index] ?? 0;
    return units === 0 ? 1 : grantedUnits(wish) / units;
  });
  const part = Math.min(...parts);
  // Rounding must not lose the unit that a product of fractions just fails to reach.
  return missing.map((units) => Math.floor(units * part + 1e-6));
}

function grantedUnits({ wanted, kept, free, capacity, isShort, ...others }: Wish): number {
  // A unit at a time is no reservation.
  if (mostUnits(capacity) < 2) return 0;
  const share = wanted / ((isShort ? 1 : 2) * wanted + others.wantedByOthers);
  const fair = (free + kept + others.heldByOthers) * share;
  const most = Math.floor(Math.min(wanted, fair, mostUnits(capacity)));
  return Math.max(0, Math.min(most - kept, free));
}

/** The most units that an isolate is given of a capacity. */
export function mostUnits(capacity: number): number {
  return capacity * MOST_SHARE;
}

/** Whether so few units may be away for longer than the shortest lifetime. */
export function isSpare(units: number, free: number): boolean {
  return units <= free * SPARE_SHARE;
}
