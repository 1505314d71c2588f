import type { Policy, Rule } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";

/**
 * The headers of a decision, as draft-ietf-httpapi-ratelimit-headers-11 has them: each has one member for every rule.
 * A degraded decision has no figures, and so only the policy's header.
 */
export function decisionHeaders(policy: Policy, decision: Decision): Record<string, string> {
  const headers: Record<string, string> = {
    "content-type": "application/json",
    "cache-control": "no-store",
    "RateLimit-Policy": policyHeader(policy),
  };
  if (decision.rules.length > 0) {
    headers["RateLimit"] = rateLimit(decision);
  }
  return decision.success ? headers : { ...headers, ...retryAfter(decision.retryAfterMs ?? null) };
}

/** The RateLimit header. */
export function rateLimit({ rules }: Decision): string {
  return rules
    .map(({ name, remaining, resetAfterMs }) => `"${name}";r=${remaining};t=${seconds(resetAfterMs)}`)
    .join(", ");
}

/**
 * The Retry-After header, in whole seconds rounded up. There is none for `null`: waiting does not help, or nobody
 * knows how long.
 */
export function retryAfter(waitMs: number | null): Record<string, string> {
  return waitMs === null ? {} : { "Retry-After": String(seconds(waitMs)) };
}

const policyHeaders = new WeakMap<Policy, string>();

/** The RateLimit-Policy header. */
export function policyHeader(policy: Policy): string {
  let header = policyHeaders.get(policy);
  if (header === undefined) {
    header = policy.rules.map(quotaItem).join(", ");
    policyHeaders.set(policy, header);
  }
  return header;
}

/**
 * One rule in RateLimit-Policy. The draft's window is in whole seconds. Any other window is rounded up, with as many
 * units as its rate gives in that time: 10 per 250 ms is 40 per second. A concurrency rule has no window. The draft's
 * default unit is requests, so only another unit is named.
 */
function quotaItem({ name, quota, unit }: Rule): string {
  const named = unit === "requests" ? "" : `;qu="${unit}"`;
  if (quota.windowMs === undefined) return `"${name}";q=${quota.units}${named}`;
  const window = seconds(quota.windowMs);
  const units = Math.floor((quota.units * window * 1_000) / quota.windowMs);
  return `"${name}";q=${units};w=${window}${named}`;
}

function seconds(durationMs: number): number {
  return Math.ceil(durationMs / 1_000);
}
