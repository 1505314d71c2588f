/** `weir-limiter/client` in a worker: units go back in the background of the requests that used them. */
import { waitUntil } from "cloudflare:workers";
import type { ClientOptions, Limiter } from "../client/limiter.ts";
import { makeLimiter, type Way } from "../client/remote/create-limiter.ts";
import { UNBOUNDED } from "../client/transports/http.ts";

export { LimiterError } from "../core/protocol/problems.ts";
export type * from "../client/limiter.ts";
export type { Way } from "../client/remote/create-limiter.ts";

/** A limiter by a service binding, or by its address and a token. It sends nothing before the first call. */
export function createLimiter(way: Way & ClientOptions): Limiter {
  return makeLimiter(way, waitUntil, UNBOUNDED);
}
