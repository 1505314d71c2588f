/** `weir-limiter/memory`: a limiter in memory, with the limiter's own algorithms, for tests. */
import type { Limiter } from "../client/limiter.ts";
import { makeMemoryLimiter, type MemoryOptions } from "../worker/embedded/memory-limiter.ts";

export { LimiterError } from "../core/protocol/problems.ts";
export type * from "../client/limiter.ts";
export type { Time } from "../core/clock.ts";
export type { MemoryOptions } from "../worker/embedded/memory-limiter.ts";

/** A limiter in memory. Its counts end with its process. */
export function createMemoryLimiter(options: MemoryOptions): Limiter {
  return makeMemoryLimiter(options);
}
