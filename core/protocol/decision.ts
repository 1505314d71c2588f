/** The decision that a caller sees, made of what the rules said. */
import type { DenialReason } from "../algorithms/algorithm.ts";
import { publicName } from "../policies/policy-names.ts";
import type { Policy } from "../policies/policy.ts";
import { claimId } from "./claim-ids.ts";
import type { Decided, Hold, Lease, Peeked, RuleDecision } from "./messages.ts";

/** A decision as callers see it, over HTTP and over RPC. */
export interface Decision {
  /** Whether the call may go on. */
  readonly success: boolean;
  readonly policy: string;
  /** The key that was counted; an IPv6 address counts with its /64. */
  readonly key: string;
  /** The most units that can be admitted at once. */
  readonly limit: number;
  /** The largest cost that would pass now. Absent when degraded. */
  readonly remaining?: number;
  /** Milliseconds until the quota is whole again if nobody comes. Absent when degraded. */
  readonly resetAfterMs?: number;
  /** Milliseconds. 0 when admitted; when denied the exact wait for this cost; `null`: never. Absent when degraded. */
  readonly retryAfterMs?: number | null;
  readonly reason: "ok" | DenialReason | "wait-timeout" | "queue-full" | "shadow" | "degraded";
  /** Who decided. */
  readonly source: "isolate" | "object" | "pool" | "fallback";
  /** What every rule said. Empty when degraded. */
  readonly rules: readonly RuleDecision[];
  /** The rules that denied. */
  readonly violated?: readonly string[];
  /** How long an acquire waited in the queue, in milliseconds. */
  readonly waitedMs?: number;
  readonly lease?: Lease;
  readonly hold?: Hold;
}

/** A key that is looked at: its decision, and who has and wants units of it. */
export type KeyReport = Decision & Omit<Peeked, keyof Decided>;

/** What several checks were answered together. */
export interface AllDecisions {
  /** Whether every check passed; if not, nothing was taken. */
  readonly success: boolean;
  /** One for each check, in their order. */
  readonly decisions: readonly Decision[];
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
  const decision = { source, rules, ...ids };
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
