/**
 * The headers that tell clients of limits, in the styles that a policy may name (`headers`).
 *
 * `draft-11` is draft-ietf-httpapi-ratelimit-headers-11: every header has one member for each rule. The older styles
 * have room for one rule only, and clients that know them mostly know no Retry-After. So they tell of the rule that
 * binds, and the instant at which they tell a denied client to come back is the one that Retry-After names:
 * draft-ietf-httpapi-ratelimit-headers-07, section 4, asks for that too.
 */
import type { Quota } from "../algorithms/algorithm.ts";
import type { HeaderStyle } from "../policies/policy.ts";
import type { Decision } from "./decision.ts";

/** What headers say of a rule. */
export interface HeaderRule {
  readonly name: string;
  readonly unit: string;
  readonly quota: Quota;
  readonly capacity: number;
}

/** What headers say of a policy, and in which styles. */
export interface HeaderPolicy {
  readonly headers: readonly HeaderStyle[];
  readonly rules: readonly HeaderRule[];
}

/** Where headers are set: `Headers`, or a map. */
export interface Target {
  set(name: string, value: string): void;
}

/** What one style says of a policy, and of a decision that has figures. */
interface Style {
  policy(headers: Target, policy: HeaderPolicy): void;
  figures(headers: Target, decision: Decision, nowMs: () => number): void;
}

const STYLES: Readonly<Record<HeaderStyle, Style>> = {
  "draft-11": {
    policy: (headers, { rules }) => headers.set("RateLimit-Policy", rules.map(quotaItem).join(", ")),
    figures(headers, { rules }) {
      const items = rules.map(
        ({ name, remaining, resetAfterMs }) => `"${name}";r=${remaining};t=${seconds(resetAfterMs)}`,
      );
      if (items.length > 0) headers.set("RateLimit", items.join(", "));
    },
  },
  "draft-7": {
    policy(headers, { rules }) {
      const items = quotaPolicies(rules);
      if (items !== "") headers.set("RateLimit-Policy", items);
    },
    figures: (headers, decision) =>
      headers.set(
        "RateLimit",
        `limit=${decision.limit}, remaining=${decision.remaining ?? 0}, reset=${seconds(backInMs(decision))}`,
      ),
  },
  "x-ratelimit": {
    policy: () => undefined,
    figures: (headers, decision, nowMs) => setX(headers, decision, seconds(nowMs() + backInMs(decision))),
  },
  "x-ratelimit-delta": {
    policy: () => undefined,
    figures: (headers, decision) => setX(headers, decision, seconds(backInMs(decision))),
  },
};

/** Sets the headers that all decisions of a policy share. */
export function setPolicyHeaders(headers: Target, policy: HeaderPolicy): void {
  for (const style of policy.headers) STYLES[style].policy(headers, policy);
}

/**
 * Sets the headers with the figures of a decision. A degraded decision has none.
 *
 * @param nowMs reads the clock: only `x-ratelimit` needs it
 */
export function setQuotaHeaders(
  headers: Target,
  policy: HeaderPolicy,
  decision: Decision,
  nowMs: () => number,
): void {
  // Who was shed is told when to come again in the older styles, which have one figure for that.
  if (decision.rules.length === 0 && decision.reason !== "shed") return;
  for (const style of policy.headers) STYLES[style].figures(headers, decision, nowMs);
}

/**
 * The Retry-After header, in whole seconds rounded up. There is none for `null`: waiting does not help, or nobody
 * knows how long.
 */
export function retryAfter(waitMs: number | null): Record<string, string> {
  return waitMs === null ? {} : { "Retry-After": String(seconds(waitMs)) };
}

/** Whole seconds, rounded up: who waits for them is not refused again. */
function seconds(durationMs: number): number {
  return Math.ceil(durationMs / 1_000);
}

/** When a client may come again, if it was denied and waiting helps; else when its quota is whole again. */
function backInMs({ success, retryAfterMs, resetAfterMs = 0 }: Decision): number {
  return success ? resetAfterMs : (retryAfterMs ?? resetAfterMs);
}

function setX(headers: Target, { limit, remaining = 0 }: Decision, reset: number): void {
  headers.set("X-RateLimit-Limit", String(limit));
  headers.set("X-RateLimit-Remaining", String(remaining));
  headers.set("X-RateLimit-Reset", String(reset));
}

/**
 * One rule in RateLimit-Policy. The draft's window is in whole seconds. Any other window is rounded up, with as many
 * units as its rate gives in that time: 10 per 250 ms is 40 per second. A concurrency rule has no window. The draft's
 * default unit is requests, so only another unit is named.
 */
function quotaItem({ name, quota, unit }: HeaderRule): string {
  const named = unit === "requests" ? "" : `;qu="${unit}"`;
  if (quota.windowMs === undefined) return `"${name}";q=${quota.units}${named}`;
  const { units, window } = inSeconds(quota.units, quota.windowMs);
  return `"${name}";q=${units};w=${window}${named}`;
}

/**
 * The rules as draft 7 lists them: `100;w=1;burst=500`. It has no place for a rule without a window, and none for a
 * second rule of as many units.
 */
function quotaPolicies(rules: readonly HeaderRule[]): string {
  const items = new Map<number, string>();
  for (const { quota, capacity } of rules) {
    if (quota.windowMs === undefined) continue;
    const { units, window } = inSeconds(quota.units, quota.windowMs);
    const burst = capacity === quota.units ? "" : `;burst=${capacity}`;
    if (!items.has(units)) items.set(units, `${units};w=${window}${burst}`);
  }
  return [...items.values()].join(", ");
}

function inSeconds(units: number, windowMs: number): { readonly units: number; readonly window: number } {
  const window = seconds(windowMs);
  return { units: Math.floor((units * window * 1_000) / windowMs), window };
}

/* Denials as HTTP answers them: the two problem types of draft-ietf-httpapi-ratelimit-headers-11. */

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
  // Among several that were denied, the first that has figures says most.
  const told = denied.find(({ rules }) => rules.length > 0) ?? first;
  if (denied.every(isReduced)) return { ...temporarilyReduced(told), decisions };
  const violated = [...new Set(denied.flatMap((each) => each.violated ?? []))];
  return { ...quotaExceeded(told), "violated-policies": violated, decisions };
}

/** The body that answers a call for which there was no slot: it may come again, to a server that is less busy. */
export function busyBody(decision: Decision): DeniedBody {
  if (isReduced(decision)) return temporarilyReduced(decision);
  return {
    ...quotaExceeded(decision),
    type: REDUCED,
    title: "All slots are taken",
    status: 503,
  };
}

/** How long until all of these would pass, in milliseconds; `null`: one of them never does, or nobody knows. */
export function longestWaitMs(denied: readonly Decision[]): number | null {
  const waits = denied.map(({ retryAfterMs }) => retryAfterMs ?? Infinity);
  const longest = Math.max(0, ...waits);
  return longest === 0 || longest === Infinity ? null : longest;
}

const REDUCED = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

/** Whether a denial is not the caller's doing: nobody could decide, or what is left is kept for others. */
function isReduced({ reason }: Pick<Decision, "reason">): boolean {
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
