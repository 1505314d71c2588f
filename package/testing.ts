/** `weir/testing`: limiters for tests of whoever uses one. */
export { LimiterError } from "../core/protocol/problems.ts";
export type * from "../client/limiter.ts";
export type { AskedLike, Call, Method } from "../testing/calls.ts";
export { manualClock, type ManualClock } from "../testing/manual-clock.ts";
export { memoryLimiter, type MemoryLimiterOptions } from "../testing/memory-limiter.ts";
export { assertAsked, assertNotAsked, testLimiter, type TestLimiter } from "../testing/test-limiter.ts";
export { unlimited } from "../testing/unlimited.ts";
