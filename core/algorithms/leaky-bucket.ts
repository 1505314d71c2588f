import { type Algorithm, type ConfigProblem, configProblem } from "./algorithm.ts";
import {
  lessRate,
  MAX_PARTS,
  tokenBucket,
  type TokenBucketConfig,
  type TokenBucketState,
  withoutRate,
} from "./token-bucket.ts";

/**
 * Leaky bucket as a queue: calls flow out at a steady rate, and a faster call gets a delay until its turn. nginx's
 * `limit_req` does this (https://nginx.org/en/docs/http/ngx_http_limit_req_module.html).
 *
 * nginx counts the *excess*: how many calls the outflow is behind. It is 0 for an idle bucket and for the first call.
 * Each further call adds 1, and the rate subtracts:
 *
 *     excess(now) = max(0, excess - limit / window * (now - at) + cost)         the first unit of an idle key: 0
 *     admitted when  excess <= burst;   delayMs = (excess - delay) * window / limit,  rounded up
 *
 * Up to an excess of `delay` calls do not wait, and with `nodelay` none do. An admitted call is counted at once, so
 * there is no queue in memory: the caller waits by itself, and the next call gets the delay behind it.
 *
 * That is the token bucket with room for `burst + 1`, where `spent` is the excess plus the one unit that is never in
 * excess. So its functions count, in integers. nginx counts thousandths of a call, and rounds rates per minute and
 * delays down. Here only the delay is rounded, and up: no caller proceeds too early.
 *
 * Example: limit 10 per 1,000 ms, burst 5, delay 2. Of 7 calls at one instant three pass at once, three get delays of
 * 100, 200 and 300 ms, and the seventh, with an excess of 6, is denied for 100 ms.
 *
 * A cost of n equals n calls: it waits for the turn of its last unit. More than `burst + 1` units never pass.
 *
 * The bound, in any interval of L ms: `burst + 1 + limit * L / window` units are admitted. Callers that keep their
 * delays proceed with at most `max(delay + 1, largest cost) + limit * (L + 1) / window` units, the 1 ms because each
 * proceeds at a full millisecond. The worst boundary is the beginning: `delay + 1` units at once, and then the rate.
 * What it is bad at: callers that do not wait, and refunds, since another call then gets the same place in the queue.
 */
export interface LeakyBucketConfig extends TokenBucketConfig {
  /** How many units of a full bucket pass without a delay. */
  readonly undelayed: number;
}

export const leakyBucket: Algorithm<LeakyBucketConfig, TokenBucketState> = {
  ...tokenBucket,
  name: "leaky-bucket",
  // The script of pools has no delays.
  isPoolable: undefined,
  lessRate,
  withoutRate,
  fields: { limit: "units", window: "duration", burst: "count?", delay: "count?", nodelay: "boolean?" },

  configure(fields): LeakyBucketConfig | ConfigProblem {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    const burst = Number(fields["burst"] ?? 0) + 1;
    if (burst * windowMs > MAX_PARTS) {
      const max = Math.floor(MAX_PARTS / windowMs) - 1;
      const allowed = `at most ${max} with a window of ${windowMs} ms ((burst + 1) * windowMs may not exceed 2^53)`;
      return configProblem("burst", allowed);
    }
    if (fields["nodelay"] === true && fields["delay"] !== undefined)
      return configProblem("delay", "left out with nodelay = true");
    const undelayed = fields["nodelay"] === true ? burst : Number(fields["delay"] ?? 0) + 1;
    return { limit, windowMs, burst, undelayed: Math.min(undelayed, burst) };
  },

  // An isolate does not know how many calls are before its units, so it cannot compute a delay.
  localDecisions: ({ burst, undelayed }) => ({ admits: undelayed === burst, denies: true }),

  scale(config, part) {
    const scaled = tokenBucket.scale(config, part);
    return scaled && { ...scaled, undelayed: Math.max(1, Math.floor(config.undelayed * part)) };
  },

  decide(config, state, nowMs, cost, outstanding) {
    const decision = tokenBucket.decide(config, state, nowMs, cost, outstanding);
    if (!decision.allowed || cost === 0) return decision;
    const { limit, windowMs, undelayed } = config;
    // Held units proceed before this call, as if they were taken.
    const early = (decision.state?.spentParts ?? 0) + (outstanding - undelayed) * windowMs;
    return early <= 0 ? decision : { ...decision, delayMs: Math.ceil(early / limit) };
  },
};
