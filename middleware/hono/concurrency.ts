import type { Context, Env, MiddlewareHandler } from "hono";
import { responseOf } from "../denial.ts";
import type { End } from "../end.ts";
import { inBackgroundOf } from "../in-background.ts";
import type { LeaseOptions } from "../leased.ts";
import { requireLeaseOptions } from "../options.ts";
import { decisionsOf } from "../request-limits.ts";
import { slotFor } from "../slotted.ts";
import { untilEnded } from "../until-ended.ts";
import type { OnDenied } from "./rate-limit.ts";
import { contextOf, setLimitHeaders, type Limited } from "./variables.ts";

/** What `concurrency` is told: who leases, and what. */
export type ConcurrencyOptions<E extends Env> = LeaseOptions<[c: Context<Limited<E>>]> & {
  readonly onDenied?: OnDenied<Context<Limited<E>>>;
};

/**
 * Middleware that holds a lease while a request is answered, until the answer's stream has ended. A request without a
 * slot is answered with 503 and a problem document.
 */
export function concurrency<E extends Env = Env>(
  options: ConcurrencyOptions<E>,
): MiddlewareHandler<Limited<E>> {
  requireLeaseOptions(options);
  return async function concurrencyOfWeir(c, next) {
    const slot = await slotFor(c, options, [c], inBackgroundOf(contextOf(c)));
    if (slot.refusal !== undefined) return responseOf(slot.refusal);
    const { grant, denial, isOutermost, end } = slot;
    c.set("limits", decisionsOf(c));
    if (grant === undefined) return await next();
    if (denial !== undefined) {
      c.res = (await options.onDenied?.([grant], c)) ?? responseOf(denial);
    } else {
      await untilAnswered(c, next, end);
    }
    if (isOutermost) setLimitHeaders(c, options.time);
  };
}

/** Answers the request, and calls `end` once when its answer has ended. */
async function untilAnswered(c: Context, next: () => Promise<void>, end: (how: End) => void): Promise<void> {
  try {
    await next();
  } catch (error) {
    end("torn");
    throw error;
  }
  // Hono has caught what the handler threw, and made an answer of it.
  if (c.error !== undefined) end("torn");
  // The answer to HEAD has no body: Hono drops it, without a word to the stream.
  else if (c.req.raw.method === "HEAD" || c.res.body === null) end("whole");
  else c.res = untilEnded(c.res, end);
}
