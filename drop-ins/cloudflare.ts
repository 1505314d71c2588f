/** The shape of Cloudflare's rate limit binding. */
import type { Limiter, PolicyName } from "../client/limiter.ts";
import type { Decision } from "../core/protocol/decision.ts";
import { requireGiven, requireKnownOptions, requireMethods, requireText } from "../core/violations.ts";

/** The binding as a worker uses it. The answer has the decision's fields beside `success`. */
export interface RateLimitBinding {
  /** Takes `delta` units (by default 1) of the key if they fit. */
  limit(request: { readonly key: string; readonly delta?: number }): Promise<Decision>;
}

/** The options of `rateLimitBinding`. */
export interface RateLimitBindingOptions {
  readonly limiter: Pick<Limiter, "limit">;
  /** Absent: the limiter's own policy. */
  readonly policy?: PolicyName;
}

/**
 * A limiter with the interface of Cloudflare's rate limit binding.
 *
 * @throws TypeError that names the option, its value and what is allowed
 */
export function rateLimitBinding(options: RateLimitBindingOptions): RateLimitBinding {
  requireKnownOptions(options, ["limiter", "policy"]);
  const { limiter, policy } = options;
  requireGiven("limiter", limiter, "a limiter, as createLimiter makes one");
  requireMethods("limiter", limiter, ["limit"], "a limiter, as createLimiter makes one");
  requireText("policy", policy, "the name of a policy");
  const named = policy === undefined ? {} : { policy };
  return {
    limit: ({ key, delta }) => limiter.limit({ ...named, key, ...(delta !== undefined && { cost: delta }) }),
  };
}
