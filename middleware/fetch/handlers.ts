/** Limits around plain `fetch` handlers: of a worker, of `Deno.serve`, of `Bun.serve`. */
import { SYSTEM_TIME } from "../../core/clock.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { DecideOptions } from "../decide.ts";
import { responseOf } from "../denial.ts";
import type { End } from "../end.ts";
import { inBackgroundOf, type InBackground } from "../in-background.ts";
import type { LeaseOptions } from "../leased.ts";
import { requireLeaseOptions, requireRateLimitOptions } from "../options.ts";
import { rateLimited } from "../rate-limited.ts";
import { RequestLimits } from "../request-limits.ts";
import { slotFor } from "../slotted.ts";
import { untilEnded } from "../until-ended.ts";

/** What a handler is called with: the request, and what its runtime gives beside it. */
export type HandlerArgs = readonly [request: Request, ...rest: unknown[]];

/** A plain handler. */
export type FetchHandler<Args extends HandlerArgs> = (...args: Args) => Response | Promise<Response>;

/** What answers a denied request instead of the problem document. Without an answer of its own, that is sent. */
export interface FetchDenied<Args extends HandlerArgs> {
  readonly onDenied?: (
    decisions: readonly Decision[],
    ...args: Args
  ) => Response | undefined | void | Promise<Response | undefined | void>;
}

/** The same handler within a limit. */
type Limited<Args extends HandlerArgs> = (...args: Args) => Promise<Response>;

/** Whatever is called with a request, and with what its runtime gives beside it. */
type AnyHandler = (request: Request, ...rest: never[]) => Response | Promise<Response>;

/*
 * A function among the options may take fewer arguments than the handler, or the other way round. So there are three
 * signatures: the arguments are the handler's; or the same where TypeScript 5 does not find them, since the handler is
 * a handler within a limit; or, of a handler that leaves some out, those of the options.
 */

/** The handler, of requests whose cost fits. A denied request is answered with 429 and a problem document. */
export function withRateLimit<Args extends HandlerArgs>(
  options: NoInfer<DecideOptions<Args> & FetchDenied<Args>>,
  handler: FetchHandler<Args>,
): Limited<Args>;
/** The handler, of requests whose cost fits. A denied request is answered with 429 and a problem document. */
export function withRateLimit<Handler extends AnyHandler>(
  options: DecideOptions<Parameters<Handler>> & FetchDenied<Parameters<Handler>>,
  handler: Handler,
): Limited<Parameters<Handler>>;
/** The handler, of requests whose cost fits. A denied request is answered with 429 and a problem document. */
export function withRateLimit<Args extends HandlerArgs>(
  options: DecideOptions<Args> & FetchDenied<Args>,
  handler: NoInfer<FetchHandler<Args>>,
): Limited<Args>;
export function withRateLimit<Args extends HandlerArgs>(
  options: DecideOptions<Args> & FetchDenied<Args>,
  handler: FetchHandler<Args>,
): Limited<Args> {
  requireRateLimitOptions(options);
  return async (...args) => {
    const [request] = args;
    const verdict = await rateLimited<Args>(request, options, args, backgroundOf(args));
    if ("refusal" in verdict) return responseOf(verdict.refusal);
    if (verdict.isSkipped) return await handler(...args);
    const { denial, outcome, isOutermost } = verdict;
    const response =
      denial === undefined
        ? await handler(...args)
        : ((await options.onDenied?.(outcome.decisions, ...args)) ?? responseOf(denial()));
    return isOutermost ? withLimitHeaders(request, response, options.time) : response;
  };
}

/** The handler, of requests that hold a lease until their answer's stream has ended. Without a slot: 503. */
export function withConcurrency<Args extends HandlerArgs>(
  options: NoInfer<LeaseOptions<Args> & FetchDenied<Args>>,
  handler: FetchHandler<Args>,
): Limited<Args>;
/** The handler, of requests that hold a lease until their answer's stream has ended. Without a slot: 503. */
export function withConcurrency<Handler extends AnyHandler>(
  options: LeaseOptions<Parameters<Handler>> & FetchDenied<Parameters<Handler>>,
  handler: Handler,
): Limited<Parameters<Handler>>;
/** The handler, of requests that hold a lease until their answer's stream has ended. Without a slot: 503. */
export function withConcurrency<Args extends HandlerArgs>(
  options: LeaseOptions<Args> & FetchDenied<Args>,
  handler: NoInfer<FetchHandler<Args>>,
): Limited<Args>;
export function withConcurrency<Args extends HandlerArgs>(
  options: LeaseOptions<Args> & FetchDenied<Args>,
  handler: FetchHandler<Args>,
): Limited<Args> {
  requireLeaseOptions(options);
  return async (...args) => {
    const [request] = args;
    const slot = await slotFor<Args>(request, options, args, backgroundOf(args));
    if (slot.refusal !== undefined) return responseOf(slot.refusal);
    const { grant, denial, isOutermost, end } = slot;
    if (grant === undefined) return await handler(...args);
    const response =
      denial === undefined
        ? await answered(handler, args, end)
        : ((await options.onDenied?.([grant], ...args)) ?? responseOf(denial));
    return isOutermost ? withLimitHeaders(request, response, options.time) : response;
  };
}

async function answered<Args extends HandlerArgs>(
  handler: FetchHandler<Args>,
  args: Args,
  end: (how: End) => void,
): Promise<Response> {
  try {
    const response = await handler(...args);
    // The answer to HEAD has no body: runtimes drop it, without a word to the stream.
    if (args[0].method !== "HEAD") return untilEnded(response, end);
    end("whole");
    return response;
  } catch (error) {
    end("torn");
    throw error;
  }
}

/** The response with the headers of the decision that binds. Those of a response may be unchangeable: it is copied. */
function withLimitHeaders(request: Request, response: Response, time = SYSTEM_TIME): Response {
  if (response.status === 101) return response;
  const copy = new Response(response.body, response);
  RequestLimits.of(request).setHeaders(copy.headers, () => time.nowMs());
  return copy;
}

function backgroundOf(args: HandlerArgs): InBackground {
  return inBackgroundOf(args[2]);
}
