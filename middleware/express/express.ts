/** Limits as middleware of Express, Connect, and other callers of Node's `(req, res, next)`. */
import { SYSTEM_TIME } from "../../core/clock.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { Caller } from "../callers.ts";
import { leased, type LeaseOptions } from "../leased.ts";
import { inBackgroundOf, requireLeaseOptions, requireRateLimitOptions } from "../options.ts";
import { type DecideOptions, rateLimited, type SharedOptions } from "../rate-limited.ts";
import { RequestLimits } from "../request-limits.ts";
import type { Denial, Verdict } from "../verdict.ts";

/**
 * What a request has in every such framework, so that the options' functions need no type of their own. For more than
 * this, name the framework's types: `rateLimit<Request, Response>`.
 */
export interface NodeRequest {
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly method?: string | undefined;
  readonly url?: string | undefined;
  readonly socket: { readonly remoteAddress?: string | undefined };
  /** Express only: the caller's address, by its setting `trust proxy`. */
  readonly ip?: string | undefined;
}

/** What a response has in every such framework. */
export interface NodeResponse {
  statusCode: number;
  readonly headersSent: boolean;
  readonly destroyed: boolean;
  readonly writableFinished: boolean;
  setHeader(name: string, value: string): unknown;
  end(body?: string): unknown;
  once(event: "close", listener: () => void): unknown;
}

export type Next = (error?: unknown) => void;

/** Middleware. Its promise resolves when `next` was called or the request was answered. */
export type NodeMiddleware<Req, Res> = (req: Req, res: Res, next: Next) => Promise<void>;

/** Answers a denied request. If it has begun no answer when it returns, the problem document is sent. */
export interface NodeDenied<Req, Res> {
  readonly onDenied?: (decisions: readonly Decision[], req: Req, res: Res) => unknown;
}

/** Middleware that admits a request if its cost fits. A denied one gets 429 and a problem document. */
export function rateLimit<Req extends object = NodeRequest, Res extends NodeResponse = NodeResponse>(
  options: DecideOptions<[req: Req, res: Res]> & NodeDenied<Req, Res>,
): NodeMiddleware<Req, Res> {
  requireRateLimitOptions(options);
  return (req, res, next) =>
    passOn(next, async () => {
      const verdict = await rateLimited(
        req,
        options,
        [req, res],
        inBackgroundOf(undefined),
        new NodeCaller(res),
      );
      return await passes(req, res, options, verdict);
    });
}

/** Middleware that holds a lease until the answer was sent or its connection closed. Without a lease: 503. */
export function concurrency<Req extends object = NodeRequest, Res extends NodeResponse = NodeResponse>(
  options: LeaseOptions<[req: Req, res: Res]> & NodeDenied<Req, Res>,
): NodeMiddleware<Req, Res> {
  requireLeaseOptions(options);
  return (req, res, next) =>
    passOn(next, async () => {
      const verdict = await leased(req, options, [req, res], inBackgroundOf(undefined), new NodeCaller(res));
      return await passes(req, res, options, verdict);
    });
}

/** The caller of a request: it has left when its connection closes before the answer has been sent. */
class NodeCaller implements Caller {
  readonly #res: NodeResponse;

  constructor(res: NodeResponse) {
    this.#res = res;
  }

  get signal(): AbortSignal {
    const res = this.#res;
    const left = new AbortController();
    const leave = () => {
      if (!res.writableFinished) left.abort();
    };
    if (res.destroyed) leave();
    else res.once("close", leave);
    return left.signal;
  }
}

/** Calls the next handler, or the error handler if the decision fails. Errors of `next` are its own. */
async function passOn(next: Next, decide: () => Promise<boolean>): Promise<void> {
  let isPassing: boolean;
  try {
    isPassing = await decide();
  } catch (error) {
    next(error);
    return;
  }
  if (isPassing) next();
}

async function passes<Req extends object, Res extends NodeResponse>(
  req: Req,
  res: Res,
  { onDenied, time = SYSTEM_TIME }: SharedOptions<[req: Req, res: Res]> & NodeDenied<Req, Res>,
  { refusal, decisions, denial, end }: Verdict,
): Promise<boolean> {
  if (refusal !== undefined) {
    // A caller that left gets no answer.
    if (!res.destroyed) send(refusal, res);
    return false;
  }
  if (decisions === undefined) return true;
  if (end !== undefined && res.destroyed) {
    end("aborted");
    return false;
  }
  if (end !== undefined) res.once("close", () => end(res.writableFinished ? "complete" : "aborted"));
  // The decision of an earlier middleware may bind: then this sets the same headers again.
  const headers = { set: (name: string, value: string) => void res.setHeader(name, value) };
  if (!res.headersSent) RequestLimits.of(req).setHeaders(headers, () => time.nowMs());
  if (denial === undefined) return true;
  await onDenied?.(decisions, req, res);
  if (!res.headersSent) send(denial(), res);
  return false;
}

function send({ status, headers, body }: Denial, res: NodeResponse): void {
  for (const [name, value] of headers) res.setHeader(name, value);
  res.statusCode = status;
  res.end(body);
}
