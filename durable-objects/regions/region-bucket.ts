/** The bucket that a region's object has of a rule, from which it cuts those of its holders. */
import { broughtTo, outstandingOf } from "../../core/accounts/account.ts";
import { type Account, heldUnits, rateWindowMs, type RuleAccount } from "../../core/accounts/hold.ts";
import {
  MAX_PARTS,
  RATE_WINDOWS,
  tokenBucket,
  type TokenBucketState,
} from "../../core/algorithms/token-bucket.ts";
import type { Rule } from "../../core/policies/policy.ts";
import type { RuleDecision } from "../../core/protocol/answers.ts";
import { MAX_MARGIN_MS } from "../../core/reservations/sizing.ts";
import { earlyUnits } from "../operations/own-buckets.ts";

/** A bucket of a region's object by one rule: units in a window of `rateWindowMs`, and the most in it. */
export interface Cut {
  readonly rate: number;
  readonly most: number;
}

export const NOTHING: Cut = { rate: 0, most: 0 };

/**
 * What holders' buckets are cut from: also what comes early by a clock set forward. Each unit comes early once, to a holder
 * or to what is left, so what the home object keeps for this object serves for its holders.
 */
export function burstOf(rule: Rule, { rate, most }: Cut): number {
  return most === 0 ? 0 : most + earlyUnits(rule, rate);
}

/** What must be kept of a rule, since it is handed out, or what the home object gave. */
export function usedOf(own: Rule, account: Account, { rate, most } = NOTHING): Cut {
  const lent = heldUnits(account.holds).rate.units;
  const cutRate = Math.max(rate, lent === 0 ? 0 : lent + 1);
  return { rate: cutRate, most: Math.max(most, outstandingOf(account) - earlyUnits(own, cutRate)) };
}

/** The units in a bucket, also those that are handed out. */
export function levelOf(own: Rule, { account }: RuleAccount, cut: Cut): number {
  const { spentParts = 0, windowMs = 1 } = (account.state ?? {}) as Partial<TokenBucketState>;
  const level = burstOf(own, cut) - Math.ceil(spentParts / windowMs);
  return Math.min(cut.most, Math.max(0, level));
}

/** How a bucket changes. */
interface Change {
  readonly before: Cut;
  readonly cut: Cut;
  /** What holders' buckets are cut by from now on. */
  readonly fair: Cut;
  /** The units that the home object has given with it. */
  readonly granted: number;
}

/** The bucket in its new size. What was spent stays spent, and what comes early by a clock set forward is owed. */
export function resized(
  own: Rule,
  { rule, account }: RuleAccount,
  { before, cut, fair, granted }: Change,
  nowMs: number,
): RuleAccount {
  const windowMs = rateWindowMs(own);
  const { state, holds } = before.most === 0 ? account : broughtTo(rule, account, nowMs);
  const spent = (state as TokenBucketState | undefined)?.spentParts ?? 0;
  const owed = own.algorithm.isCutByWindow === true ? 0 : Math.max(0, cut.rate - before.rate) * MAX_MARGIN_MS;
  const burst = burstOf(own, cut);
  const more = burst - burstOf(own, before) - granted;
  const spentParts = Math.min(Math.max(0, spent + more * windowMs + owed), MAX_PARTS);
  const resizedState = spentParts === 0 ? undefined : { spentParts, windowMs, burst, atMs: nowMs };
  const config = { limit: cut.rate, windowMs, burst };
  const quota = { ...own.quota, units: fair.rate / RATE_WINDOWS };
  return {
    rule: { ...own, algorithm: tokenBucket, capacity: burstOf(own, fair), quota, config },
    account: { state: resizedState, holds },
  };
}

/** By rule, what the home object has left beside this bucket. @param said its decisions before it gave the bucket */
export function leftAtHome(
  rules: readonly Rule[],
  said: readonly RuleDecision[],
  before: readonly Cut[],
  given: readonly Cut[],
): number[] {
  return rules.map((rule, index) => {
    const more = burstOf(rule, given[index] ?? NOTHING) - burstOf(rule, before[index] ?? NOTHING);
    return (said.find(({ name }) => name === rule.name)?.remaining ?? 0) - Math.max(0, more);
  });
}

/** A decision with the limit of the policy, and with what the home object has left: that decides larger costs. */
export function ofWhole(rules: readonly Rule[], left: readonly number[]) {
  return (decision: RuleDecision, index: number): RuleDecision => {
    const remaining = decision.success ? Math.max(decision.remaining, left[index] ?? 0) : decision.remaining;
    return { ...decision, limit: rules[index]?.capacity ?? 0, remaining };
  };
}
