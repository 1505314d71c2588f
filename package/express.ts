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
export * from "../middleware/shared-exports.ts";
