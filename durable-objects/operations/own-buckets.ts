/**
 * Buckets of holders: a holder that is far away, or one of many, gets a bucket of its own for some seconds, with a rate r
 * and at most b units, and decides by itself. The account is then a bucket of R - Σr and B - Σb. A bucket that is cut into
 * buckets admits in any interval what it admitted whole, B + R L, whoever has which part. Units alone count against B until
 * they are used, so holders that keep them for a time T cap a key at B / T units a second.
 *
 * A bucket is a hold with a rate (core/accounts/hold.ts): its units are b and those that may come early, and what came at
 * its rate counts as used as it comes. Of a holder's old and new rate the larger counts until its next message says which it
 * has. Units that it gives up, or has when it ends, count as used unless it says that they are left. What is left in the
 * object fills buckets up.
 */
import { outstandingOf, refund, remainingOf } from "../../core/accounts/account.ts";
import {
  type Account,
  configBeside,
  heldUnits,
  rateWindowMs,
  type RuleAccount,
} from "../../core/accounts/hold.ts";
import type { Rate } from "../../core/algorithms/algorithm.ts";
import { RATE_WINDOWS } from "../../core/algorithms/token-bucket.ts";
import { largestThat } from "../../core/policies/plan-windows.ts";
import { isCuttable, type Rule } from "../../core/policies/policy.ts";
import type { Bucket, Reserved, RuleDecision } from "../../core/protocol/answers.ts";
import type { ReserveCall, Reserving } from "../../core/protocol/calls.ts";
import {
  burstIfFull,
  longestMs,
  MAX_MARGIN_MS,
  maxUnits,
  MIN_BURST,
  mostBurstIfFull,
  takeTurns,
} from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";
import { roomOfCaller } from "./client-bounds.ts";
import type { Params } from "./operations.ts";

/** The part of a rule that is cut into buckets of holders: the rest decides single calls. */
const SHARED = 0.98;
/** Where holders ask objects in regions, the home object decides few calls. */
const SHARED_WITH_REGIONS = 0.995;
/** As many holders get buckets also where they are near: the object hears less often of each. */
const MANY_HOLDERS = 64;
/** A bucket lasts until the object has heard each holder once, at 200 messages a second. */
const LIFE_MS_PER_HOLDER = 5;
const MIN_LIFE_MS = 2_000;
/**
 * A smaller bucket is full too often while its holder has no calls: at half of what they need, one of 6 units loses 0.6 %
 * of its rate, and one of 3 units 6 %.
 */
const MIN_UNITS = 4;
/** A bucket has room for the calls of this time: at its rate it is soon full again. */
const BURST_MS = 1_000;
/** A region's object needs more for each of its holders: its bucket is cut again. */
const MIN_BURST_OF_REGION = 8;
/** Of what calls need: holders that come first leave something for those that come later. */
const MAX_RATE = 1.5;
/**
 * When the load moves to other holders, these need units while the others still have theirs: at 1.5, of a load at half of the
 * limit two thirds were admitted in the first seconds, and at 1.75 nine tenths. At 2, regions had all of a limit of which
 * half was needed: of processes that left their isolates then a tenth was denied.
 */
const MAX_RATE_OF_REGION = 1.75;

/** A region's object asks for its first bucket before it knows its holders: it has few until the next one, which takes a trip. */
const FIRST_SHARE = 1 / 28;
/** What it does not need counts as used for a window. */
const FIRST_SHARE_OF_WINDOW = 1 / 72;
/** Of a log or window, the burst is held twice. */
const MAX_TIGHT_BURST = 6;
/** Where calls wait for units (regions/unit-turns.ts), it is two, and what comes in this time. */
const TIMER_MS = 4;
const MUCH_SMALLER = 0.75;
/** Of a log of which calls need so much, few far holders get buckets, until they need less: with units they miss a tenth of it. */
const [FULL, STAYS_FULL] = [0.85, 0.7];
/** Calls seem to need so much at a start, also where they need half of the limit. */
const OVERFULL = 1.5;
/** Of 300 isolates one region got nearly all of a log before others were heard: at twenty times 81 % were admitted, not 93. */
const CROWD = 512;
/** Single calls find so much beside these buckets. */
const SHARED_IF_FULL = 0.99;
/**
 * A rate that is hardly above the fair one stays: of two rates the larger counts until the holder's next message, and what
 * calls need is only estimated. Of 3,000 holders that changed with each message, 4 % of the limit were counted twice. At 0.9
 * a start of 300 takes half a second longer, and at 0.75 parts are unequal.
 */
const [STEADY, STEADY_REGION] = [0.8, 0.85];

/** What a holder says of one rule. */
interface Asking extends RuleAccount {
  /** Its present bucket: the most units in it, how fast they come, and how many there are. */
  readonly kept: number;
  readonly rate: number;
  readonly level: number;
  /** The units that its calls need in a millisecond. Absent: unknown. */
  readonly demand: number | undefined;
}

interface AskingHolder {
  readonly id: string;
  readonly holder: { readonly hold: string };
}

/**
 * Cuts buckets for a holder. @returns `undefined`: a rule cannot be cut, or its bucket would be too small; `isFull`: nothing is
 * left beside buckets, and holders want more; `moved`: by rule, what leaves a log since it is held for the bucket
 */
export function ownBuckets(
  { holders, policy, endsByMs }: KeyState,
  {
    takesBucket,
    ttlMs: askedMs,
    holders: holdersThere,
    near,
  }: Pick<ReserveCall, "takesBucket" | "ttlMs" | "holders" | "near">,
  { id, rules, holder }: AskingHolder & { readonly rules: readonly Asking[] },
  nowMs: number,
) {
  const isWanted = takesBucket === true || (takesBucket === false && holders.size >= MANY_HOLDERS);
  // A bucket knows nothing of units that are kept for more important calls.
  if (!isWanted || policy.pool !== undefined || policy.priorities.seen.size > 0) return undefined;
  const lifeMs = Math.max(MIN_LIFE_MS, LIFE_MS_PER_HOLDER * holders.size, askedMs);
  // A region's object cuts buckets from its own, each with what may come early. Its first message knows of few calls.
  const isRegion = holdersThere !== undefined;
  const isCounted = holders.sentTo(near, nowMs).there > 0;
  const unheardFactor = holders.unheardFactor(id, holdersThere ?? 1, nowMs);
  const { mostMs } = policy.reservation;
  const ttlMs = Math.min(lifeMs, isRegion ? longestMs(policy.reservation) : mostMs, endsByMs - nowMs);
  const isCrowd = isRegion && holders.countWithRegions(nowMs) >= CROWD;
  const units: number[] = [];
  const buckets: Bucket[] = [];
  const moved: number[] = [];
  let isFull = false;
  for (const asking of rules) {
    const { rule, kept, demand: said = 0 } = asking;
    if (!isCuttable(rule) || said <= 0) return undefined;
    const windowMs = rateWindowMs(rule);
    const perWindows = RATE_WINDOWS * rule.quota.units;
    const isByWindow = rule.algorithm.isCutByWindow === true;
    const first = ((isByWindow ? FIRST_SHARE_OF_WINDOW : FIRST_SHARE) * perWindows) / windowMs;
    const demand = isRegion && kept === 0 && !isCounted ? Math.max(said, first) : said;
    const each = isRegion && kept > 0 && !isByWindow ? demand / holdersThere : 0;
    const part = holders.shareOf(id, rule.name, { said: demand, rate: perWindows / windowMs, each }, nowMs);
    // One that is cut from a window may be too small soon.
    const factor = isByWindow ? 1 : unheardFactor;
    const shared = isRegion ? SHARED_WITH_REGIONS : isByWindow ? SHARED_IF_FULL : SHARED;
    const share = { demand, share: (shared * part.share) / factor, shared };
    const isFullOfHolders = factor * part.demand * windowMs > perWindows;
    // One of a caller's clients gets no more than what these leave of their half.
    const room = part.isContested ? roomOfCaller(asking, perWindows, { id, ...holder }) : undefined;
    const count = { holders: holders.size, holdersThere };
    const cut = !isByWindow
      ? cutOfBucket(asking, share, { ttlMs, room, ...count }, nowMs)
      : isRegion
        ? cutOfWindow(asking, { ...share, all: isCrowd ? part.demand : 0 }, holdersThere, nowMs)
        : cutOfFullLog(asking, { ...share, room, all: takesBucket ? part.demand : 0 }, nowMs);
    if (cut === undefined) return undefined;
    const isHeld = isByWindow && !isRegion;
    buckets.push({ rate: { units: cut.rate, windowMs, ...(isHeld && { isHeld }) }, most: cut.most });
    units.push(cut.got);
    moved.push(cut.moved);
    const left = isByWindow ? Number(!isHeld) : remainingOf(rule, asking.account, nowMs) - cut.got;
    isFull ||= isFullOfHolders && left < 1;
  }
  return { ttlMs, units, buckets, isFull, moved };
}

/**
 * What a region's object says, and of the holders that were sent there and have not come yet: its first messages know few of
 * its holders. Before it has a bucket, all that were sent anywhere need the whole limit together; then as much as those that
 * it knows.
 */
export function withSent(
  { holders, policy }: KeyState,
  call: Params<"reserve">,
  nowMs: number,
): Params<"reserve"> {
  const { holders: known } = call;
  const { all, there } = holders.sentTo(call.near, nowMs);
  if (known === undefined || there <= known) return call;
  const completed = ([name, said]: [string, Reserving]): [string, Reserving] => {
    const rule = policy.rules.find((each) => each.name === name);
    if (rule === undefined || rule.algorithm.isCutByWindow === true) return [name, said];
    const whole = (1_000 * RATE_WINDOWS * rule.quota.units) / rateWindowMs(rule);
    const { demand = 0, kept } = said;
    const needed = kept === 0 ? Math.max(demand, (whole * there) / all) : (demand * there) / known;
    return [name, { ...said, demand: needed }];
  };
  return { ...call, holders: there, rules: Object.fromEntries(Object.entries(call.rules).map(completed)) };
}

/** What one of many holders may have of a rule. */
interface Share {
  readonly demand: number;
  readonly share: number;
  readonly shared: number;
}

interface Bounds {
  readonly ttlMs: number;
  /** Of a client in another process: what its caller's clients leave of their half, which others want too. */
  readonly room: { readonly units: number; readonly rate: number } | undefined;
  readonly holders: number;
  /** Of a region's object. */
  readonly holdersThere: number | undefined;
}

/** A bucket for a holder, cut from a limit whose units come at a rate. */
function cutOfBucket(
  { rule, account, kept, level, rate: own }: Asking,
  { demand, share, shared }: Share,
  { ttlMs, room, holders, holdersThere }: Bounds,
  nowMs: number,
) {
  const isRegion = holdersThere !== undefined;
  const [{ capacity }, windowMs] = [rule, rateWindowMs(rule)];
  const perWindows = RATE_WINDOWS * rule.quota.units;
  // What this holder has now is its own until it has another, also where a region's object has less to cut than before.
  const present = kept === 0 ? 0 : own;
  const taken = heldUnits(account.holds).rate.units - present;
  const owes = isInDebt(rule, account, nowMs);
  const roomRate = Math.min(Math.floor(perWindows * shared) - taken, room?.rate ?? Infinity);
  const uncutRate = owes ? present : Math.max(present, roomRate);
  const wanted = (isRegion ? MAX_RATE_OF_REGION : MAX_RATE) * demand * windowMs;
  // What the others leave has room for its units, and for those that come early at its rate.
  const others = outstandingOf(account) - heldFor(rule, kept, present);
  const free = Math.min(Math.floor(capacity * shared) - others, room?.units ?? Infinity);
  const mostRate = Math.max(present, Math.floor(((free - kept) * windowMs) / MAX_MARGIN_MS));
  const fairRate = Math.floor(Math.min(perWindows * share, wanted, uncutRate, mostRate));
  const steady = isRegion ? STEADY_REGION : STEADY;
  const rate = fairRate < present && fairRate > steady * present ? present : fairRate;
  const need = Math.max(
    isRegion ? MIN_BURST_OF_REGION * holdersThere : MIN_BURST,
    demand * BURST_MS * (isRegion ? 1.5 : 1),
  );
  const max = isRegion ? capacity : maxUnits(rule);
  const part = Math.min(max, capacity * share - earlyUnits(rule, rate), need);
  const isRoomy =
    holders >= MANY_HOLDERS && capacity >= MIN_UNITS * holders && capacity * share >= MIN_UNITS / 2;
  const least = isRegion ? MIN_BURST : isRoomy ? Math.min(max, MIN_UNITS) : 0;
  const fair = Math.max(least, Math.floor(part));
  // Until its next message it may have the rate that it has now.
  const uncut = owes ? kept : free - earlyUnits(rule, Math.max(rate, present));
  // What it gives up counts as used, so it keeps what nobody else needs now.
  const isSpare = room === undefined && uncut - kept >= fair;
  const most = Math.min(Math.max(uncut, kept), fair < kept && isSpare ? kept : fair);
  const minUnits = isRegion ? 1 : MIN_UNITS;
  if ((rate * ttlMs) / windowMs < minUnits || most < minUnits) return undefined;
  const got = Math.max(0, Math.min(most - level, remainingOf(rule, account, nowMs)));
  return { rate, most, got, moved: 0 };
}

/**
 * A bucket for a region's object, cut from a limit for any window. In each window it admits no more than is held for it
 * (`heldFor`), so it gets no more than what nobody used in the last window and nobody holds. Isolates there keep units.
 */
function cutOfWindow(
  { rule, account, kept, rate }: Asking,
  { demand, share, shared, all }: Share & { readonly all: number },
  holders: number,
  nowMs: number,
) {
  const { capacity, quota, algorithm, config } = rule;
  const { windowMs = 0 } = quota;
  const [present, own] = [heldFor(rule, kept, rate), Math.floor(rate / RATE_WINDOWS)];
  const uncut = Math.floor(capacity * shared) - (outstandingOf(account) - present);
  const free = present + remainingOf(rule, account, nowMs);
  const room = Math.max(present, Math.min(uncut, free));
  const calls = MAX_RATE * demand * windowMs;
  const roomy = Math.max(MIN_BURST_OF_REGION, Math.floor(calls / 8));
  const fair = Math.floor(Math.min(capacity * share, calls + 2 * roomy));
  const isFull = kept > 0 && all * windowMs >= OVERFULL * capacity;
  // What it gives up comes back over a window, so it keeps a little more than is fair.
  const isFairEnough = fair < present && fair > MUCH_SMALLER * present && present <= uncut;
  // Units that leave the log while its own come are held for it at once.
  const heldWith = (burst: number) =>
    mostHeld(Math.min(fair, Math.max(present, uncut)), room, (units) => {
      const more = Math.max(0, units - 2 * Math.max(burst, kept) - own);
      return isFull ? (algorithm.evenPace?.most(config, account.state, nowMs, more) ?? 0) : 0;
    });
  const about = isFairEnough ? present : heldWith(roomy);
  const tight = tightBurst(about, demand, windowMs, holders);
  const wanted = about >= calls + 2 * roomy ? roomy : tight;
  // Until its next message it may have the larger of both bursts and of both rates.
  const isTooMuch = 2 * wanted + own > Math.max(room, heldWith(wanted));
  const most = kept > 0 && wanted > kept && isTooMuch ? kept : wanted;
  const held = isFairEnough ? present : heldWith(most);
  const units = held - 2 * Math.max(most, kept);
  const got = Math.max(0, most - kept);
  const moved = Math.max(0, held - free);
  return units < 1 ? undefined : { rate: fastestRate(units), most, got, moved };
}

/**
 * A bucket for one of few far holders, cut from a log that is full. The object hears of used units a trip late, so each
 * comes back that much later: 8 % of a window of 2 s at 170 ms. A bucket gets them when they are due. What its holder used
 * before at an even pace leaves the log (core/algorithms/log/unit-log.ts). Below the limit holders keep units, since a bucket
 * has none for a burst.
 */
function cutOfFullLog(
  { rule, account, kept, rate }: Asking,
  { demand, share, shared, room, all }: Share & Pick<Bounds, "room"> & { readonly all: number },
  nowMs: number,
) {
  const { capacity, quota, algorithm, config } = rule;
  const [{ evenPace }, { windowMs = 0 }] = [algorithm, quota];
  const [isCut, remaining] = [rate > 0, remainingOf(rule, account, nowMs)];
  const isFull = isCut
    ? all * windowMs >= STAYS_FULL * capacity || remaining < capacity / 8
    : all * windowMs >= FULL * capacity && remaining < capacity / 4;
  if (evenPace === undefined || !isFull) return undefined;
  const present = heldFor(rule, kept, rate);
  const part = Math.floor(capacity * share);
  const wanted = Math.floor(Math.min(part, MAX_RATE * demand * windowMs));
  const fair = isCut && wanted < present && wanted > STEADY * present ? present : wanted;
  const { burst: needed, most: roomy } = burstIfFull(fair, demand * windowMs, windowMs);
  if (needed > mostBurstIfFull(part, isCut)) return undefined;
  const most = Math.min(Math.floor(capacity * shared), room?.units ?? Infinity);
  const free = Math.max(present, Math.min(present + remaining, most + present - outstandingOf(account)));
  // Until its next message it may have the larger of both bursts and of both rates.
  const own = Math.floor(rate / RATE_WINDOWS);
  const burst = isCut && 2 * roomy + own > free ? Math.min(kept, roomy) : roomy;
  const bursts = 2 * Math.max(burst, kept);
  const movedFor = (held: number) =>
    evenPace.most(config, account.state, nowMs, Math.max(0, held - bursts - own));
  // What is held for the bucket and what leaves the log for it depend on each other.
  const held = mostHeld(fair, free, movedFor);
  const units = held - bursts;
  // A first one that is small grows only as units leave the log, and these are missing until then.
  if (units < 1 || (!isCut && held < MUCH_SMALLER * fair)) return undefined;
  const got = Math.max(0, burst - kept);
  return { rate: fastestRate(units), most: burst, got, moved: movedFor(held) };
}

/** How much of `fair` may be held for a bucket, if so many units leave the log for it. */
function mostHeld(fair: number, free: number, movedFor: (held: number) => number): number {
  return largestThat((held) => held <= free + movedFor(held), Math.min(fair, free), fair + 1);
}

/** The fastest rate at which no more than so many units come in a window. */
const fastestRate = (units: number) => (units + 1) * RATE_WINDOWS - 1;

/** The smallest burst that serves. Of a full bucket one unit would be lost before a timer of whole milliseconds. */
function tightBurst(held: number, demand: number, windowMs: number, holders: number): number {
  if (demand * windowMs > held && takeTurns(holders, windowMs / held))
    return 2 + Math.floor((held * TIMER_MS) / windowMs);
  return Math.max(1, Math.min(MAX_TIGHT_BURST, Math.floor(held / 20)), Math.floor(held / 64));
}

/** The part of its rate that a bucket has. */
export function rateOf(rule: Rule, perWindow: number): Rate {
  const { isCutByWindow } = rule.algorithm;
  return { units: perWindow, windowMs: rateWindowMs(rule), ...(isCutByWindow && { isHeld: isCutByWindow }) };
}

/** What is held for a bucket with so many units at most. */
export function heldFor(rule: Rule, most: number, perWindow: number): number {
  if (most === 0) return 0;
  if (rule.algorithm.isCutByWindow !== true) return most + earlyUnits(rule, perWindow);
  // In a window it may be full twice, if its holder's clock is set forward. It admits whole units.
  return perWindow === 0 ? most : 2 * most + Math.floor(perWindow / RATE_WINDOWS);
}

/** Returns units, or takes some. */
export function credited(rule: Rule, account: Account, nowMs: number, units: number): Account {
  if (units >= 0) return refund(rule, account, nowMs, units);
  const { state, holds } = account;
  return { state: rule.algorithm.debit(configBeside(rule, holds), state, nowMs, -units), holds };
}

/** What a bucket may get early, since its holder's clock may be set forward: this is held for it as well. */
export function earlyUnits(rule: Rule, perWindow: number): number {
  if (rule.algorithm.isCutByWindow === true) return 0;
  return Math.ceil((perWindow * MAX_MARGIN_MS) / rateWindowMs(rule));
}

/** The denial of a call of cost 1 by a holder whose bucket is empty. */
export function withoutUnits(decision: RuleDecision, { buckets = {} }: Reserved): RuleDecision {
  const { units = 1, windowMs = 1 } = buckets[decision.name]?.rate ?? {};
  const retryAfterMs = Math.max(1, Math.ceil(windowMs / units));
  return { ...decision, success: false, reason: "quota", remaining: 0, retryAfterMs };
}

/** Whether more was used than there was: what a bucket gets more would come without its part of that. */
function isInDebt(rule: Rule, account: Account, nowMs: number): boolean {
  const spentMs = rule.algorithm.untouchedAtMs(rule.config, account.state) - nowMs;
  const { units, windowMs = 1 } = rule.quota;
  return (spentMs - 1) * units > (rule.capacity - outstandingOf(account)) * windowMs;
}
