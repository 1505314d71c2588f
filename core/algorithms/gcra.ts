import type { Algorithm } from "./algorithm.ts";
import { tokenBucket, type TokenBucketConfig, type TokenBucketState } from "./token-bucket.ts";

/**
 * GCRA, the generic cell rate algorithm of ITU-T I.371: a name for the token bucket, for who comes from redis-cell,
 * throttled, governor or another limiter that calls it so. It has the same fields, and decides alike.
 *
 * GCRA keeps one instant, the *theoretical arrival time* (TAT), at which the next unit would come if all came evenly,
 * one each `window / limit`. A call passes when its own TAT is at most `burst` such intervals ahead of now:
 *
 *     TAT' = max(now, TAT) + cost * window / limit
 *     a cost passes when  TAT' - now  <=  burst * window / limit
 *
 * With `spent = (TAT - now) * limit` in parts of a token, that is the token bucket's formula to the letter: time that
 * passes takes `limit` parts a millisecond off both. So nothing is written twice, and a TAT, which is a fraction of a
 * millisecond for most rates, is never rounded.
 *
 * Example: limit 3 per 1,000 ms, burst 3. Three units at 0 ms make a TAT of 1,000 ms. A fourth would make it
 * 1,333 1/3 ms, which is 1,000 ms ahead from 333 1/3 ms on: it waits 334 ms.
 *
 * Its bound and its worst boundary are those of the token bucket. Of limiters that speak of a `max_burst` beside the
 * first call (redis-cell, throttled), `burst` here is that number plus 1: the most units that pass at once.
 */
export const gcra: Algorithm<TokenBucketConfig, TokenBucketState> = {
  ...tokenBucket,
  name: "gcra",
  storedAs: tokenBucket.name,
};
