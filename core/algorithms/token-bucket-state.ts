/** What a token bucket has spent, and how that is read under a changed policy: token-bucket.ts. */
import { MOST_PARTS } from "./bucket-forecast.ts";

/** How a token bucket is configured. */
export interface TokenBucketConfig {
  /** Units refilled per window. */
  readonly limit: number;
  readonly windowMs: number;
  /** Units in a full bucket. */
  readonly burst: number;
}

/** What was spent of a token bucket. Stored: never rename a field. */
export interface TokenBucketState {
  /** Parts spent at `atMs`; one unit is `windowMs` parts. More than `burst * windowMs` is debt. */
  readonly spentParts: number;
  /** The window and the burst of the policy that `spentParts` was counted under. Another policy converts it. */
  readonly windowMs: number;
  readonly burst: number;
  readonly atMs: number;
  /**
   * What would be spent if the bucket had never shrunk below what was: when it grows again, that counts. Absent: no more
   * than `spentParts`.
   */
  readonly totalParts?: number;
}

/** Parts spent at `nowMs`. When the clock runs backwards, nothing is given back. */
export function spentAt(
  config: TokenBucketConfig,
  state: TokenBucketState | undefined,
  nowMs: number,
): number {
  if (state === undefined) return 0;
  const isUnchanged = state.windowMs === config.windowMs && state.burst === config.burst;
  const spent = isUnchanged ? state.spentParts : convert(state, config);
  // Above 2^53 the product is not exact, but no bucket can have spent so much: the result is 0 either way.
  const refilled = config.limit * Math.max(0, nowMs - state.atMs);
  return Math.max(0, spent - refilled);
}

/** How much more than `spentAt` would be spent if the bucket had never shrunk below what was. */
export function beyondAt(
  config: TokenBucketConfig,
  state: TokenBucketState | undefined,
  nowMs: number,
): number {
  if (state === undefined) return 0;
  const isUnchanged = state.windowMs === config.windowMs && state.burst === config.burst;
  if (isUnchanged && state.totalParts === undefined) return 0;
  const refilled = config.limit * Math.max(0, nowMs - state.atMs);
  return Math.max(0, totalOf(state, config) - refilled - spentAt(config, state, nowMs));
}

/**
 * The same consumption in parts of a changed policy. It is at most the whole new bucket, so that a bucket that shrinks
 * begins empty, and not with a debt of a hundred windows. What that leaves out counts when the bucket grows again.
 */
function convert(state: TokenBucketState, config: TokenBucketConfig): number {
  return Math.min(totalOf(state, config), config.burst * config.windowMs);
}

/** All that was spent, in parts of a policy. It is rounded up, so that a change never creates units. */
function totalOf(
  { spentParts, totalParts, windowMs: before }: TokenBucketState,
  { windowMs }: TokenBucketConfig,
): number {
  const parts = totalParts ?? spentParts;
  if (before === windowMs) return parts;
  const from = BigInt(before);
  return Number((BigInt(parts) * BigInt(windowMs) + from - 1n) / from);
}

/** The instant of the next state: it never goes backwards. */
export function stamp(state: TokenBucketState | undefined, nowMs: number): number {
  return state === undefined ? nowMs : Math.max(state.atMs, nowMs);
}

/** The state after so many parts were spent; `undefined`: an untouched bucket. */
export function stateOf(
  { windowMs, burst }: TokenBucketConfig,
  spentParts: number,
  atMs: number,
  beyond: number,
): TokenBucketState | undefined {
  if (spentParts === 0) return undefined;
  if (beyond === 0) return { spentParts, windowMs, burst, atMs };
  return { spentParts, windowMs, burst, atMs, totalParts: Math.min(spentParts + beyond, MOST_PARTS) };
}
