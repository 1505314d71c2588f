/**
 * How many units a holder requests, for how long, and how many the object grants. All numbers of reservations are
 * here.
 *
 * A reservation saves messages, but while one isolate has units, others cannot use them until they are used, returned
 * or expired. So a reservation should be as large as is needed soon, and no larger. Pure functions:
 *
 * - *Hot*: a key with `HOT_CALLS` calls and no pause longer than the longest lifetime. Fewer would reserve for keys
 *   that come twice and not again. More would send every call of a key with a call every few seconds to the object.
 * - *Lifetime*: time for `CALLS_PER_LIFETIME` calls at the measured pace, within the policy's bounds (1 to 8 s). A
 *   busy key has the shortest: it needs the fewest units, follows a change of demand within a second, and units of a
 *   vanished isolate are missing for the shortest time (`heldMs`). It has at least `LIFETIME_TRIPS` round trips, so
 *   holders that are far away, or wait for each other, send fewer messages. A key with one call a second would use two units of
 *   such a reservation, so it keeps a few for longer, but only while they are at most `SPARE_SHARE` of the free units.
 * - *Wanted*: the demand measured since the last message, over the lifetime, but at most `GROWTH` times the units of
 *   the calls since then. So the first reservation is small, four small ones reach any size, and a single burst
 *   reserves little. When demand rises, the units run out early, and the reservation follows within a lifetime. A fall
 *   shows in the last quarter of a lifetime: wanted units fall to two thirds or less within one lifetime, and to the
 *   new demand within one and a half.
 * - *Granted*: a share of the free and reserved units. Holders with units or recent requests share in proportion to
 *   what they want, and as much again is left for the next holder (a lone isolate gets half), unless calls already
 *   wait. So calls in all isolates have the same chance. A share below one unit reserves nothing: the object gives
 *   single units to calls. No holder has more than `MAX_SHARE` of the capacity (far ones of a log or window
 *   `MAX_SHARE_FAR`), or more than returns soon
 *   (`maxLost`), which bounds the loss by one vanished isolate. Therefore limits below 32 reserve nothing, nor do
 *   slow ones below 2,000.
 * - *Refilled*: before units are missing, when the remaining ones last `AHEAD_MS`, or one and a half round trips if
 *   that is longer, when they are half of the reservation, or in the last quarter of a lifetime.
 *
 * `test/simulation/` tests these numbers with up to 32 isolates. docs/measurements.md has the results.
 */
import type { Lifetimes, Rule } from "../policies/policy.ts";
import { MESSAGE_MS } from "../protocol/messages.ts";

/** Calls without a long pause that make a key hot. */
export const HOT_CALLS = 3;
const CALLS_PER_LIFETIME = 8;
const GROWTH = 4;
const MAX_SHARE = 1 / 16;
/** While a message of a far holder is under way its calls use more: at half of 2,000 in 2 s, 85 in 170 ms. */
const MAX_SHARE_FAR = 1 / 4;
const SPARE_SHARE = 1 / 32;
const AHEAD_MS = 100;
const LIFETIME_TRIPS = 8;
/** The longest repetition of a denial where other holders may return units. */
export const MAX_DENIED_MS = 1_000;
/**
 * Denials this recent are many: after one, a single call goes to the object for all. After shorter ones that lost
 * 1.5 % of a limit of 1,000 a second under twice the load.
 */
export const FLOOD_MS = 100;
/** The wait of these denials: about as long as a message takes. */
export const REQUEST_WAIT_MS = 50;
/** The end of a lifetime, when nothing is spent: unused units return, and clocks may differ. */
export const MAX_MARGIN_MS = 250;
/** The object keeps units apart for at most this long after their lifetime. */
const MAX_LATE_MS = 1_000;

/**
 * The units requested for the second call of a key, for the longest lifetime, where many keys share an object and the
 * units can be spared. Over a shorter lifetime they are none.
 *
 * Messages of one isolate for 1,000 calls on 10,000 Zipf keys that share 16 objects, and on keys that come once
 * (test/simulation/one-isolate.ts):
 *
 *     a few units at    Zipf 10,000/s   1,000/s   300/s   100/s    10/s    once 1,000/s   100/s    10/s
 *     the first call            161       432     676     950   1,503          1,080    1,800   2,000
 *     the second                177       451     603     724     936          1,000    1,000   1,000
 *     none but when hot         191       455     593     702     912          1,000    1,000   1,000
 *
 * At the first call, keys that come once would cost a second message, to return the units, unless many keys return
 * together. And under 1,000 an hour, where memory may be two units ahead of storage, they would write two rows instead
 * of none. Most isolates have hundreds of calls a second, not thousands.
 */
export const FEW_UNITS = 7;
/** Calls without a long pause that are worth these few units. */
export const WARM_CALLS = 2;

/** A region's object goes on for so many of the longest lifetimes: a home object that stands still for 10 s is not noticed. */
const LIVES_OF_REGION = 1.5;

/** The longest time for which any holder may have units. */
export function longestMs({ mostMs }: Lifetimes): number {
  return LIVES_OF_REGION * mostMs;
}

interface MeasuredDemand {
  readonly calls: number;
  readonly units: readonly number[];
  readonly sinceMs: number;
}

/** A holder's request. Arrays have one number for each rule, in the policy's order. */
export interface WantedUnits {
  readonly ttlMs: number;
  /** Including the units that it already has. */
  readonly units: readonly number[];
  /** The remaining units at which to request more. */
  readonly low: readonly number[];
  readonly isShort: boolean;
}

export function lifetimeMs(
  { calls, sinceMs }: MeasuredDemand,
  nowMs: number,
  { leastMs, mostMs }: Lifetimes,
  tripMs = 0,
): number {
  const paceMs = Math.max(1, nowMs - sinceMs) / Math.max(1, calls);
  const ttlMs = Math.ceil(Math.max(CALLS_PER_LIFETIME * paceMs, LIFETIME_TRIPS * tripMs));
  return Math.min(mostMs, Math.max(leastMs, ttlMs));
}

/** Calls this long ago count a third of new ones: chance in the demand costs a part of the limit, over 1 s it was 2 %. */
const RECENT_MS = 3_000;
/** Calls at random are fewer than expected by so many standard deviations once in 30,000 times. Then others need its part. */
const FALL = 4;
/** A process that has not run for a moment had no calls then: less time than this says nothing of a fall. */
const MIN_FALL_MS = 250;
/** Calls at random are so many more than twice as many as expected less often than once in a million times. */
const RISE = 8;
/** A key is hot because calls came fast, so over less time their rate is too high. */
const MIN_RECENT_MS = 500;

/** The units that calls needed in the last seconds, and the time, each counted with less weight the longer ago it was. */
export class RecentDemand {
  #units: readonly number[] = [];
  #calls = 0;
  #ms = 0;
  /** Whether the last calls were far more than expected. */
  hasRisen: boolean | undefined;

  /** @param units by rule, those of the calls */
  add(calls: number, units: readonly number[], elapsedMs: number): void {
    const expected = (this.#calls * elapsedMs) / this.#ms;
    this.hasRisen = calls > 2 * expected + RISE;
    const hasFallen = elapsedMs >= MIN_FALL_MS && expected - calls > FALL * Math.sqrt(expected);
    const weight = hasFallen || this.hasRisen ? 0 : Math.exp(-elapsedMs / RECENT_MS);
    this.#calls = weight * this.#calls + calls;
    this.#units = units.map((each, index) => weight * (this.#units[index] ?? 0) + each);
    this.#ms = weight * this.#ms + elapsedMs;
  }

  /** By rule: the units that calls need in a second. */
  get perSecond(): readonly number[] {
    const ms = Math.max(this.#ms, MIN_RECENT_MS);
    return this.#units.map((units) => (1_000 * units) / ms);
  }
}

/** By rule: units that the holder needs for a lifetime of `ttlMs`, including those that remain. */
export function wantedUnits({ units, sinceMs }: MeasuredDemand, nowMs: number, ttlMs: number): number[] {
  const lifetimes = ttlMs / Math.max(1, nowMs - sinceMs);
  return units.map((used) => Math.min(Math.ceil(used * lifetimes), GROWTH * used));
}

/** How long units that were reserved for `ttlMs` may be spent. */
export function spendableMs(ttlMs: number): number {
  return ttlMs - marginMs(ttlMs);
}

/** How long nothing is spent at the end of such a lifetime. */
export function marginMs(ttlMs: number): number {
  return Math.min(ttlMs / 4, MAX_MARGIN_MS);
}

/** How long the object keeps units apart: a message that returns them may wait, and late units count as used. */
export function heldMs(ttlMs: number): number {
  return ttlMs + Math.min(ttlMs, MAX_LATE_MS);
}

/** The age from which the next call renews a reservation. */
export function refillMs(ttlMs: number): number {
  return 0.75 * spendableMs(ttlMs);
}

/** The remaining units at which to request more. `used`: by the calls in the last `elapsedMs`. */
export function lowUnits(units: number, used: number, elapsedMs: number, tripMs = 0): number {
  const aheadMs = Math.max(AHEAD_MS, 1.5 * tripMs);
  return Math.floor(Math.min(units / 2, (used / Math.max(1, elapsedMs)) * aheadMs));
}

/** The least burst of the bucket of a holder that is busy: a smaller one is full, or empty, too often. */
export const MIN_BURST = 6;

/** Fewer holders do not fill an object: each has one message under way. */
const MANY_HOLDERS = 8;
const MAX_QUIET_MS = 4_000;

/**
 * How long each of many holders denies by itself, if one unit is back each `unitMs`: until the object can hear each of them
 * once, and the part of each in what is back is a unit. Otherwise all ask as soon as one unit is back. 0: they are few.
 */
export function quietMs(holders: number, unitMs: number): number {
  return holders < MANY_HOLDERS ? 0 : Math.min(MAX_QUIET_MS, holders * Math.max(MESSAGE_MS, unitMs));
}

/** After a denial the next calls of far holders come to the object this much later, if they are few. */
const EVEN_MS = 250;

/**
 * How long a holder denies by itself, of what an answer says. Where holders are few, far ones all ask equally often: one with
 * a short way waits longer, and no denial is so long that after it a single call asks for all (`FLOOD_MS`). Of 32 on a log at
 * twice its limit those in 30 ms had twice as much as those in 180 ms, and at twenty times twenty times as much.
 *
 * @param isEven the holder is far, its object not in its region, and it can have a bucket
 */
export function quietOfMs(saidMs: number, tripMs: number, isEven: boolean): number {
  if (!isEven || saidMs >= FLOOD_MS) return Math.max(saidMs, tripMs);
  return Math.min(FLOOD_MS - 1, Math.max(saidMs, EVEN_MS - tripMs));
}

/**
 * The longest wait of a call for its unit at a region's object (durable-objects/regions/unit-turns.ts). Longer ones admit 0.5 %
 * more of a log, but meanwhile their holders make calls that ask as well: at 75 ms some of 1,000 had more than others, with
 * twenty times the limit (Jain 0.81; at 40 ms 0.90, as before calls waited).
 */
export const MAX_TURN_MS = 40;
/** A holder has one message under way. Where its units come faster than its messages, it takes several with one, at once. */
const MIN_TURN_MS = 200;

/** Whether calls of so many holders wait for units one by one, of which one comes each `unitMs`. */
export function takeTurns(holders: number, unitMs: number): boolean {
  return 2 * unitMs <= MAX_TURN_MS && holders * unitMs >= MIN_TURN_MS;
}

export interface Wish {
  readonly wanted: number;
  readonly kept: number;
  readonly free: number;
  readonly max: number;
  readonly heldByOthers: number;
  readonly wantedByOthers: number;
  readonly isShort: boolean;
}

/** By rule, the same part of what is missing, since a call needs units of all rules. */
export function grantedTogether(wishes: readonly Wish[]): number[] {
  const missing = wishes.map(({ wanted, kept }) => Math.max(0, wanted - kept));
  const parts = wishes.map((wish, index) => {
    const units = missing[index] ?? 0;
    return units === 0 ? 1 : grantedUnits(wish) / units;
  });
  const part = Math.min(...parts);
  // Floating-point error in a product of fractions must not lose a unit.
  return missing.map((units) => Math.floor(units * part + 1e-6));
}

function grantedUnits({ wanted, kept, free, max, isShort, ...others }: Wish): number {
  // A reservation of a single unit saves no message.
  if (max < 2) return 0;
  const share = wanted / ((isShort ? 1 : 2) * wanted + others.wantedByOthers);
  const fair = (free + kept + others.heldByOthers) * share;
  return Math.max(0, Math.min(Math.floor(Math.min(wanted, fair, max)) - kept, free));
}

/** The maximum of units of a rule for one holder, possibly a fraction. */
export function maxUnits(rule: Pick<Rule, "capacity" | "quota">, isFar = false): number {
  return Math.min(rule.capacity * (isFar ? MAX_SHARE_FAR : MAX_SHARE), maxLost(rule));
}

export function isSpare(units: number, free: number): boolean {
  return units <= free * SPARE_SHARE;
}

const SOON_MS = 10_000;
const MIN_SHARE = 0.001;

/** The most units that a crash may cost: what returns within 10 s, or 0.1 % of the limit if that is more. */
export function maxLost({ capacity, quota }: Pick<Rule, "capacity" | "quota">): number {
  const soon = quota.windowMs === undefined ? 0 : (quota.units * SOON_MS) / quota.windowMs;
  return Math.max(soon, capacity * MIN_SHARE);
}

/**
 * The burst of a holder's bucket of a full log, which is held twice. The nearer what calls need is to what comes, the longer
 * there may be none: then all that comes beyond the burst is lost. What comes in two milliseconds may come at once.
 *
 * @param calls the units that calls need in a window, of which `held` are held for the bucket
 * @returns `burst`: as much as is needed, `most`: as much as there is
 */
export function burstIfFull(
  held: number,
  calls: number,
  windowMs: number,
): { readonly burst: number; readonly most: number } {
  const burst = Math.max(0.8 + 1.6 / Math.max(calls / held - 1, 0.08), 0.7 + (2 * held) / windowMs);
  const roomy = Math.min(Math.floor((held - 1.05 * calls) / 2), Math.floor(held / 8));
  return { burst, most: Math.max(Math.min(Math.ceil(burst), Math.floor(held / 24)), roomy) };
}

/** With a larger one than this the holder of such a part misses more than with units. Who has a bucket does not lose it by chance. */
export function mostBurstIfFull(part: number, hasBucket: boolean): number {
  return ((hasBucket ? 2 : 1) * part - 20) / 30;
}
