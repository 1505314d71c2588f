/** The bucket that a region's object has of a rule, from which it cuts those of its holders. */
import { rateWindowMs } from "../../core/accounts/hold.ts";
import { RATE_WINDOWS, tokenBucket } from "../../core/algorithms/token-bucket.ts";
import type { Rule } from "../../core/policies/policy.ts";
import { earlyUnits } from "../operations/own-buckets.ts";

/** A bucket of a region's object by one rule: units in a window of `rateWindowMs`, and the most in it. */
export interface Cut {
  readonly rate: number;
  readonly most: number;
}

/**
 * What holders' buckets are cut from: also what comes early by a clock set forward. Each unit comes early once, to a holder
 * or to what is left, so what the home object keeps for this object serves for its holders.
 */
export function burstOf(rule: Rule, { rate, most }: Cut): number {
  return most === 0 ? 0 : most + earlyUnits(rule, rate);
}

/** A rule as a region's object counts its own bucket of it. @param fair what holders' buckets are cut by */
export function resizedRule(rule: Rule, fair: Cut, cut: Cut): Rule {
  const windowMs = rateWindowMs(rule);
  return {
    ...rule,
    algorithm: tokenBucket,
    capacity: burstOf(rule, fair),
    quota: { ...rule.quota, units: fair.rate / RATE_WINDOWS },
    config: { limit: cut.rate, windowMs, burst: burstOf(rule, cut) },
  };
}
