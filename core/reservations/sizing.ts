/**
 * How many units a holder asks for, for how long, and how many the object grants. All numbers of reservations are
 * here.
 *
 * A reservation saves messages, but while one isolate has units, the others cannot use them: until they are used,
 * given back or expire. So a reservation should be as large as is needed soon, and no larger. Pure functions:
 *
 * - *Hot*: a key with `HOT_CALLS` calls and no pause longer than the longest lifetime. Fewer would reserve for keys that
 *   come twice and not again. More would send every call of a key with a call every few seconds to the object.
 * - *Lifetime*: time for `CALLS_PER_LIFETIME` calls at the measured pace, within what the policy allows (1 to 8 s). A
 *   busy key has the shortest: then it wants the fewest units, follows a change of demand within a second, and the units
 *   of an isolate that vanished are missing for the shortest time (`heldMs`). A key with one call a second would use two
 *   units of such a reservation. So it keeps a few units for longer, but only while they are at most `SPARE_SHARE` of
 *   the free units. Where units are scarce, every lifetime is the shortest.
 * - *Wanted*: the demand measured since the last message, over the lifetime, but at most `GROWTH` times the units of the
 *   calls since then. So the first reservation is small, four small ones lead to any size, and a single burst reserves
 *   little. When demand rises, the units run out early, and the reservation follows within a lifetime. A fall is seen in
 *   the last quarter of a lifetime: wanted units fall to two thirds or less within one lifetime, and to the new demand
 *   within one and a half.
 * - *Granted*: a share of the units that are free or reserved. Holders that have units or asked lately share in
 *   proportion to what they want, and as much again is left for the next holder (a lone isolate gets half), unless calls
 *   wait for the units already. So every call has the same chance, in whatever isolate. When almost nothing is left, a
 *   share is less than one unit: then nothing is reserved, and the object gives single units to calls. No holder has
 *   more than `MAX_SHARE` of the capacity, nor more than comes back soon (`mostLost`): so much one vanished isolate
 *   costs. Therefore limits below 32 reserve nothing, nor do slow ones below 2,000.
 * - *Refilled*: before units are missing. It is time when the units that are left last `AHEAD_MS`, which is longer than
 *   a message takes, when they are half of what there was, or in the last quarter of a lifetime.
 *
 * `test/simulation/` tries these numbers with up to 32 isolates. docs/performance.md has the results.
 */
import type { Lifetimes, Rule } from "../policies/policy.ts";

/** So many calls without a long pause make a key hot. */
export const HOT_CALLS = 3;
const CALLS_PER_LIFETIME = 8;
const GROWTH = 4;
const MAX_SHARE = 1 / 16;
const SPARE_SHARE = 1 / 32;
const AHEAD_MS = 100;
/** A denial is repeated for so long at most, where other holders may give units back. */
export const MAX_DENIED_MS = 1_000;
/**
 * Calls that were denied so recently are many: when their denial is over, one of them asks, and the others do not. Not
 * after a shorter denial: then 1.5 % of a limit of 1,000 a second, with twice as many calls, was not admitted.
 */
export const FLOOD_MS = 100;
/** The wait of these denials: about as long as a message takes. */
export const REQUEST_WAIT_MS = 50;
/** For so long at the end of a lifetime nothing is spent: unused units go back then, and clocks may differ. */
export const MAX_MARGIN_MS = 250;
/** The object keeps units apart for so much longer than their lifetime, at most. */
const MAX_LATE_MS = 1_000;

/**
 * A key that comes a second time asks for so many units, for the longest lifetime, where many keys share an object and
 * the units can be spared for so long. Over a shorter lifetime they are none.
 *
 * Messages of one isolate for 1,000 calls on 10,000 Zipf keys that share 16 objects, and on keys that come once
 * (test/simulation/one-isolate.ts):
 *
 *     a few units at    Zipf 10,000/s   1,000/s   300/s   100/s    10/s    once 1,000/s   100/s    10/s
 *     the first call            161       432     676     950   1,503          1,080    1,800   2,000
 *     the second                177       451     603     724     936          1,000    1,000   1,000
 *     none but when hot         191       455     593     702     912          1,000    1,000   1,000
 *
 * From the first call on, one message more gives back the units of keys that do not come again, unless so many keys come
 * that their units go back together. And under 1,000 an hour, where memory may be two units ahead of storage, a key that
 * comes once would write two rows instead of none. Most isolates have hundreds of calls a second, and not thousands.
 */
export const FEW_UNITS = 7;
/** Calls without a long pause that are worth these few units. */
export const WARM_CALLS = 2;

/** The demand since `sinceMs`: the number of calls, and their units of each rule. */
interface MeasuredDemand {
  readonly calls: number;
  readonly units: readonly number[];
  readonly sinceMs: number;
}

/** What a holder asks for. Arrays have one number for each rule, in the policy's order. */
export interface WantedUnits {
  /** The lifetime of the units, in milliseconds. */
  readonly ttlMs: number;
  /** Units that the holder wants to have, those that it has already included. */
  readonly units: readonly number[];
  /** When so many units are left, or fewer, it is time to ask again. */
  readonly low: readonly number[];
  /** Calls had to wait, because there were too few units. */
  readonly isShort: boolean;
}

/** The lifetime to ask for, in milliseconds. */
export function lifetimeMs(
  { calls, sinceMs }: MeasuredDemand,
  nowMs: number,
  { leastMs, mostMs }: Lifetimes,
): number {
  const paceMs = Math.max(1, nowMs - sinceMs) / Math.max(1, calls);
  return Math.min(mostMs, Math.max(leastMs, Math.ceil(CALLS_PER_LIFETIME * paceMs)));
}

/** By rule: units that the holder wants to have for a lifetime of `ttlMs`, those that are left included. */
export function wantedUnits({ units, sinceMs }: MeasuredDemand, nowMs: number, ttlMs: number): number[] {
  const lifetimes = ttlMs / Math.max(1, nowMs - sinceMs);
  return units.map((used) => Math.min(Math.ceil(used * lifetimes), GROWTH * used));
}

/** How many milliseconds units may be spent that were reserved for `ttlMs`. */
export function spendableMs(ttlMs: number): number {
  return ttlMs - marginMs(ttlMs);
}

/** How many milliseconds at the end of such a lifetime nothing is spent. */
export function marginMs(ttlMs: number): number {
  return Math.min(ttlMs / 4, MAX_MARGIN_MS);
}

/**
 * How many milliseconds the object keeps units apart that were reserved for `ttlMs`. It is longer than the lifetime,
 * because a message that gives units back may have to wait at a busy object, and units that come too late count as
 * used.
 */
export function heldMs(ttlMs: number): number {
  return ttlMs + Math.min(ttlMs, MAX_LATE_MS);
}

/** The age in milliseconds from which the next call renews a reservation. */
export function refillMs(ttlMs: number): number {
  return 0.75 * spendableMs(ttlMs);
}

/**
 * With so many units left, or fewer, it is time to ask for more.
 *
 * @param units wanted units
 * @param used units of the calls in the last `elapsedMs`
 */
export function lowUnits(units: number, used: number, elapsedMs: number): number {
  return Math.floor(Math.min(units / 2, (used / Math.max(1, elapsedMs)) * AHEAD_MS));
}

/** What a holder wants of one rule, and what there is. */
export interface Wish {
  readonly wanted: number;
  /** Of the wanted units, those that the holder has already. */
  readonly kept: number;
  /** Units that are neither used nor held. */
  readonly free: number;
  /** The most units that the holder may have: see `mostUnits`. */
  readonly most: number;
  /** Units that the other holders have, and units that they wanted last. */
  readonly heldByOthers: number;
  readonly wantedByOthers: number;
  /** Calls wait for units. */
  readonly isShort: boolean;
}

/**
 * Units to grant in addition to the kept ones, by rule. Every rule grants the same part of what is missing, since a
 * call needs units of all rules.
 */
export function grantedTogether(wishes: readonly Wish[]): number[] {
  const missing = wishes.map(({ wanted, kept }) => Math.max(0, wanted - kept));
  const parts = wishes.map((wish, index) => {
    const units = missing[index] ?? 0;
    return units === 0 ? 1 : grantedUnits(wish) / units;
  });
  const part = Math.min(...parts);
  // The product of two fractions may be a little too small, and rounding must not lose a unit for that.
  return missing.map((units) => Math.floor(units * part + 1e-6));
}

function grantedUnits({ wanted, kept, free, most, isShort, ...others }: Wish): number {
  // A reservation of a single unit saves no message.
  if (most < 2) return 0;
  const share = wanted / ((isShort ? 1 : 2) * wanted + others.wantedByOthers);
  const fair = (free + kept + others.heldByOthers) * share;
  return Math.max(0, Math.min(Math.floor(Math.min(wanted, fair, most)) - kept, free));
}

/** The most units of a rule that one holder may have. It need not be a whole number. */
export function mostUnits(rule: Pick<Rule, "capacity" | "quota">): number {
  return Math.min(rule.capacity * MAX_SHARE, mostLost(rule));
}

/** Whether so many units are few enough to be reserved for longer than the shortest lifetime. */
export function isSpare(units: number, free: number): boolean {
  return units <= free * SPARE_SHARE;
}

const SOON_MS = 10_000;
const MIN_SHARE = 0.001;

/**
 * The most units of a rule that a crash or a vanished isolate may cost, since they were set apart and count as used:
 * what comes back within 10 s, or 0.1 % of the limit where that is more. It need not be a whole number.
 */
export function mostLost({ capacity, quota }: Pick<Rule, "capacity" | "quota">): number {
  const soon = quota.windowMs === undefined ? 0 : (quota.units * SOON_MS) / quota.windowMs;
  return Math.max(soon, capacity * MIN_SHARE);
}
