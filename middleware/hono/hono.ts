/** Limits as middleware of Hono. */
import type { Context, Env, MiddlewareHandler } from "hono";
import { SYSTEM_TIME } from "../../core/clock.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { leased, type LeaseOptions, untilEnded } from "../leased.ts";
import { inBackgroundOf, requireLeaseOptions, requireRateLimitOptions } from "../options.ts";
import { type DecideOptions, rateLimited, type SharedOptions } from "../rate-limited.ts";
import { type Decisions, decisionsOf, type Leases, leasesOf, RequestLimits } from "../request-limits.ts";
import { type End, responseOf, type Verdict } from "../verdict.ts";

/** In the context: `c.var.limits.<policy>` is the decision under a policy, `c.var.leases.<policy>` the lease. */
export interface LimitVariables {
  readonly limits: Decisions;
  readonly leases: Leases;
}

export type Limited<E extends Env> = E & { Variables: LimitVariables };

/** Answers a denied request. If it returns no response, the problem document is sent. */
export type OnDenied<C> = (
  decisions: readonly Decision[],
  c: C,
) => Response | undefined | void | Promise<Response | undefined | void>;

export type RateLimitOptions<E extends Env> = DecideOptions<[c: Context<Limited<E>>]> & {
  readonly onDenied?: OnDenied<Context<Limited<E>>>;
};

export type ConcurrencyOptions<E extends Env> = LeaseOptions<[c: Context<Limited<E>>]> & {
  readonly onDenied?: OnDenied<Context<Limited<E>>>;
};

/** Admits a request if its cost fits. Otherwise 429, or 503 if the limiter did not answer. */
export function rateLimit<E extends Env = Env>(options: RateLimitOptions<E>): MiddlewareHandler<Limited<E>> {
  requireRateLimitOptions(options);
  return async function rateLimitOfWeir(c, next) {
    const verdict = await rateLimited(c, options, [c], inBackgroundOf(contextOf(c)), c.req.raw);
    return await answer(c, next, options, verdict);
  };
}

/** Holds a lease until the answer's stream has ended. Without a lease: 503 and a problem document. */
export function concurrency<E extends Env = Env>(
  options: ConcurrencyOptions<E>,
): MiddlewareHandler<Limited<E>> {
  requireLeaseOptions(options);
  return async function concurrencyOfWeir(c, next) {
    const verdict = await leased(c, options, [c], inBackgroundOf(contextOf(c)), c.req.raw);
    return await answer(c, next, options, verdict);
  };
}

/** The context with `waitUntil`, where there is one: reading it throws in Node. */
function contextOf(c: Context): unknown {
  try {
    return c.executionCtx;
  } catch {
    return undefined;
  }
}

async function answer<E extends Env>(
  c: Context<Limited<E>>,
  next: () => Promise<void>,
  { onDenied, time }: SharedOptions<[c: Context<Limited<E>>]> & Pick<RateLimitOptions<E>, "onDenied">,
  { refusal, decisions, denial, isOutermost, end }: Verdict,
): Promise<Response | void> {
  if (refusal !== undefined) return responseOf(refusal);
  c.set("limits", decisionsOf(c));
  c.set("leases", leasesOf(c));
  if (decisions === undefined) return await next();
  if (denial !== undefined) c.res = (await onDenied?.(decisions, c)) ?? responseOf(denial());
  else {
    const wholeAnswer = end && notesWholeAnswer(c);
    try {
      await next();
    } catch (error) {
      end?.("aborted");
      throw error;
    }
    if (end !== undefined) endWithAnswer(c, end, wholeAnswer?.());
  }
  // Only the outermost knows all decisions.
  if (isOutermost) setLimitHeaders(c, time);
}

/** Calls `end` once when the request's answer has ended. @param whole an answer that is no stream */
function endWithAnswer(c: Context, end: (how: End) => void, whole: Response | undefined): void {
  // Hono has caught the handler's error, and made an answer of it.
  if (c.error !== undefined) end("aborted");
  // The answer to HEAD has no body: Hono drops it without ending its stream.
  else if (c.res === whole || c.req.raw.method === "HEAD" || c.res.body === null) end("complete");
  else {
    const leasedAnswer = untilEnded(c.res, end);
    // Otherwise Hono would make a further answer, with the headers of both.
    c.res = undefined;
    c.res = leasedAnswer;
  }
}

/**
 * Notes the answer that the handler last makes of text or bytes, by the context. Of a response alone nobody can tell, and
 * a stream that looks for its end takes longer than a small route.
 */
function notesWholeAnswer(c: Context): () => Response | undefined {
  let whole: Response | undefined;
  const makers = c as unknown as Record<string, (data: unknown, init: unknown, headers: unknown) => unknown>;
  for (const name of ["body", "text", "json", "html"]) {
    const make = makers[name];
    if (make === undefined) continue;
    makers[name] = (data, init, headers) => {
      const made = make(data, init, headers);
      const isWhole = name !== "body" || typeof data === "string" || ArrayBuffer.isView(data);
      if (isWhole && made instanceof Response) whole = made;
      return made;
    };
  }
  return () => whole;
}

/** Sets the headers of the decision that binds. A response that switches protocols cannot be copied. */
function setLimitHeaders(c: Context, time = SYSTEM_TIME): void {
  if (c.res.status === 101) return;
  const limits = RequestLimits.of(c);
  const nowMs = () => time.nowMs();
  try {
    // `c.header` would make a new response for each header, which takes longer than everything else here.
    limits.setHeaders(c.res.headers, nowMs);
  } catch {
    // The headers of a response of `fetch` cannot be changed.
    limits.setHeaders({ set: (name, value) => c.header(name, value) }, nowMs);
  }
}
