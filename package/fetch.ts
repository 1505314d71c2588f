/** `weir-limiter/fetch`: limits around plain `fetch` handlers, and a `fetch` that keeps within a partner's limit. */
export {
  withConcurrency,
  withRateLimit,
  type FetchDenied,
  type FetchHandler,
  type HandlerArgs,
} from "../middleware/fetch/handlers.ts";
export {
  FetchLimitedError,
  limitedFetch,
  type Fetch,
  type LimitedFetchOptions,
} from "../middleware/fetch/limited-fetch.ts";
export { hashedKey } from "../middleware/hashed-key.ts";
export type { Check, DecideOptions, DecidingLimiter } from "../middleware/rate-limited.ts";
export type { LeaseOptions, LeasingLimiter } from "../middleware/leased.ts";
export {
  decisionsOf,
  leasesOf,
  type Decisions,
  type Leases,
  type RequestLease,
} from "../middleware/request-limits.ts";
