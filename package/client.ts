import type { ClientOptions, Limiter } from "../client/limiter.ts";
/** `weir/client`: a limiter that decides in the caller's own process. This is the entry everywhere but in a worker. */
import { makeLimiter, type Way } from "../client/remote/create-limiter.ts";

export { LimiterError } from "../core/protocol/problems.ts";
export type { ClientOptions } from "../client/limiter.ts";
export type * from "../client/limiter.ts";
export type { Way } from "../client/remote/create-limiter.ts";
export type { LimiterCalls, LimiterService } from "../client/transports/transport.ts";

/** A limiter by its address and a token, or by a service binding. It does not ask before the first call. */
export function createLimiter(way: Way & ClientOptions): Limiter {
  return makeLimiter(way, (work) => void work.catch(() => undefined));
}
