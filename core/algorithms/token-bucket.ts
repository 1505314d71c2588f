import type { Algorithm, AlgorithmDecision } from "./algorithm.ts";

/**
 * Token bucket: `limit` units per window, refilled continuously, at most `burst` at once.
 *
 * The textbook keeps the tokens that are left, as a fraction, and adds `elapsed * limit / window`
 * on every call. Fractions round, and after a few million calls the bucket has drifted from its
 * rate. So nothing here is a fraction: a token is `windowMs` parts, a millisecond gives back `limit`
 * parts, and both are integers, whatever the rate.
 *
 * And it keeps what has been *spent* rather than what is left, the bucket seen from above (the
 * "leaky bucket as a meter" of ITU-T I.371): the level is `burst * windowMs - spent`. An untouched
 * bucket is then 0 whatever the policy says, so a policy that changes keeps the consumption and
 * takes the new limit by itself.
 *
 *     spent(now) = max(0, spent - limit * (now - at))
 *     a cost passes when  spent(now) + (outstanding + cost) * windowMs  <=  burst * windowMs
 *
 * Example: limit 3 per 1,000 ms, burst 3. At 0 ms three units go: spent 3,000 parts. The fourth
 * needs spent <= 2,000, so ceil(1,000 / 3) = 334 ms: at 333 ms spent is 2,001 (no), at 334 ms it is
 * 1,998 (yes).
 *
 * The bound, in any interval of L ms: burst + limit * L / windowMs units. It is reached: a full
 * bucket that empties at once and then takes each token as it drips. That is its worst boundary,
 * nearly burst + limit in one window, and what it is bad at: who must never see more than `limit` in
 * any window wants a sliding log.
 *
 * Exactness needs every sum below 2^53, so `burst * windowMs` may not exceed that.
 */
export interface TokenBucketConfig {
  /** Units refilled per window. */
  readonly limit: number;
  readonly windowMs: number;
  /** Units a full bucket holds. */
  readonly burst: number;
}

export interface TokenBucketState {
  /** Parts spent at `atMs`; one unit is `windowMs` parts. More than the capacity is debt. */
  readonly spentParts: number;
  /** The denominator and the burst that `spentParts` was written under; a changed policy converts it. */
  readonly windowMs: number;
  readonly burst: number;
  readonly atMs: number;
}

/** Every integer up to here is a double, and so is every sum below. */
const MOST_PARTS = 2 ** 53;

export const tokenBucket: Algorithm<TokenBucketConfig, TokenBucketState> = {
  name: "token-bucket",
  fields: { limit: "units", window: "duration", burst: "units?" },

  configure(fields) {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    const burst = Number(fields["burst"] ?? limit);
    if (burst * windowMs > MOST_PARTS) {
      const field = burst === limit ? "limit" : "burst";
      const most = Math.floor(MOST_PARTS / windowMs);
      const allowed =
        `at most ${most} with a window of ${windowMs} ms (burst * windowMs may not exceed 2^53, so that ` +
        "counting stays exact); the same rate over a shorter window allows more";
      return { problem: { field, allowed } };
    }
    return { limit, windowMs, burst };
  },

  capacity: (config) => config.burst,
  quota: (config) => ({ units: config.limit, windowMs: config.windowMs }),

  localDecisions: () => ({ admits: true, denies: true }),
  wholeFromEmptyMs: ({ burst, windowMs, limit }) => Math.ceil((burst * windowMs) / limit),

  // The window is stretched instead of the limit cut: 5 in 15 minutes have a sixth too.
  scale({ limit, windowMs, burst }, part) {
    const least = Math.floor(burst * part);
    return least < 1 ? undefined : { limit, windowMs: Math.ceil(windowMs / part), burst: least };
  },

  decide(config, state, nowMs, cost, outstanding) {
    return decide(config, spentAt(config, state, nowMs), stamp(state, nowMs), cost, outstanding);
  },

  noteHold: (_, state) => state,

  debit(config, state, nowMs, units) {
    const spent = spentAt(config, state, nowMs) + units * config.windowMs;
    return stateOf(config, Math.min(spent, MOST_PARTS), stamp(state, nowMs));
  },

  credit(config, state, nowMs, units) {
    const spent = spentAt(config, state, nowMs) - units * config.windowMs;
    return spent <= 0 ? undefined : stateOf(config, spent, stamp(state, nowMs));
  },

  wholeAtMs(config, state) {
    return state.atMs + Math.ceil(spentAt(config, state, state.atMs) / config.limit);
  },

  covers(config, stored, ahead, state, outstanding, nowMs) {
    const heldParts = (ahead - outstanding) * config.windowMs;
    const storedSpent = spentAt(config, stored as TokenBucketState | undefined, nowMs);
    return heldParts >= 0 && storedSpent + heldParts >= spentAt(config, state, nowMs);
  },

  pack: (_, state) => ({ record: state }),
  unpack: (_, record) => record as TokenBucketState,
};

function decide(
  config: TokenBucketConfig,
  spent: number,
  atMs: number,
  cost: number,
  outstanding: number,
): AlgorithmDecision<TokenBucketState> {
  const { limit, windowMs, burst } = config;
  const unheldParts = (burst - outstanding) * windowMs;
  const costParts = cost * windowMs;
  // The most that may be spent already if this cost is to pass.
  const room = unheldParts - costParts;
  if (cost === 0 || spent <= room) {
    const spentAfter = spent + costParts;
    return {
      allowed: true,
      state: stateOf(config, spentAfter, atMs),
      remaining: Math.max(0, Math.floor((room - spent) / windowMs)),
      resetAfterMs: Math.ceil(spentAfter / limit),
    };
  }
  return {
    allowed: false,
    reason: cost > burst ? "cost-over-limit" : "quota",
    retryAfterMs: room < 0 ? null : Math.ceil((spent - room) / limit),
    remaining: Math.max(0, Math.floor((unheldParts - spent) / windowMs)),
    resetAfterMs: Math.ceil(spent / limit),
  };
}

/** Parts spent at `nowMs`. A clock that runs backwards gives nothing back. */
function spentAt(config: TokenBucketConfig, state: TokenBucketState | undefined, nowMs: number): number {
  if (state === undefined) return 0;
  const isUnchanged = state.windowMs === config.windowMs && state.burst === config.burst;
  const spent = isUnchanged ? state.spentParts : convert(state, config);
  // Past 2^53 the product is inexact, but then it is larger than anything that can have been spent.
  const refilled = config.limit * Math.max(0, nowMs - state.atMs);
  return Math.max(0, spent - refilled);
}

/**
 * The same consumption under another policy: rounded up, so that a change never mints, and at most the whole
 * new bucket, so that one that shrinks begins empty and not in debt for a hundred windows.
 */
function convert(state: TokenBucketState, { windowMs, burst }: TokenBucketConfig): number {
  const from = BigInt(state.windowMs);
  const converted = (BigInt(state.spentParts) * BigInt(windowMs) + from - 1n) / from;
  return Math.min(Number(converted), burst * windowMs);
}

function stamp(state: TokenBucketState | undefined, nowMs: number): number {
  return state === undefined ? nowMs : Math.max(state.atMs, nowMs);
}

function stateOf(config: TokenBucketConfig, spentParts: number, atMs: number): TokenBucketState | undefined {
  const { windowMs, burst } = config;
  return spentParts === 0 ? undefined : { spentParts, windowMs, burst, atMs };
}
