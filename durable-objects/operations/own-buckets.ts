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
import { outstandingOf, remainingOf } from "../../core/accounts/account.ts";
import {
  type Account,
  heldUnits,
  RATE_WINDOWS,
  rateWindowMs,
  type RuleAccount,
} from "../../core/accounts/hold.ts";
import type { Rate } from "../../core/algorithms/algorithm.ts";
import { MAX_PARTS } from "../../core/algorithms/token-bucket.ts";
import { isCuttable, type Rule } from "../../core/policies/policy.ts";
import type { Bucket, Reserved, RuleDecision } from "../../core/protocol/answers.ts";
import type { ReserveCall } from "../../core/protocol/calls.ts";
import { callerIn } from "../../core/protocol/names.ts";
import { longestMs, MAX_MARGIN_MS, maxUnits } from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";

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
const MIN_BURST = 6;
/** A region's object needs more for each of its holders: its bucket is cut again. */
const MIN_BURST_OF_REGION = 8;
/** Of what calls need: holders that come first leave something for those that come later. */
const MAX_RATE = 1.5;
/** More holders come to a region's object, and it hears late of those that it has. */
const MAX_RATE_OF_REGION = 2;

/** A region's object asks for its first bucket before it knows its holders: it has few until the next one, which takes a trip. */
const FIRST_SHARE = 1 / 32;
/** What it does not need counts as used for a window. */
const FIRST_SHARE_OF_WINDOW = 1 / 96;
/** Of a log or window, the burst is held twice. Where calls are more than it admits, each unit is used as it comes. */
const MAX_TIGHT_BURST = 6;
const MUCH_SMALLER = 0.75;

/** What a holder says of one rule. */
interface Asking extends RuleAccount {
  /** Its present bucket: the most units in it, how fast they come, and how many there are. */
  readonly kept: number;
  readonly rate: number;
  readonly level: number;
  /** The units that its calls need in a millisecond. Absent: unknown. */
  readonly demand: number | undefined;
}

/** Cuts buckets for a holder. @returns `undefined`: a rule cannot be cut, or its bucket would be too small */
export function ownBuckets(
  { holders, policy, endsByMs }: KeyState,
  {
    takesBucket,
    ttlMs: askedMs,
    holders: holdersThere,
  }: Pick<ReserveCall, "takesBucket" | "ttlMs" | "holders">,
  { id, rules }: { readonly id: string; readonly rules: readonly Asking[] },
  nowMs: number,
) {
  const isWanted = takesBucket === true || (takesBucket === false && holders.size >= MANY_HOLDERS);
  // A bucket knows nothing of units that are kept for more important calls.
  if (!isWanted || policy.pool !== undefined || policy.priorities.seen.size > 0 || callerIn(id) !== undefined)
    return undefined;
  const lifeMs = Math.max(MIN_LIFE_MS, LIFE_MS_PER_HOLDER * holders.size, askedMs);
  // A region's object cuts buckets from its own, each with what may come early. Its first message knows of few calls.
  const isRegion = holdersThere !== undefined;
  const unheardFactor = isRegion ? holders.unheardFactor(id, holdersThere, nowMs) : 1;
  const { mostMs } = policy.reservation;
  const ttlMs = Math.min(lifeMs, isRegion ? longestMs(policy.reservation) : mostMs, endsByMs - nowMs);
  const minUnits = isRegion ? 1 : MIN_UNITS;
  const units: number[] = [];
  const buckets: Bucket[] = [];
  let isFull = false;
  for (const asking of rules) {
    const { rule, account, kept, demand: said = 0, level, rate: own } = asking;
    if (!isCuttable(rule) || said <= 0) return undefined;
    const windowMs = rateWindowMs(rule);
    const perWindows = RATE_WINDOWS * rule.quota.units;
    const isByWindow = rule.algorithm.isCutByWindow === true;
    const first = ((isByWindow ? FIRST_SHARE_OF_WINDOW : FIRST_SHARE) * perWindows) / windowMs;
    const demand = isRegion && kept === 0 ? Math.max(said, first) : said;
    const others = holders.others(id, rule.name, maxUnits(rule), nowMs);
    // Its first bucket is small in any case, and one that is cut from a window may be too small soon.
    const factor = kept === 0 || isByWindow ? 1 : unheardFactor;
    const allDemand = factor * (demand + others.demand);
    const shared = isRegion ? SHARED_WITH_REGIONS : SHARED;
    const share = (shared * demand) / allDemand;
    if (isByWindow) {
      const cut = isRegion ? cutOfWindow(asking, { demand, share, shared }, nowMs) : undefined;
      if (cut === undefined) return undefined;
      buckets.push({ rate: { units: cut.rate, windowMs }, most: cut.most });
      units.push(Math.max(0, cut.most - kept));
      continue;
    }
    // What this holder has now is its own until it has another, also where a region's object has less to cut than before.
    const present = kept === 0 ? 0 : own;
    const taken = heldUnits(account.holds).rate.units - present;
    const owes = isInDebt(rule, account, nowMs);
    const uncutRate = owes ? present : Math.max(present, Math.floor(perWindows * shared) - taken);
    const wanted = (isRegion ? MAX_RATE_OF_REGION : MAX_RATE) * demand * windowMs;
    const { capacity } = rule;
    // What the others leave has room for its units, and for those that come early at its rate.
    const free = Math.floor(capacity * shared) - (outstandingOf(account) - heldFor(rule, kept, present));
    const mostRate = Math.max(present, Math.floor(((free - kept) * windowMs) / MAX_MARGIN_MS));
    const perWindow = Math.floor(Math.min(perWindows * share, wanted, uncutRate, mostRate));
    const need = Math.max(
      isRegion ? MIN_BURST_OF_REGION * holdersThere : MIN_BURST,
      demand * BURST_MS * (isRegion ? 1.5 : 1),
    );
    const max = isRegion ? capacity : maxUnits(rule);
    const part = Math.min(max, capacity * share - earlyUnits(rule, perWindow), need);
    const isRoomy =
      holders.size >= MANY_HOLDERS &&
      capacity >= MIN_UNITS * holders.size &&
      capacity * share >= MIN_UNITS / 2;
    const least = isRegion ? MIN_BURST : isRoomy ? Math.min(max, MIN_UNITS) : 0;
    const fair = Math.max(least, Math.floor(part));
    // Until its next message it may have the rate that it has now.
    const uncut = owes ? kept : free - earlyUnits(rule, Math.max(perWindow, present));
    // What it gives up counts as used, so it keeps what nobody else needs now.
    const isSpare = uncut - kept >= fair;
    const most = Math.min(Math.max(uncut, kept), fair < kept && isSpare ? kept : fair);
    if ((perWindow * ttlMs) / windowMs < minUnits || most < minUnits) return undefined;
    const room = remainingOf(rule, account, nowMs);
    const got = Math.max(0, Math.min(most - level, room));
    isFull ||= allDemand * windowMs > perWindows && room - got < 1;
    buckets.push({ rate: { units: perWindow, windowMs }, most });
    units.push(got);
  }
  return { ttlMs, units, buckets, isFull };
}

/** What one of many holders may have of a rule. */
interface Share {
  readonly demand: number;
  readonly share: number;
  readonly shared: number;
}

/**
 * A bucket for a region's object, cut from a limit for any window. In each window it admits no more than is held for it
 * (`heldFor`), so it gets no more than what nobody used in the last window and nobody holds. Isolates keep units.
 */
function cutOfWindow({ rule, account, kept, rate }: Asking, { demand, share, shared }: Share, nowMs: number) {
  const { capacity, quota } = rule;
  const present = heldFor(rule, kept, rate);
  const uncut = Math.floor(capacity * shared) - (outstandingOf(account) - present);
  const room = Math.max(present, Math.min(uncut, present + remainingOf(rule, account, nowMs)));
  const calls = MAX_RATE_OF_REGION * demand * (quota.windowMs ?? 0);
  const roomy = Math.max(MIN_BURST_OF_REGION, Math.floor(calls / 8));
  const fair = Math.floor(Math.min(capacity * share, calls + 2 * roomy));
  // What it gives up counts as used for a window, so it keeps a little more than is fair.
  const isFairEnough = fair < present && fair > MUCH_SMALLER * present && present <= uncut;
  const held = isFairEnough ? present : Math.min(fair, room);
  const tight = Math.max(1, Math.min(MAX_TIGHT_BURST, Math.floor(held / 20)), Math.floor(held / 64));
  const wanted = held >= calls + 2 * roomy ? roomy : tight;
  // Until its next message it may have the larger of both bursts and of both rates.
  const isTooMuch = 2 * wanted + Math.max(held - 2 * wanted, Math.ceil(rate / RATE_WINDOWS)) > room;
  const most = kept > 0 && wanted > kept && isTooMuch ? kept : wanted;
  const units = held - 2 * Math.max(most, kept);
  return units < 1 ? undefined : { rate: units * RATE_WINDOWS, most };
}

/** Whether a region's object can count its part of a rule exactly: in parts of a unit, as core/algorithms/token-bucket.ts. */
export function canHaveRegions(rule: Rule): boolean {
  return isCuttable(rule) && rule.capacity * rateWindowMs(rule) <= MAX_PARTS;
}

/** The part of its rate that a bucket has. */
export function rateOf(rule: Rule, perWindow: number): Rate {
  const { isCutByWindow } = rule.algorithm;
  return { units: perWindow, windowMs: rateWindowMs(rule), ...(isCutByWindow && { isHeld: isCutByWindow }) };
}

/** One object serves fewer for less than ten cost, each awake all month. */
const MIN_HOLDERS_FOR_REGIONS = 128;

/** For so many holders the burst is enough: their buckets are small, and there is room for twice as many. */
export function holdersInBurst(rules: readonly Rule[]): number {
  return Math.max(
    MIN_HOLDERS_FOR_REGIONS,
    Math.min(...rules.map(({ capacity }) => capacity / (2 * MIN_BURST))),
  );
}

/** What is held for a bucket with so many units at most. */
export function heldFor(rule: Rule, most: number, perWindow: number): number {
  if (most === 0) return 0;
  if (rule.algorithm.isCutByWindow !== true) return most + earlyUnits(rule, perWindow);
  // In a window it may be full twice, if its holder's clock is set forward.
  return perWindow === 0 ? most : 2 * most + Math.ceil(perWindow / RATE_WINDOWS);
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
