/** Denials as HTTP answers them: the two problem types of draft-ietf-httpapi-ratelimit-headers-11. */
import type { Decision } from "./decision.ts";

/** The body of a denial, a problem document. */
export interface DeniedBody {
  readonly type: string;
  readonly title: string;
  readonly status: 429 | 503;
  readonly detail: string;
  readonly "violated-policies": readonly string[];
  readonly decision: Decision;
  /** Of several checks: what each was answered. */
  readonly decisions?: readonly Decision[];
}

/** The body that answers a denied call. A degraded denial, and one that was shed, is a 503. */
export function deniedBody(decision: Decision): DeniedBody {
  return isReduced(decision) ? temporarilyReduced(decision) : quotaExceeded(decision);
}

/** The body that answers several checks of which some were denied. @param decisions with one that was denied */
export function allDeniedBody(decisions: readonly Decision[]): DeniedBody {
  const denied = decisions.filter(({ success }) => !success);
  const [first] = denied;
  if (first === undefined) throw new RangeError("no check was denied");
  // Among several that were denied, the first that rules decided says most.
  const shown = denied.find(({ rules }) => rules.length > 0) ?? first;
  if (denied.every(isReduced)) return { ...temporarilyReduced(shown), decisions };
  const violated = [...new Set(denied.flatMap((each) => each.violated ?? []))];
  return { ...quotaExceeded(shown), "violated-policies": violated, decisions };
}

/** The body that answers a call for which there was no slot: it may come again, to a server that is less busy. */
export function busyBody(decision: Decision): DeniedBody {
  if (isReduced(decision)) return temporarilyReduced(decision);
  return { ...quotaExceeded(decision), type: REDUCED, title: "All slots are taken", status: 503 };
}

/** How long until all of these would pass, in milliseconds; `null`: one of them never does, or the wait is not known. */
export function longestWaitMs(denied: readonly Decision[]): number | null {
  const waits = denied.map(({ retryAfterMs }) => retryAfterMs ?? Infinity);
  const longest = Math.max(0, ...waits);
  return longest === 0 || longest === Infinity ? null : longest;
}

const REDUCED = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/** Whether a denial is not the caller's doing: there was no decision, or what is left is kept for others. */
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
      : 'the key\'s object did not answer, and this policy has onFailure = "closed"',
    "violated-policies": [],
    decision,
  };
}

function waitText({ retryAfterMs, reason }: Decision): string {
  if (retryAfterMs !== null) return `the same call passes in ${retryAfterMs} ms if nobody else comes`;
  return reason === "quota"
    ? "too few units are left, and none come back by waiting"
    : "the cost is over the limit: it will never be admitted";
}

function shedText(decision: Decision): string {
  return decision.rules.length === 0
    ? "the machines behind this policy are too busy, and less important calls are turned away first"
    : `what is left is kept for more important calls: ${waitText(decision)}`;
}
