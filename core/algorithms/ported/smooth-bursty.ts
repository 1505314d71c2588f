import type { Algorithm, ConfigProblem } from "../algorithm.ts";
import { MAX_PARTS, tokenBucket, type TokenBucketConfig, type TokenBucketState } from "../token-bucket.ts";

/**
 * Smooth bursty, as Guava's RateLimiter.create(rate): permits come evenly, those of up to `maxBurst` are saved while
 * nobody calls, and a call is never kept waiting for its own permits, but for those that the calls before it took.
 *
 * Guava keeps the permits that are saved and the instant at which the next call is free to go on. A call goes on at
 * that instant, takes what is saved, and moves the instant by the rest of its cost: who comes next pays for it. So a
 * large call at a quiet time goes on at once, and a small one after it waits.
 *
 * Both are one number, since nothing is saved while there is debt: the *spent* of the token bucket, 0 when the savings
 * are full. Beyond the savings it is debt. So it is counted by the functions of the token bucket, in integers:
 *
 *     saved = limit * maxBurst / window units, and debt(now) = spent(now) + outstanding - saved, when that is above 0
 *     delayMs = debt(now) * window / limit, rounded up
 *     a cost passes when the debt after it is paid within maxDelay
 *
 * Guava admits every call, into a future without end, or with a time-out by the debt before the call alone, so that one
 * large call takes as much future as it likes. Here the debt after the call counts: nobody is told to wait for longer
 * than `maxDelay`, and what waits is denied with its exact wait. In whole units, rounded down, that is the `capacity`
 * `limit * (maxBurst + maxDelay) / window`, and so all that holds of a token bucket holds here. Nothing but the delay
 * and the capacity is rounded, and never so that more or sooner is admitted.
 *
 * Example: limit 5 per 1,000 ms, maxBurst 1 s, maxDelay 2 s. After a pause a cost of 9 passes at once: 5 are saved, and
 * 4 are owed. The next call waits for those, 800 ms. Had it come 800 ms later, it would not wait.
 *
 * A key that was never seen has saved all it can, as one that was idle. (A new RateLimiter of Guava has saved nothing.)
 *
 * The bound, in any interval of L ms: `limit * (maxBurst + maxDelay + L) / window` units are admitted. Callers that wait
 * as told go on with at most `limit * (maxBurst + L + 1) / window` units and the largest cost, since the last call pays
 * afterwards. Its worst boundary: the savings and then a call as large as may be. What it is bad at: small calls, which
 * wait for the large ones of others.
 */
export interface SmoothBurstyConfig extends TokenBucketConfig {
  /** The parts of tokens that are saved at most: as many may be spent before somebody waits. */
  readonly savedParts: number;
}

/** All that a token bucket does, but in pools: their script knows no delays. */
const { isPoolable: _, ...bucket } = tokenBucket;
const DEFAULT_MAX_BURST_MS = 1_000;

export const smoothBursty: Algorithm<SmoothBurstyConfig, TokenBucketState> = {
  ...bucket,
  name: "smooth-bursty",
  fields: { limit: "units", window: "duration", maxBurst: "duration?", maxDelay: "duration?" },

  configure(fields): SmoothBurstyConfig | ConfigProblem {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    const maxBurstMs = Number(fields["maxBurst"] ?? DEFAULT_MAX_BURST_MS);
    const maxDelayMs = Number(fields["maxDelay"] ?? windowMs);
    const most = Math.floor(MAX_PARTS / limit);
    const problemOf = (field: string, allowed: string) => ({ problem: { field, allowed } });
    if (maxBurstMs >= most) return problemOf("maxBurst", `less than ${most} ms with a limit of ${limit}`);
    if (maxDelayMs > most - maxBurstMs)
      return problemOf(
        fields["maxDelay"] === undefined ? "window" : "maxDelay",
        `at most ${most - maxBurstMs} ms with a limit of ${limit} (so that counting stays exact)`,
      );
    const burst = Math.floor((limit * (maxBurstMs + maxDelayMs)) / windowMs);
    const leastMs = Math.ceil(windowMs / limit) - maxBurstMs;
    if (burst < 1) return problemOf("maxDelay", `at least ${leastMs} ms, so that one unit passes`);
    return { limit, windowMs, burst, savedParts: limit * maxBurstMs };
  },

  // An isolate that spends units does not know the debt, so it cannot tell a delay.
  localDecisions: () => ({ admits: false, denies: true }),

  scale(config, part) {
    const scaled = tokenBucket.scale(config, part);
    return scaled && { ...scaled, savedParts: Math.min(config.savedParts, scaled.burst * scaled.windowMs) };
  },

  decide(config, state, nowMs, cost, outstanding) {
    const decision = tokenBucket.decide(config, state, nowMs, cost, outstanding);
    if (!decision.allowed || cost === 0) return decision;
    const { limit, windowMs, savedParts } = config;
    // Units that are held are paid for before this call goes on, as if they were taken.
    const debt = (decision.state?.spentParts ?? 0) + (outstanding - cost) * windowMs - savedParts;
    return debt <= 0 ? decision : { ...decision, delayMs: Math.ceil(debt / limit) };
  },
};
