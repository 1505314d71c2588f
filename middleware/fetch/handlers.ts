/** Limits around plain `fetch` handlers: of a worker, of `Deno.serve`, of `Bun.serve`. */
import { SYSTEM_TIME } from "../../core/clock.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { leased, type LeaseOptions, untilEnded } from "../leased.ts";
import { inBackgroundOf, requireLeaseOptions, requireRateLimitOptions } from "../options.ts";
import { type DecideOptions, rateLimited, type SharedOptions } from "../rate-limited.ts";
import { RequestLimits } from "../request-limits.ts";
import { type End, responseOf, type Verdict } from "../verdict.ts";

export type HandlerArgs = readonly [request: Request, ...rest: unknown[]];

export type FetchHandler<Args extends HandlerArgs> = (...args: Args) => Response | Promise<Response>;

/** Answers a denied request. If it returns no response, the problem document is sent. */
export interface FetchDenied<Args extends HandlerArgs> {
  readonly onDenied?: (
    decisions: readonly Decision[],
    ...args: Args
  ) => Response | undefined | void | Promise<Response | undefined | void>;
}

type Limited<Args extends HandlerArgs> = (...args: Args) => Promise<Response>;

type AnyHandler = (request: Request, ...rest: never[]) => Response | Promise<Response>;

/*
 * The handler and its options may each take fewer arguments than the other. So there are three signatures: by
 * the handler; the same where TypeScript 5 cannot infer it from a limited handler; and by the options.
 */

/** Limits the handler to requests whose cost fits. A denied request gets 429 and a problem document. */
export function withRateLimit<Args extends HandlerArgs>(
  options: NoInfer<DecideOptions<Args> & FetchDenied<Args>>,
  handler: FetchHandler<Args>,
): Limited<Args>;
/** Limits the handler to requests whose cost fits. A denied request gets 429 and a problem document. */
export function withRateLimit<Handler extends AnyHandler>(
  options: DecideOptions<Parameters<Handler>> & FetchDenied<Parameters<Handler>>,
  handler: Handler,
): Limited<Parameters<Handler>>;
/** Limits the handler to requests whose cost fits. A denied request gets 429 and a problem document. */
export function withRateLimit<Args extends HandlerArgs>(
  options: DecideOptions<Args> & FetchDenied<Args>,
  handler: NoInfer<FetchHandler<Args>>,
): Limited<Args>;
export function withRateLimit<Args extends HandlerArgs>(
  options: DecideOptions<Args> & FetchDenied<Args>,
  handler: FetchHandler<Args>,
): Limited<Args> {
  requireRateLimitOptions(options);
  return async (...args) =>
    await answer(
      handler,
      args,
      options,
      await rateLimited<Args>(args[0], options, args, inBackgroundOf(args[2]), args[0]),
    );
}

/** Holds a lease for each request until its answer's stream has ended. Without a lease: 503. */
export function withConcurrency<Args extends HandlerArgs>(
  options: NoInfer<LeaseOptions<Args> & FetchDenied<Args>>,
  handler: FetchHandler<Args>,
): Limited<Args>;
/** Holds a lease for each request until its answer's stream has ended. Without a lease: 503. */
export function withConcurrency<Handler extends AnyHandler>(
  options: LeaseOptions<Parameters<Handler>> & FetchDenied<Parameters<Handler>>,
  handler: Handler,
): Limited<Parameters<Handler>>;
/** Holds a lease for each request until its answer's stream has ended. Without a lease: 503. */
export function withConcurrency<Args extends HandlerArgs>(
  options: LeaseOptions<Args> & FetchDenied<Args>,
  handler: NoInfer<FetchHandler<Args>>,
): Limited<Args>;
export function withConcurrency<Args extends HandlerArgs>(
  options: LeaseOptions<Args> & FetchDenied<Args>,
  handler: FetchHandler<Args>,
): Limited<Args> {
  requireLeaseOptions(options);
  return async (...args) =>
    await answer(
      handler,
      args,
      options,
      await leased<Args>(args[0], options, args, inBackgroundOf(args[2]), args[0]),
    );
}

async function answer<Args extends HandlerArgs>(
  handler: FetchHandler<Args>,
  args: Args,
  { onDenied, time = SYSTEM_TIME }: SharedOptions<Args> & FetchDenied<Args>,
  { refusal, decisions, denial, isOutermost, end }: Verdict,
): Promise<Response> {
  if (refusal !== undefined) return responseOf(refusal);
  if (decisions === undefined) return await handler(...args);
  const response =
    denial === undefined
      ? await answered(handler, args, end)
      : ((await onDenied?.(decisions, ...args)) ?? responseOf(denial()));
  if (!isOutermost || response.status === 101) return response;
  // The headers of a response of `fetch` cannot be changed.
  const copy = new Response(response.body, response);
  RequestLimits.of(args[0]).setHeaders(copy.headers, () => time.nowMs());
  return copy;
}

async function answered<Args extends HandlerArgs>(
  handler: FetchHandler<Args>,
  args: Args,
  end: ((end: End) => void) | undefined,
): Promise<Response> {
  try {
    const response = await handler(...args);
    if (end === undefined) return response;
    // The answer to HEAD has no body: runtimes drop it without ending its stream.
    if (args[0].method !== "HEAD") return untilEnded(response, end);
    end("complete");
    return response;
  } catch (error) {
    end?.("aborted");
    throw error;
  }
}
