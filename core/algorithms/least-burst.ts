/**
 * The smallest burst with which a token bucket reaches its rate for a caller that waits as it is told.
 *
 * Waits are whole milliseconds, so such a caller comes up to a millisecond late, and what the bucket has no room for in
 * that time is lost. 600 a second with a burst of 1: a unit comes back every 1.67 ms, the caller is told to wait 2 ms,
 * and a third of a unit is lost each time. That makes 500 a second.
 *
 * A unit is `windowMs` parts, and a millisecond gives back `limit` parts (token-bucket.ts). Everything that is ever left
 * in a bucket that begins full is a multiple of g, the greatest common divisor of the two. A caller that is denied one
 * unit finds less than a unit, so at most `windowMs - g` parts, and a millisecond later at most
 *
 *     windowMs - g + limit  parts
 *
 * A bucket with room for these loses nothing. And it needs that room: as long as nothing is lost, what the caller leaves
 * behind goes through all multiples of g that it can, as steps of `limit` around a circle of `windowMs` do.
 */
export function leastBurst(limit: number, windowMs: number): number {
  return 1 + Math.ceil((limit - divisorOf(limit, windowMs)) / windowMs);
}

/** The greatest common divisor (Euclid). */
function divisorOf(a: number, b: number): number {
  let [larger, smaller] = [a, b];
  while (smaller > 0) [larger, smaller] = [smaller, larger % smaller];
  return larger;
}
