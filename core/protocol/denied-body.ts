/** Denials over HTTP: the two problem types of draft-ietf-httpapi-ratelimit-headers-11. */
import { type AnyDecision, type Decision, standingFor } from "./decision.ts";

export interface DeniedBody {
  readonly type: string;
  readonly title: string;
  readonly status: 429 | 503;
  readonly detail: string;
  readonly "violated-policies": readonly string[];
  readonly decision: Decision;
  readonly decisions?: readonly Decision[];
}

/** The body for a denied call. Degraded and shed denials are a 503. */
export function deniedBody(decision: Decision): DeniedBody {
  return isReduced(decision) ? temporarilyReduced(decision) : quotaExceeded(decision);
}

export function allDeniedBody(decisions: readonly Decision[]): DeniedBody {
  const denied = decisions.filter(({ success }) => !success);
  const [first] = denied;
  if (first === undefined) throw new RangeError("no check was denied");
  // Of several denials, the first by rules has the most information.
  const shown = denied.find(({ rules }) => rules.length > 0) ?? first;
  if (denied.every(isReduced)) return { ...temporarilyReduced(shown), decisions };
  const violated = [...new Set(denied.flatMap((each) => each.violated ?? []))];
  return { ...quotaExceeded(shown), "violated-policies": violated, decisions };
}

/** The body for a denied call that charges one check: of the denial that stands for it, and with all decisions. */
export function anyDeniedBody(answer: AnyDecision): DeniedBody {
  const { decisions } = answer;
  const body = deniedBody(standingFor(answer));
  if (body.status === 503) return { ...body, decisions };
  const violated = [...new Set(decisions.flatMap((each) => each.violated ?? []))];
  return { ...body, "violated-policies": violated, decisions };
}

/** The body for a call without a free slot: a retry may find a less busy server. */
export function busyBody(decision: Decision): DeniedBody {
  if (isReduced(decision)) return temporarilyReduced(decision);
  return { ...quotaExceeded(decision), type: REDUCED, title: "All slots are taken", status: 503 };
}

/** How long until all of these would be admitted; `null`: unknown, or one never is. */
export function longestWaitMs(denied: readonly Decision[]): number | null {
  const waits = denied.map(({ retryAfterMs }) => retryAfterMs ?? Infinity);
  const longest = Math.max(0, ...waits);
  return longest === 0 || longest === Infinity ? null : longest;
}

const REDUCED = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

function isReduced({ reason }: Decision): boolean {
  return reason === "degraded" || reason === "shed";
}

function quotaExceeded(decision: Decision): DeniedBody {
  return {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "The quota of this key is used up",
    status: 429,
    detail: decision.problem?.detail ?? waitText(decision),
    "violated-policies": decision.violated ?? [],
    decision,
  };
}

function temporarilyReduced(decision: Decision): DeniedBody {
  const isShed = decision.reason === "shed";
  return {
    type: REDUCED,
    title: isShed ? "Calls of this priority are shed" : "The limiter could not decide",
    status: 503,
    detail: isShed
      ? shedText(decision)
      : "the limiter did not answer, and onFailure is \"closed\" (the policy's, or until a client knows it the client's)",
    "violated-policies": [],
    decision,
  };
}

function waitText({ retryAfterMs, reason }: Decision): string {
  if (retryAfterMs !== null) return `the same call passes in ${retryAfterMs} ms if nobody else comes`;
  if (reason === "cost-over-limit") return "the cost is over the limit: it will never be admitted";
  return reason === "blocked"
    ? "the key is blocked, and no wait ends that"
    : "too few units are left, and none come back by waiting";
}

function shedText(decision: Decision): string {
  return decision.rules.length === 0
    ? "the machines behind this policy are too busy, and less important calls are turned away first"
    : `what is left is kept for more important calls: ${waitText(decision)}`;
}
