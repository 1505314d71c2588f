/** `weir-limiter/objects`: a limiter over its objects, for a worker that binds them from the limiter's (`script_name`). */
import type { Limiter } from "../client/limiter.ts";
import { makeObjectsLimiter, type ObjectsOptions } from "../worker/embedded/objects-limiter.ts";

export { LimiterError } from "../core/protocol/problems.ts";
export type * from "../client/limiter.ts";
export type { ObjectsOptions } from "../worker/embedded/objects-limiter.ts";

/** A limiter over the objects of another worker. It sends nothing before the first call. */
export function createObjectsLimiter(options: ObjectsOptions): Limiter {
  return makeObjectsLimiter(options);
}
