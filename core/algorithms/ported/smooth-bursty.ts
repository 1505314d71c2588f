import { type Algorithm, type ConfigProblem, configProblem } from "../algorithm.ts";
import {
  lessRate,
  MAX_PARTS,
  tokenBucket,
  type TokenBucketConfig,
  type TokenBucketState,
  withoutRate,
} from "../token-bucket.ts";

/**
 * Smooth bursty, as Guava's RateLimiter.create(rate): permits come evenly, up to `maxBurst` are saved while no call
 * comes, and a call never waits for its own permits, but for those that earlier calls took.
 *
 * Guava stores the saved permits and the instant at which the next call may proceed. A call proceeds at that instant,
 * takes the saved permits, and moves the instant by the rest of its cost, which the next call pays. So a large call at
 * a quiet time proceeds at once, and a small one after it waits.
 *
 * Nothing is saved while there is debt, so both are one number: the *spent* of the token bucket, 0 when the savings
 * are full, and debt beyond them. So the functions of the token bucket count, in integers:
 *
 *     saved = limit * maxBurst / window units, and debt(now) = spent(now) + outstanding - saved, when that is above 0
 *     delayMs = debt(now) * window / limit, rounded up
 *     a cost passes when the debt after it is paid within maxDelay
 *
 * Guava admits every call into an endless future, or with a timeout by the debt before the call alone. Here the debt
 * after the call counts: no delay exceeds `maxDelay`, and a longer one is denied with its exact wait. In units,
 * rounded down, that is the `capacity` `limit * (maxBurst + maxDelay) / window`, so every property of a token bucket
 * holds here. Only the delay and the capacity are rounded, and never so that more or sooner is admitted.
 *
 * Example: limit 5 per 1,000 ms, maxBurst 1 s, maxDelay 2 s. After a pause a cost of 9 passes at once: 5 are saved,
 * and 4 are owed. The next call waits for those, 800 ms. If it came 800 ms later, it would not wait.
 *
 * A new key has full savings, as an idle one. (A new RateLimiter of Guava has saved nothing.)
 *
 * The bound, in any interval of L ms: `limit * (maxBurst + maxDelay + L) / window` units are admitted. Callers that
 * keep their delays proceed with at most `limit * (maxBurst + L + 1) / window` units and the largest cost, since the
 * last call pays afterwards. The worst boundary: the savings, and then a call of the maximum size. What it is bad at:
 * small calls, which wait for the large ones of others.
 */
export interface SmoothBurstyConfig extends TokenBucketConfig {
  /** The parts of tokens that may be spent before a call waits. */
  readonly savedParts: number;
}

const DEFAULT_MAX_BURST_MS = 1_000;

export const smoothBursty: Algorithm<SmoothBurstyConfig, TokenBucketState> = {
  ...tokenBucket,
  name: "smooth-bursty",
  // The script of pools has no delays.
  isPoolable: undefined,
  lessRate,
  withoutRate,
  fields: { limit: "units", window: "duration", maxBurst: "duration?", maxDelay: "duration?" },

  configure(fields): SmoothBurstyConfig | ConfigProblem {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    const maxBurstMs = Number(fields["maxBurst"] ?? DEFAULT_MAX_BURST_MS);
    const maxDelayMs = Number(fields["maxDelay"] ?? windowMs);
    const maxMs = Math.floor(MAX_PARTS / limit);
    if (maxBurstMs >= maxMs)
      return configProblem("maxBurst", `less than ${maxMs} ms with a limit of ${limit}`);
    if (maxDelayMs > maxMs - maxBurstMs)
      return configProblem(
        fields["maxDelay"] === undefined ? "window" : "maxDelay",
        `at most ${maxMs - maxBurstMs} ms with a limit of ${limit} (so that counting stays exact)`,
      );
    const burst = Math.floor((limit * (maxBurstMs + maxDelayMs)) / windowMs);
    const minMs = Math.ceil(windowMs / limit) - maxBurstMs;
    if (burst < 1) return configProblem("maxDelay", `at least ${minMs} ms, so that one unit passes`);
    return { limit, windowMs, burst, savedParts: limit * maxBurstMs };
  },

  // An isolate that spends units does not know the debt, so it cannot compute a delay.
  localDecisions: () => ({ admits: false, denies: true }),

  scale(config, part) {
    const scaled = tokenBucket.scale(config, part);
    return scaled && { ...scaled, savedParts: Math.min(config.savedParts, scaled.burst * scaled.windowMs) };
  },

  decide(config, state, nowMs, cost, outstanding) {
    const decision = tokenBucket.decide(config, state, nowMs, cost, outstanding);
    if (!decision.allowed || cost === 0) return decision;
    const { limit, windowMs, savedParts } = config;
    // Held units are paid before this call proceeds, as if they were taken.
    const debt = (decision.state?.spentParts ?? 0) + (outstanding - cost) * windowMs - savedParts;
    return debt <= 0 ? decision : { ...decision, delayMs: Math.ceil(debt / limit) };
  },
};
