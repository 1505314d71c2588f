import type { Policy } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { retryAfter, setFigures, setPolicyHeaders } from "../../core/protocol/rate-limit-headers.ts";

/** The headers of all JSON answers. */
export const JSON_NOT_STORED = { "content-type": "application/json", "cache-control": "no-store" };

/**
 * The headers of a decision, in the styles of its policy. A degraded decision has no figures, and so only what the
 * policy itself says.
 *
 * @param nowMs reads the clock
 */
export function decisionHeaders(
  policy: Policy,
  decision: Decision,
  nowMs: () => number,
): Record<string, string> {
  const headers = new Map(Object.entries(sharedHeaders(policy)));
  setFigures(headers, policy, decision, nowMs);
  const wait = decision.success ? null : (decision.retryAfterMs ?? null);
  return { ...Object.fromEntries(headers), ...retryAfter(wait) };
}

/** The headers that all decisions of a policy share. */
export function sharedHeaders(policy: Policy): Readonly<Record<string, string>> {
  let headers = shared.get(policy);
  if (headers === undefined) {
    const said = new Map(Object.entries(JSON_NOT_STORED));
    setPolicyHeaders(said, policy);
    headers = Object.fromEntries(said);
    shared.set(policy, headers);
  }
  return headers;
}
const shared = new WeakMap<Policy, Readonly<Record<string, string>>>();
