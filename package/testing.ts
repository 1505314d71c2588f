/** `weir-limiter/testing`: limiters and a clock for the tests of applications that use Weir. */
export { LimiterError } from "../core/protocol/problems.ts";
export type * from "../client/limiter.ts";
export { manualClock, type ManualClock } from "../testing/manual-clock.ts";
export { memoryLimiter, type MemoryLimiterOptions, unlimited } from "../testing/memory-limiter.ts";
export { tomlPolicies } from "../testing/toml-policies.ts";
export {
  assertAsked,
  type AskedLike,
  assertNotAsked,
  type Call,
  type Method,
  testLimiter,
  type TestLimiter,
} from "../testing/test-limiter.ts";
