/** `weir/hono`: middleware for Hono. */
export { concurrency, type ConcurrencyOptions } from "../middleware/hono/concurrency.ts";
export { rateLimit, type OnDenied, type RateLimitOptions } from "../middleware/hono/rate-limit.ts";
export type { Limited, LimitVariables } from "../middleware/hono/variables.ts";
export type { Check, DecidingLimiter } from "../middleware/decide.ts";
export type { LeasingLimiter } from "../middleware/leased.ts";
export type { Decisions } from "../middleware/request-limits.ts";
