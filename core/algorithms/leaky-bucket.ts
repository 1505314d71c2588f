import type { Algorithm, ConfigProblem } from "./algorithm.ts";
import { MAX_PARTS, tokenBucket, type TokenBucketConfig, type TokenBucketState } from "./token-bucket.ts";

/**
 * Leaky bucket as a queue: calls flow out at a steady rate, and what comes faster is told to wait for its turn. It is
 * what nginx's `limit_req` does (https://nginx.org/en/docs/http/ngx_http_limit_req_module.html).
 *
 * nginx counts the *excess*: by how many calls the outflow is behind. An idle bucket has none, and neither has the
 * first call. Each further call adds 1, and the rate takes away:
 *
 *     excess(now) = max(0, excess - limit / window * (now - at) + cost)         the first unit of an idle key: 0
 *     admitted when  excess <= burst;   delayMs = (excess - delay) * window / limit,  rounded up
 *
 * `delay` is the excess up to which nobody waits, and with `nodelay` nobody waits at all. What is admitted is counted
 * at once, so it needs no queue in memory: the caller waits by itself, and the next one is told to wait behind it.
 *
 * That is the token bucket with room for `burst + 1`, whose `spent` is the excess and the one unit that never is in
 * excess. So it is counted by its functions, in integers. nginx counts thousandths of a call, and rounds rates per
 * minute and delays down. Here nothing but the delay is rounded, and up: nobody is told to go on too early.
 *
 * Example: limit 10 per 1,000 ms, burst 5, delay 2. Of 7 calls at one instant three pass at once (their excess is 0, 1
 * and 2), three are told to wait 100, 200 and 300 ms, and the seventh, whose excess would be 6, is denied for 100 ms.
 *
 * A cost of n is as n calls: it waits for the turn of its last unit. More than `burst + 1` units never pass.
 *
 * The bound, in any interval of L ms: `burst + 1 + limit * L / window` units are admitted. Callers that wait as told
 * go on with at most `max(delay + 1, largest cost) + limit * (L + 1) / window` units, the 1 ms because each of them
 * goes on at a whole millisecond. Its worst boundary is the first: `delay + 1` units at once, and then the rate. What
 * it cannot help: a caller that does not wait, and a refund, whose place in the queue is given away a second time.
 */
export interface LeakyBucketConfig extends TokenBucketConfig {
  /** So many units of a full bucket pass at once; the rest is told to wait. */
  readonly undelayed: number;
}

/** All that a token bucket does, but in pools: their script knows no delays. */
const { isPoolable: _, ...bucket } = tokenBucket;

export const leakyBucket: Algorithm<LeakyBucketConfig, TokenBucketState> = {
  ...bucket,
  name: "leaky-bucket",
  fields: { limit: "units", window: "duration", burst: "count?", delay: "count?", nodelay: "boolean?" },

  configure(fields): LeakyBucketConfig | ConfigProblem {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    const burst = Number(fields["burst"] ?? 0) + 1;
    if (burst * windowMs > MAX_PARTS) {
      const most = Math.floor(MAX_PARTS / windowMs) - 1;
      const allowed = `at most ${most} with a window of ${windowMs} ms ((burst + 1) * windowMs may not exceed 2^53)`;
      return { problem: { field: "burst", allowed } };
    }
    if (fields["nodelay"] === true && fields["delay"] !== undefined)
      return { problem: { field: "delay", allowed: "left out with nodelay = true" } };
    const undelayed = fields["nodelay"] === true ? burst : Number(fields["delay"] ?? 0) + 1;
    return { limit, windowMs, burst, undelayed: Math.min(undelayed, burst) };
  },

  // An isolate that spends units does not know how many calls are before it, so it cannot tell a delay.
  localDecisions: ({ burst, undelayed }) => ({ admits: undelayed === burst, denies: true }),

  scale(config, part) {
    const scaled = tokenBucket.scale(config, part);
    return scaled && { ...scaled, undelayed: Math.max(1, Math.floor(config.undelayed * part)) };
  },

  decide(config, state, nowMs, cost, outstanding) {
    const decision = tokenBucket.decide(config, state, nowMs, cost, outstanding);
    if (!decision.allowed || cost === 0) return decision;
    const { limit, windowMs, undelayed } = config;
    // Units that are held go on before this call, as if they were taken.
    const early = (decision.state?.spentParts ?? 0) + (outstanding - undelayed) * windowMs;
    return early <= 0 ? decision : { ...decision, delayMs: Math.ceil(early / limit) };
  },
};
