/** `weir-limiter/client`: a limiter that decides in the caller's own process. This is the entry everywhere but in a worker. */
import type { ClientOptions, Limiter } from "../client/limiter.ts";
import { makeLimiter, type Way } from "../client/remote/create-limiter.ts";

export { LimiterError } from "../core/protocol/problems.ts";
export type * from "../client/limiter.ts";
export type { Way } from "../client/remote/create-limiter.ts";

/** A limiter by its address and a token, or by a service binding. It sends nothing before the first call. */
export function createLimiter(way: Way & ClientOptions): Limiter {
  return makeLimiter(way, (work) => void work.catch(() => undefined));
}
