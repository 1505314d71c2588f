/** `weir/express`: middleware for Express, Connect, and whatever else calls `(req, res, next)`. */
export {
  concurrency,
  rateLimit,
  type Next,
  type NodeDenied,
  type NodeMiddleware,
  type NodeResponse,
} from "../middleware/express/express.ts";
export type { Check, DecideOptions, DecidingLimiter } from "../middleware/decide.ts";
export type { LeaseOptions, LeasingLimiter } from "../middleware/leased.ts";
export { decisionsOf, type Decisions } from "../middleware/request-limits.ts";
