/**
 * The headers that describe limits, in the styles of the policy's `headers`.
 *
 * `draft-11` is draft-ietf-httpapi-ratelimit-headers-11: every header has a member for each rule. The older styles
 * have room for one rule, and most clients that read them ignore Retry-After. So they describe the rule that binds,
 * and their reset after a denial is Retry-After, as draft-ietf-httpapi-ratelimit-headers-07, section 4, requires.
 */
import type { HeaderStyle, Rule } from "../policies/policy.ts";
import { planIn } from "../policies/seen-policy.ts";
import type { Decision } from "./decision.ts";

export type HeaderRule = Pick<Rule, "name" | "unit" | "quota" | "capacity">;

export interface HeaderPolicy {
  readonly headers: readonly HeaderStyle[];
  readonly rules: readonly HeaderRule[];
  /** As `PolicyView.plan`. */
  readonly plan?: string | undefined;
  /** The same as calls of each plan see it. */
  readonly plans?: ReadonlyMap<string, HeaderPolicy>;
}

/** The destination: `Headers`, or a map. */
export interface Target {
  set(name: string, value: string): void;
}

interface Style {
  policy?(headers: Target, policy: HeaderPolicy): void;
  quota(headers: Target, decision: Decision, nowMs: () => number): void;
}

const STYLES: Readonly<Record<HeaderStyle, Style>> = {
  "draft-11": {
    policy(headers, { rules, ...policy }) {
      const { plan } = planIn(policy);
      // A parameter of our own, as the draft allows.
      const of = plan === undefined ? "" : `;plan="${plan}"`;
      headers.set("RateLimit-Policy", rules.map((rule) => quotaItem(rule) + of).join(", "));
    },
    quota(headers, { rules }) {
      const items = rules.map(
        ({ name, remaining, resetAfterMs }) => `"${name}";r=${remaining}${inSeconds(";t=", resetAfterMs)}`,
      );
      if (items.length > 0) headers.set("RateLimit", items.join(", "));
    },
  },
  "draft-7": {
    policy(headers, { rules }) {
      const items = quotaPolicies(rules);
      if (items !== "") headers.set("RateLimit-Policy", items);
    },
    quota: (headers, decision) =>
      headers.set(
        "RateLimit",
        `limit=${decision.limit}, remaining=${decision.remaining ?? 0}${inSeconds(", reset=", backInMs(decision))}`,
      ),
  },
  "x-ratelimit": {
    quota: (headers, decision, nowMs) => setX(headers, decision, nowMs()),
  },
  "x-ratelimit-delta": {
    quota: (headers, decision) => setX(headers, decision, 0),
  },
};

export function setPolicyHeaders(headers: Target, policy: HeaderPolicy): void {
  for (const style of policy.headers) STYLES[style].policy?.(headers, policy);
}

/** Sets the headers that describe a decision. A degraded decision has none. Only `x-ratelimit` reads the clock. */
export function setQuotaHeaders(
  headers: Target,
  policy: HeaderPolicy,
  decision: Decision,
  nowMs: () => number,
): void {
  // The older styles name the retry time of a shed call.
  if (decision.rules.length === 0 && decision.reason !== "shed") return;
  for (const style of policy.headers) STYLES[style].quota(headers, decision, nowMs);
}

/** The Retry-After header, in seconds rounded up. None for `null`: the wait does not help, or is unknown. */
export function retryAfter(waitMs: number | null): Record<string, string> {
  return waitMs === null ? {} : { "Retry-After": String(seconds(waitMs)) };
}

function seconds(durationMs: number): number {
  return Math.ceil(durationMs / 1_000);
}

/** So far away, 71,000 years, that headers do not say it: what returns then does not return, as credits. */
const NEVER_MS = 2 ** 51;

/** A member in seconds. None: nothing comes back by time. */
function inSeconds(member: string, durationMs: number): string {
  return durationMs < NEVER_MS ? member + String(seconds(durationMs)) : "";
}

/** When a client may return: after its denial, otherwise when its quota has refilled. */
function backInMs({ success, retryAfterMs, resetAfterMs = 0 }: Decision): number {
  return success ? resetAfterMs : (retryAfterMs ?? resetAfterMs);
}

/** Whether nothing comes back by time, so that there is no `X-RateLimit-Reset`. */
export function neverResets(decision: Decision): boolean {
  return backInMs(decision) >= NEVER_MS;
}

function setX(headers: Target, decision: Decision, fromMs: number): void {
  headers.set("X-RateLimit-Limit", String(decision.limit));
  headers.set("X-RateLimit-Remaining", String(decision.remaining ?? 0));
  const backMs = backInMs(decision);
  if (backMs < NEVER_MS) headers.set("X-RateLimit-Reset", String(seconds(fromMs + backMs)));
}

/**
 * One rule in RateLimit-Policy. The draft's window is in seconds: any other is rounded up, with the units that its
 * rate gives in that time (10 per 250 ms is 40 per second). A concurrency rule has no window. The draft's default unit
 * is requests, so only other units are named.
 */
function quotaItem({ name, quota, unit }: HeaderRule): string {
  const named = unit === "requests" ? "" : `;qu="${unit}"`;
  if (quota.windowMs === undefined) return `"${name}";q=${quota.units}${named}`;
  const { units, window } = perSeconds(quota.units, quota.windowMs);
  return `"${name}";q=${units};w=${window}${named}`;
}

/** The rules in draft 7, `100;w=1;burst=500`: none without a window, and no two with the same units. */
function quotaPolicies(rules: readonly HeaderRule[]): string {
  const items = new Map<number, string>();
  for (const { quota, capacity } of rules) {
    if (quota.windowMs === undefined) continue;
    const { units, window } = perSeconds(quota.units, quota.windowMs);
    const burst = capacity === quota.units ? "" : `;burst=${capacity}`;
    if (!items.has(units)) items.set(units, `${units};w=${window}${burst}`);
  }
  return [...items.values()].join(", ");
}

function perSeconds(units: number, windowMs: number): { readonly units: number; readonly window: number } {
  const window = seconds(windowMs);
  return { units: Math.floor((units * window * 1_000) / windowMs), window };
}
