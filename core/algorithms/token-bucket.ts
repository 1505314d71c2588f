import type { AlgorithmDecision } from "./algorithm-decision.ts";
import type { Algorithm } from "./algorithm.ts";
import { MOST_PARTS, TokenBucketForecast, unitsIn } from "./bucket-forecast.ts";
import { leastBurst } from "./least-burst.ts";
import {
  beyondAt,
  spentAt,
  stamp,
  stateOf,
  type TokenBucketConfig,
  type TokenBucketState,
} from "./token-bucket-state.ts";

/**
 * Token bucket: `limit` units per window, refilled continuously, at most `burst` at once.
 *
 * The textbook keeps the tokens that are left as a fraction, and adds `elapsed * limit / window` on every call.
 * Fractions are rounded, and after a few million calls the bucket has drifted from its rate. So nothing here is a
 * fraction. A token is `windowMs` parts, and each millisecond gives back `limit` parts. Both are integers, whatever
 * the rate is.
 *
 * The state is what has been *spent*, not what is left (the "leaky bucket as a meter" of ITU-T I.371). What is left
 * is `burst * windowMs - spent`. An untouched bucket is then 0, whatever the policy says. So when a policy changes,
 * the consumption stays and the new limit counts at once.
 *
 *     spent(now) = max(0, spent - limit * (now - at))
 *     a cost passes when  spent(now) + (outstanding + cost) * windowMs  <=  burst * windowMs
 *
 * Example: limit 3 per 1,000 ms, burst 3. At 0 ms three units are taken: 3,000 parts are spent. The fourth unit needs
 * spent <= 2,000, so it waits ceil(1,000 / 3) = 334 ms: at 333 ms spent is 2,001 (denied), at 334 ms 1,998 (passes).
 *
 * The bound, in any interval of L ms: burst + limit * L / windowMs units. It is reached when a full bucket is emptied
 * at once and then each unit is taken as soon as it comes back. That is its worst boundary: nearly burst + limit
 * units in one window. What it is bad at: "never more than `limit` in any window" needs a sliding log.
 *
 * A charge of n units can be given back later by name, as long as the bucket has not refilled them:
 *
 *     max(0, n * windowMs - limit * (now - at))  parts
 *
 * Why that keeps the bound: let V be what is left, and what could be given back of each charge. A charge moves parts
 * from the one to the other, and a refund moves them back. In a millisecond what is left grows by at most `limit`; if
 * anything could be given back, that shrinks by as much. So V is never over `burst`, and units taken in an interval
 * and not given back are at most that and what was refilled meanwhile: the same bound.
 *
 * Counting is exact as long as every sum is at most 2^53, so `burst * windowMs` may not exceed that.
 */
export type { TokenBucketConfig, TokenBucketState } from "./token-bucket-state.ts";

export const tokenBucket: Algorithm<TokenBucketConfig, TokenBucketState> = {
  name: "token-bucket",
  isPoolable: true,
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
    const least = leastBurst(limit, windowMs);
    if (burst < least) {
      const allowed =
        `at least ${least} for ${limit} per ${windowMs} ms: waits are whole milliseconds, so with less, a caller that ` +
        "waits as it is told cannot reach that rate";
      return { problem: { field: "burst", allowed } };
    }
    return { limit, windowMs, burst };
  },

  capacity: (config) => config.burst,
  quota: (config) => ({ units: config.limit, windowMs: config.windowMs }),

  localDecisions: () => ({ admits: true, denies: true }),
  wholeFromMs: ({ windowMs, limit }, missing) => Math.ceil((missing * windowMs) / limit),

  // The window is stretched and the limit stays, so the rate is not rounded: a sixth of 5 in 15 min is 5 in 90 min.
  scale({ limit, windowMs, burst }, part) {
    const least = Math.floor(burst * part);
    return least < 1 ? undefined : { limit, windowMs: Math.ceil(windowMs / part), burst: least };
  },

  decide(config, state, nowMs, cost, outstanding) {
    return decide(
      config,
      spentAt(config, state, nowMs),
      stamp(state, nowMs),
      cost,
      outstanding,
      beyondAt(config, state, nowMs),
    );
  },

  noteHold: (_, state) => state,

  debit(config, state, nowMs, units) {
    const spent = spentAt(config, state, nowMs) + units * config.windowMs;
    return stateOf(config, Math.min(spent, MOST_PARTS), stamp(state, nowMs), beyondAt(config, state, nowMs));
  },

  mostDebit: (config, state, nowMs) =>
    Math.floor((MOST_PARTS - spentAt(config, state, nowMs)) / config.windowMs),

  credit(config, state, nowMs, units) {
    const spent = spentAt(config, state, nowMs) - units * config.windowMs;
    return spent <= 0
      ? undefined
      : stateOf(config, spent, stamp(state, nowMs), beyondAt(config, state, nowMs));
  },

  uncharge(config, state, nowMs, units, atMs) {
    // Above 2^53 the product is not exact, but no charge is so large: the result is 0 either way.
    const refilled = config.limit * Math.max(0, nowMs - atMs);
    const spent = spentAt(config, state, nowMs) - Math.max(0, units * config.windowMs - refilled);
    return spent <= 0
      ? undefined
      : stateOf(config, spent, stamp(state, nowMs), beyondAt(config, state, nowMs));
  },

  wholeAtMs(config, state, uses) {
    const forecast = forecastOf(config, state);
    if (uses !== undefined) forecast.debit(uses);
    return forecast.wholeAtMs();
  },

  forecast: forecastOf,

  covers(config, stored, ahead, state, outstanding, nowMs) {
    const heldParts = (ahead - outstanding) * config.windowMs;
    // Where the clock was put back, the state is refilled from its own instant on only.
    const atMs = stamp(state, nowMs);
    const storedSpent = spentAt(config, stored as TokenBucketState | undefined, atMs);
    return heldParts >= 0 && storedSpent + heldParts >= spentAt(config, state, atMs);
  },

  pack: (_, state) => ({ record: state }),
  unpack: (_, record) => record as TokenBucketState,
  used: (record) => unitsIn(record as TokenBucketState | null),
};

function decide(
  config: TokenBucketConfig,
  spent: number,
  atMs: number,
  cost: number,
  outstanding: number,
  beyond: number,
): AlgorithmDecision<TokenBucketState> {
  const { limit, windowMs, burst } = config;
  const unheldParts = (burst - outstanding) * windowMs;
  const costParts = cost * windowMs;
  // This cost passes if at most so many parts are spent already.
  const room = unheldParts - costParts;
  if (cost === 0 || spent <= room) {
    const spentAfter = spent + costParts;
    return {
      allowed: true,
      state: stateOf(config, spentAfter, atMs, beyond),
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

function forecastOf(config: TokenBucketConfig, state: TokenBucketState | undefined): TokenBucketForecast {
  const atMs = state?.atMs ?? -Infinity;
  return new TokenBucketForecast(config, spentAt(config, state, atMs), atMs);
}
