/** The decision that a caller sees, made of what the rules said. */
import { claimId } from "./claim-ids.ts";
import type { DenialReason } from "../algorithms/algorithm.ts";
import type { Policy } from "../policies/parse-policies.ts";
import type { Cost, Decided, RuleDecision } from "./messages.ts";
import { publicName } from "../policies/regional-policies.ts";

/** A decision as HTTP and RPC answer it. What the fields mean is in the schemas, which the OpenAPI document is made of. */
export interface Decision {
  readonly success: boolean;
  readonly policy: string;
  readonly key: string;
  readonly limit: number;
  readonly remaining?: number;
  readonly resetAfterMs?: number;
  readonly retryAfterMs?: number | null;
  readonly reason: "ok" | DenialReason | "wait-timeout" | "queue-full" | "shadow" | "degraded";
  readonly source: "isolate" | "object" | "pool" | "fallback";
  readonly rules: RuleDecision[];
  readonly violated?: string[];
  readonly waitedMs?: number;
  readonly lease?: Lease;
  readonly hold?: { readonly id: string; readonly units: Cost; readonly expiresAfterMs: number };
}

export interface Lease {
  readonly id: string;
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
}

/** The figures on top are those of the rule that binds. */
export function publicDecision(
  policy: Policy,
  key: string,
  decided: Decided,
  decidedBy: "isolate" | "object" = "object",
): Decision {
  const { rules, waitedMs, lease, hold, source = decidedBy } = decided;
  const violated = rules.filter(({ success }) => !success).map(({ name }) => name);
  const { limit, remaining, resetAfterMs, retryAfterMs, reason } = bindingRule(rules);
  const place = { policy: policy.name, key };
  // What the caller knows it by; its holds and leases are found by the name in full.
  const named = { policy: publicName(policy.name), key };
  const ids = {
    ...(waitedMs !== undefined && { waitedMs }),
    ...(lease && { lease: { ...lease, id: claimId("lease", place, lease.id) } }),
    ...(hold && { hold: { ...hold, id: claimId("hold", place, hold.id) } }),
  };
  const admitted = { success: true, ...named, limit, remaining, resetAfterMs, retryAfterMs: 0 };
  const decision = { source, rules: [...rules], ...ids };
  // A region that decides alone, without its pool, says so.
  if (violated.length === 0)
    return { ...admitted, reason: source === "fallback" ? "degraded" : reason, ...decision };
  if (policy.shadow) return { ...admitted, reason: "shadow", ...decision, violated };
  return {
    ...admitted,
    success: false,
    retryAfterMs,
    reason: decided.reason ?? reason,
    ...decision,
    violated,
  };
}

/** What the policy's `onFailure` decides when nobody else could. It invents no figures. */
export function degradedDecision(policy: Policy, key: string): Decision {
  return {
    success: policy.shadow || policy.onFailure === "open",
    policy: publicName(policy.name),
    key,
    limit: Math.min(...policy.rules.map(({ capacity }) => capacity)),
    reason: "degraded",
    source: "fallback",
    rules: [],
  };
}

/** The one to wait for longest; when all admit, the one with the least left. */
function bindingRule(rules: readonly RuleDecision[]): RuleDecision {
  return rules.reduce((binding, rule) => (binds(rule, binding) ? rule : binding));
}

function binds(rule: RuleDecision, other: RuleDecision): boolean {
  const waits = (rule.retryAfterMs ?? Infinity) - (other.retryAfterMs ?? Infinity);
  return Number.isNaN(waits) || waits === 0 ? rule.remaining < other.remaining : waits > 0;
}
