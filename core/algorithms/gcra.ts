import type { Algorithm } from "./algorithm.ts";
import { tokenBucket, type TokenBucketConfig, type TokenBucketState } from "./token-bucket.ts";

/**
 * GCRA, the generic cell rate algorithm of ITU-T I.371: a name for the token bucket, for users of redis-cell,
 * throttled, governor and other limiters that use it. It has the same fields and makes the same decisions.
 *
 * GCRA stores one instant, the *theoretical arrival time* (TAT), at which the next unit would come if all came evenly,
 * one every `window / limit`. A call passes when its own TAT is at most `burst` such intervals ahead of now:
 *
 *     TAT' = max(now, TAT) + cost * window / limit
 *     a cost passes when  TAT' - now  <=  burst * window / limit
 *
 * With `spent = (TAT - now) * limit` in parts of a token, that is exactly the token bucket's formula: each millisecond
 * takes `limit` parts off both. So there is no code here, and a TAT, a fraction of a millisecond at most rates, is
 * never rounded.
 *
 * Example: limit 3 per 1,000 ms, burst 3. Three units at 0 ms make a TAT of 1,000 ms. A fourth would make it 1,333 1/3
 * ms, which is 1,000 ms ahead from 333 1/3 ms on: it waits 334 ms.
 *
 * Its bound, its worst boundary and what it is bad at are those of the token bucket. For limiters with a `max_burst`
 * that excludes the first call (redis-cell, throttled), `burst` is that number plus 1: the units that pass at once.
 */
export const gcra: Algorithm<TokenBucketConfig, TokenBucketState> = {
  ...tokenBucket,
  name: "gcra",
  storedAs: tokenBucket.name,
};
