/** The outcome of a request, and the answer to one that is denied. */
import type { Time } from "../core/clock.ts";
import type { Decision } from "../core/protocol/decision.ts";
import type { DeniedBody } from "../core/protocol/denied-body.ts";
import { isKeySized, MAX_KEY_BYTES } from "../core/protocol/names.ts";
import { type HeaderPolicies, type Outcome, RequestLimits } from "./request-limits.ts";

export interface Denial {
  readonly status: number;
  readonly headers: Map<string, string>;
  readonly body: string;
}

/** `aborted`: the handler, stream or caller failed, so an adaptive limit must not learn from the duration. */
export type End = "complete" | "aborted";

export interface Verdict {
  /** The answer to a request that goes no further: its key is too long, or its caller has left. */
  readonly refusal?: Denial;
  /** Absent: the request was skipped, or refused. */
  readonly decisions?: Outcome["decisions"];
  /** Makes the answer to a denied request. Absent: the request is admitted. */
  readonly denial?: () => Denial;
  /** The first middleware to decide on the request sets the headers, when all have decided. */
  readonly isOutermost: boolean;
  /** Releases the request's lease, once, in the background. Absent: nothing was leased. */
  readonly end?: (end: End) => void;
}

export const SKIPPED: Verdict = { isOutermost: false };

/** The caller left while it waited. Nobody reads the answer; logs show the status that nginx has for it. */
export const LEFT: Verdict = { ...SKIPPED, refusal: { status: 499, headers: new Map(), body: "" } };

/** Notes the decisions with their request. @param bodyOf makes the answer's body for a denied request */
export function verdictOn(
  request: object,
  outcome: Outcome,
  policies: HeaderPolicies,
  bodyOf: () => DeniedBody,
  time: Time,
): Verdict {
  const limits = RequestLimits.of(request);
  const isOutermost = limits.isFirst;
  limits.note(outcome, policies);
  const verdict = { decisions: outcome.decisions, isOutermost };
  if (outcome.success) return verdict;
  const denial = () => {
    const body = bodyOf();
    const document = problemDocument(body.status, withoutKeys(body));
    limits.setHeaders(document.headers, () => time.nowMs());
    return document;
  };
  return { ...verdict, denial };
}

/**
 * A key may be a credential or an address, and an override's pattern the key of another: callers of an application see
 * neither.
 */
function withoutKeys({ decision, decisions, ...body }: DeniedBody): object {
  const shown = (each: Decision) => ({ ...each, key: undefined, override: undefined });
  return { ...body, decision: shown(decision), ...(decisions && { decisions: decisions.map(shown) }) };
}

export function responseOf({ status, headers, body }: Denial): Response {
  return new Response(body, { status, headers: [...headers] });
}

/** A request's key is too long, or not well-formed. Other errors about keys are the application's. */
class KeyRefused extends Error {}

/**
 * Checks the key that was found for this request. The limiter throws for an empty one, which is the application's mistake.
 * @throws KeyRefused for a too long key, also with `onFailure = "open"`: otherwise it would pass without a
 * limit
 */
export function requireKeySize(option: unknown, found: string | undefined): void {
  if (typeof option !== "function" || typeof found !== "string" || isKeySized(found)) return;
  const bytes = new TextEncoder().encode(found).length;
  const size = found.isWellFormed() ? `of ${bytes} bytes` : "with half a character";
  throw new KeyRefused(
    `the key of this request is a text ${size}: must be 1 to ${MAX_KEY_BYTES} bytes of UTF-8`,
  );
}

/** The limiter's answer to such a key. Its table of all problems would be a fifth of what a browser loads. */
const REFUSED = {
  type: "urn:weir:problem:not-allowed",
  title: "The request was understood, but a value is not allowed",
  status: 422,
};

/** The verdict on a request whose key was refused, or whose caller has left. @throws any other error */
export function refusalOf(error: unknown, signal: AbortSignal | undefined): Verdict {
  if (signal?.aborted === true) return LEFT;
  if (!(error instanceof KeyRefused)) throw error;
  return { ...SKIPPED, refusal: problemDocument(REFUSED.status, { ...REFUSED, detail: error.message }) };
}

function problemDocument(status: number, body: object): Denial {
  const headers = new Map([
    ["content-type", "application/problem+json"],
    ["cache-control", "no-store"],
  ]);
  return { status, headers, body: JSON.stringify(body) };
}
