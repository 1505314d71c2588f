/** Limits as middleware of Express, Connect, and whatever else calls `(req, res, next)` over Node's own objects. */
import { SYSTEM_TIME } from "../../core/clock.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { DecideOptions } from "../decide.ts";
import type { Denial } from "../denial.ts";
import { inBackgroundOf } from "../in-background.ts";
import type { LeaseOptions } from "../leased.ts";
import { requireLeaseOptions, requireRateLimitOptions } from "../options.ts";
import { rateLimited } from "../rate-limited.ts";
import { RequestLimits } from "../request-limits.ts";
import { slotFor } from "../slotted.ts";

/** What is used of an answer: a `ServerResponse` of Node has it, and so has Express's. */
export interface NodeResponse {
  statusCode: number;
  readonly headersSent: boolean;
  readonly destroyed: boolean;
  readonly writableFinished: boolean;
  setHeader(name: string, value: string): unknown;
  end(body?: string): unknown;
  once(event: "close", listener: () => void): unknown;
}

/** Goes on with the next handler, or with the error's. */
export type Next = (error?: unknown) => void;

/** Middleware. Its promise is done when `next` was called or the request was answered. */
export type NodeMiddleware<Req, Res> = (req: Req, res: Res, next: Next) => Promise<void>;

/** What answers a denied request instead of the problem document: it has to end the answer by itself. */
export interface NodeDenied<Req, Res> {
  readonly onDenied?: (decisions: readonly Decision[], req: Req, res: Res) => unknown;
}

/** Middleware that lets a request go on if its cost fits. A denied one is answered with 429 and a problem document. */
export function rateLimit<Req extends object, Res extends NodeResponse>(
  options: DecideOptions<[req: Req, res: Res]> & NodeDenied<Req, Res>,
): NodeMiddleware<Req, Res> {
  requireRateLimitOptions(options);
  return (req, res, next) =>
    goOn(next, async () => {
      const verdict = await rateLimited(req, options, [req, res], inBackgroundOf(undefined));
      if ("refusal" in verdict) return send(verdict.refusal, res);
      if (verdict.isSkipped) return true;
      // What was decided before this one may bind: then it sets the same headers again.
      setLimitHeaders(req, res, options.time);
      if (verdict.denial === undefined) return true;
      await answer(options, verdict.outcome.decisions, verdict.denial(), req, res);
      return false;
    });
}

/** Middleware that holds a lease until the answer has been sent, or its connection has gone. Without a slot: 503. */
export function concurrency<Req extends object, Res extends NodeResponse>(
  options: LeaseOptions<[req: Req, res: Res]> & NodeDenied<Req, Res>,
): NodeMiddleware<Req, Res> {
  requireLeaseOptions(options);
  return (req, res, next) =>
    goOn(next, async () => {
      const slot = await slotFor(req, options, [req, res], inBackgroundOf(undefined));
      if (slot.refusal !== undefined) return send(slot.refusal, res);
      const { grant, denial, end } = slot;
      if (grant === undefined) return true;
      // Who has left while it waited is answered nothing.
      if (res.destroyed) {
        end("torn");
        return false;
      }
      res.once("close", () => end(res.writableFinished ? "whole" : "torn"));
      setLimitHeaders(req, res, options.time);
      if (denial === undefined) return true;
      await answer(options, [grant], denial, req, res);
      return false;
    });
}

/** Goes on with the next handler if `passes` says so, and with the error's if it fails. An error of `next` is its own. */
async function goOn(next: Next, passes: () => Promise<boolean>): Promise<void> {
  let isThrough: boolean;
  try {
    isThrough = await passes();
  } catch (error) {
    next(error);
    return;
  }
  if (isThrough) next();
}

async function answer<Req, Res extends NodeResponse>(
  { onDenied }: NodeDenied<Req, Res>,
  decisions: readonly Decision[],
  denial: Denial,
  req: Req,
  res: Res,
): Promise<void> {
  if (onDenied !== undefined) {
    await onDenied(decisions, req, res);
    return;
  }
  send(denial, res);
}

/** Answers the request: it does not go on. */
function send({ status, headers, body }: Denial, res: NodeResponse): false {
  for (const [name, value] of headers) res.setHeader(name, value);
  res.statusCode = status;
  res.end(body);
  return false;
}

function setLimitHeaders(req: object, res: NodeResponse, time = SYSTEM_TIME): void {
  if (res.headersSent) return;
  const headers = { set: (name: string, value: string) => void res.setHeader(name, value) };
  RequestLimits.of(req).setHeaders(headers, () => time.nowMs());
}
