/** How long a reservation may live. core/reservations/sizing.ts says why, and what else depends on these numbers. */

/** The shortest and the longest lifetime that a policy allows, in milliseconds. Both are 0: nothing is reserved. */
export interface Lifetimes {
  readonly leastMs: number;
  readonly mostMs: number;
}

/**
 * Lifetimes that are chosen unless a policy says one. An object that nobody asks leaves memory after about 10 s, and
 * then what isolates had reserved counts as used: so it is given back before. (waitUntil would end after 30 s.)
 */
export const LEAST_TTL_MS = 1_000;
export const MOST_TTL_MS = 8_000;
/** Messages take some of it; shorter lifetimes are not worth the asking, and nothing is reserved. */
export const LEAST_USEFUL_TTL_MS = 20;
