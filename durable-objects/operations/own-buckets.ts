/**
 * Buckets of holders: a holder that is far away gets a bucket of its own for some seconds, with a rate r and at most b units,
 * and decides by itself. The account is then a bucket of R - Σr and B - Σb. A bucket that is cut into buckets admits in
 * any interval what it admitted whole, B + R L, whoever has which part. Units alone count against B until they are used,
 * so holders that keep them for a time T cap a key at B / T units a second.
 *
 * A bucket is a hold with a rate (core/accounts/hold.ts): its units are b, and what came at its rate counts as used as it
 * comes. Of a holder's old and new rate the larger counts until its next message says which it has. Units that it gives
 * up, or has when it ends, count as used unless it says that they are left.
 */
import { outstandingOf, remainingOf } from "../../core/accounts/account.ts";
import {
  type Account,
  heldUnits,
  RATE_WINDOWS,
  rateWindowMs,
  type RuleAccount,
} from "../../core/accounts/hold.ts";
import type { Rule } from "../../core/policies/policy.ts";
import type { Bucket, Reserved, RuleDecision } from "../../core/protocol/answers.ts";
import { callerIn } from "../../core/protocol/names.ts";
import { MAX_MARGIN_MS, maxUnits } from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";

/** The part of a rule that is cut into buckets of holders: the rest decides single calls. */
const SHARED = 0.98;
/** A bucket lasts until the object has heard each holder once, at 125 messages a second. */
const LIFE_MS_PER_HOLDER = 8;
const MIN_LIFE_MS = 2_000;
/**
 * A smaller bucket is full too often while its holder has no calls: at half of what they need, one of 6 units loses 0.6 %
 * of its rate, and one of 3 units 6 %.
 */
const MIN_UNITS = 6;
/** A bucket has room for the calls of this time: at its rate it is soon full again. */
const BURST_MS = 1_000;

/** What a holder says of one rule. */
interface Asking extends RuleAccount {
  /** The most units that it has, and how fast it gets them: its present bucket. */
  readonly kept: number;
  readonly rate: number;
  /** The units that its calls need in a millisecond. Absent: unknown. */
  readonly demand: number | undefined;
}

/** Cuts buckets for a holder. @returns `undefined`: a rule cannot be cut, or its bucket would be too small */
export function ownBuckets(
  { holders, policy, endsByMs }: KeyState,
  { id, rules }: { readonly id: string; readonly rules: readonly Asking[] },
  nowMs: number,
) {
  // A bucket knows nothing of units that are kept for more important calls.
  if (policy.pool !== undefined || policy.priorities.seen.size > 0 || callerIn(id) !== undefined)
    return undefined;
  const lifeMs = Math.max(MIN_LIFE_MS, LIFE_MS_PER_HOLDER * holders.size);
  const ttlMs = Math.min(lifeMs, policy.reservation.mostMs, endsByMs - nowMs);
  const units: number[] = [];
  const buckets: Bucket[] = [];
  for (const { rule, account, kept, demand, rate: own } of rules) {
    if (rule.algorithm.lessRate === undefined || demand === undefined || demand <= 0) return undefined;
    const windowMs = rateWindowMs(rule);
    const perWindows = RATE_WINDOWS * rule.quota.units;
    const others = holders.others(id, rule.name, maxUnits(rule), nowMs);
    const share = SHARED / Math.max(1, 1 + others.demand / demand);
    // What this holder has now is its own until it has another.
    const taken = heldUnits(account.holds).rate.units - (kept === 0 ? 0 : own);
    const shared = Math.floor(perWindows * SHARED);
    const perWindow = Math.floor(Math.min(perWindows * share, 2 * demand * windowMs, shared - taken));
    const { capacity } = rule;
    const need = Math.max(2 * MIN_UNITS, demand * BURST_MS);
    const fair = Math.floor(Math.min(maxUnits(rule), capacity * share, need));
    const room = remainingOf(rule, account, nowMs);
    const early = earlyUnits(rule, perWindow) - earlyUnits(rule, kept === 0 ? 0 : own);
    const uncut = Math.floor(capacity * SHARED) - (outstandingOf(account) - kept) - early;
    // What it gives up counts as used, so it keeps what nobody else needs now.
    const isSpare = uncut - kept >= fair;
    const most = Math.min(Math.max(uncut, kept), fair < kept && isSpare ? kept : fair);
    if ((perWindow * ttlMs) / windowMs < MIN_UNITS || most < MIN_UNITS || isInDebt(rule, account, nowMs))
      return undefined;
    buckets.push({ rate: { units: perWindow, windowMs }, most });
    units.push(Math.max(0, Math.min(most - kept, room)));
  }
  return { ttlMs, units, buckets };
}

/** What a bucket may get early, since its holder's clock may be set forward: this is held for it as well. */
export function earlyUnits(rule: Rule, perWindow: number): number {
  return Math.ceil((perWindow * MAX_MARGIN_MS) / rateWindowMs(rule));
}

/** Whether the holders of a key want more than one of its rules admits. */
export function isInDemand({ policy: { rules }, holders }: KeyState): boolean {
  const demandOf = (name: string) =>
    [...holders.values()].reduce((sum, each) => sum + (each.rules.get(name)?.demand ?? 0), 0);
  return rules.some(({ name, quota: { units, windowMs = 1 } }) => demandOf(name) * windowMs > units);
}

/** The denial of a call of cost 1 by a holder whose bucket is empty. */
export function withoutUnits(decision: RuleDecision, { buckets = {} }: Reserved): RuleDecision {
  const { units = 1, windowMs = 1 } = buckets[decision.name]?.rate ?? {};
  const retryAfterMs = Math.max(1, Math.ceil(windowMs / units));
  return { ...decision, success: false, reason: "quota", remaining: 0, retryAfterMs };
}

/** Whether more was used than there was: a new bucket would begin without its part of that. */
function isInDebt(rule: Rule, account: Account, nowMs: number): boolean {
  const spentMs = rule.algorithm.untouchedAtMs(rule.config, account.state) - nowMs;
  const { units, windowMs = 1 } = rule.quota;
  return (spentMs - 1) * units > (rule.capacity - outstandingOf(account)) * windowMs;
}
