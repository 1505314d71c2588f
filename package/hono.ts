/** `weir-limiter/hono`: middleware for Hono. */
export {
  concurrency,
  rateLimit,
  type ConcurrencyOptions,
  type Limited,
  type LimitVariables,
  type OnDenied,
  type RateLimitOptions,
} from "../middleware/hono/hono.ts";
export type { LeasingLimiter } from "../middleware/leased.ts";
export { hashedKey } from "../middleware/hashed-key.ts";
export type { Check, DecidingLimiter } from "../middleware/rate-limited.ts";
export type { Decisions, Leases, RequestLease } from "../middleware/request-limits.ts";
