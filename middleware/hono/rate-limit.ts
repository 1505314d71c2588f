import type { Context, Env, MiddlewareHandler } from "hono";
import type { Decision } from "../../core/protocol/decision.ts";
import type { DecideOptions } from "../decide.ts";
import { responseOf } from "../denial.ts";
import { inBackgroundOf } from "../in-background.ts";
import { requireRateLimitOptions } from "../options.ts";
import { rateLimited } from "../rate-limited.ts";
import { decisionsOf } from "../request-limits.ts";
import { contextOf, setLimitHeaders, type Limited } from "./variables.ts";

/** What answers a denied request instead of the problem document. Without an answer of its own, that is sent. */
export type OnDenied<C> = (
  decisions: readonly Decision[],
  c: C,
) => Response | undefined | void | Promise<Response | undefined | void>;

/** What `rateLimit` is told: who decides, and on what. */
export type RateLimitOptions<E extends Env> = DecideOptions<[c: Context<Limited<E>>]> & {
  readonly onDenied?: OnDenied<Context<Limited<E>>>;
};

/**
 * Middleware that lets a request go on if its cost fits. The answer has the headers of the decision that binds, and a
 * denied request is answered with 429 (503 when nobody could decide) and a problem document.
 */
export function rateLimit<E extends Env = Env>(options: RateLimitOptions<E>): MiddlewareHandler<Limited<E>> {
  requireRateLimitOptions(options);
  return async function rateLimitOfWeir(c, next) {
    const verdict = await rateLimited(c, options, [c], inBackgroundOf(contextOf(c)));
    if ("refusal" in verdict) return responseOf(verdict.refusal);
    c.set("limits", decisionsOf(c));
    if (verdict.isSkipped) return await next();
    const { denial, outcome, isOutermost } = verdict;
    if (denial === undefined) await next();
    else c.res = (await options.onDenied?.(outcome.decisions, c)) ?? responseOf(denial());
    // The outermost sets them, since only it knows all decisions.
    if (isOutermost) setLimitHeaders(c, options.time);
  };
}
