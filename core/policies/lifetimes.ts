/** How long a reservation may live. core/reservations/sizing.ts says why, and what else depends on these numbers. */

/** The shortest and the longest lifetime that a policy allows, in milliseconds. Both are 0: nothing is reserved. */
export interface Lifetimes {
  readonly leastMs: number;
  readonly mostMs: number;
  /** `false`: only isolates of the limiter hold units, and clients in their callers' processes ask for each call. */
  readonly clients?: boolean;
}

/**
 * The shortest and the longest lifetime in milliseconds that `reservation = "auto"` chooses. An object without calls
 * leaves memory after about 10 s, and then the units that isolates had reserved count as used. So isolates give units
 * back sooner. (The background work of a request could run for 30 s.)
 */
export const MIN_TTL_MS = 1_000;
export const MAX_TTL_MS = 8_000;
/** With a shorter lifetime nothing is reserved: messages would take too much of it. */
export const MIN_USEFUL_TTL_MS = 20;
