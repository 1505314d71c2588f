/** `weir-limiter/express`: middleware for Express, Connect, and anything else that calls `(req, res, next)`. */
export {
  concurrency,
  rateLimit,
  type Next,
  type NodeDenied,
  type NodeMiddleware,
  type NodeRequest,
  type NodeResponse,
} from "../middleware/express/express.ts";
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
