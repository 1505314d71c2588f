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
export * from "../middleware/shared-exports.ts";
