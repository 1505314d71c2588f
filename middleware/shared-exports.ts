/** What the entries `weir-limiter/express` and `weir-limiter/fetch` have in common. */
export { hashedKey } from "./hashed-key.ts";
export type { Check, DecideOptions, DecidingLimiter } from "./rate-limited.ts";
export type { LeaseOptions, LeasingLimiter } from "./leased.ts";
export { decisionsOf, leasesOf, type Decisions, type Leases, type RequestLease } from "./request-limits.ts";
