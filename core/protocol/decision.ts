/** The decision that a caller sees, made of the decisions of the rules. */
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
  /** The key that was counted: of an IPv6 address its /64. */
  readonly key: string;
  /** The most units that can be admitted at once. */
  readonly limit: number;
  /** The largest cost that would pass now. Absent when degraded. */
  readonly remaining?: number;
  /** Milliseconds until all units are there again, if no call comes before. Absent when degraded. */
  readonly resetAfterMs?: number;
  /** 0 when admitted; when denied the exact wait in milliseconds; `null`: never passes. Absent when degraded. */
  readonly retryAfterMs?: number | null;
  /** `shadow`: a rule denied, but the policy only reports. `degraded`: the level beneath did not answer. */
  readonly reason: "ok" | DenialReason | "wait-timeout" | "queue-full" | "shadow" | "degraded";
  /** Who decided. `fallback`: the policy's `onFailure`, or a region that goes on without its pool. */
  readonly source: "isolate" | "object" | "pool" | "fallback";
  /** What every rule said. Empty when degraded. */
  readonly rules: readonly RuleDecision[];
  /** The names of the rules that denied. Absent when none did. */
  readonly violated?: readonly string[];
  /** How long an acquire waited in the queue, in milliseconds. */
  readonly waitedMs?: number;
  readonly lease?: Lease;
  readonly hold?: Hold;
}

/** What `peek` answers: the decision for a cost of 1, and how many callers hold units or wait for them. */
export type KeyReport = Decision & Omit<Peeked, keyof Decided>;

/** The answer to several checks that pass or fail together. */
export interface AllDecisions {
  /** Whether every check passed; if not, nothing was taken. */
  readonly success: boolean;
  /** One for each check, in the order of the checks. */
  readonly decisions: readonly Decision[];
}

/** The decision for the caller. Its own figures are those of the rule that binds, as `bindingRule` finds it. */
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
  // The caller sees the policy's public name. Ids of claims have the full name, a region's included.
  const named = { policy: publicName(policy.name), key };
  const ids = {
    ...(waitedMs !== undefined && { waitedMs }),
    ...(lease && { lease: { ...lease, id: claimId("lease", place, lease.id) } }),
    ...(hold && { hold: { ...hold, id: claimId("hold", place, hold.id) } }),
  };
  const admitted = { success: true, ...named, limit, remaining, resetAfterMs, retryAfterMs: 0 };
  const decision = { source, rules, ...ids };
  // A region that decides without its pool says so.
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

/** The decision of the policy's `onFailure` when the object did not answer. It invents no figures. */
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

/** The rule with the longest wait; among equal waits (all admit, for example) the rule with the fewest units left. */
function bindingRule(rules: readonly RuleDecision[]): RuleDecision {
  return rules.reduce((binding, rule) => (binds(rule, binding) ? rule : binding));
}

function binds(rule: RuleDecision, other: RuleDecision): boolean {
  const waits = (rule.retryAfterMs ?? Infinity) - (other.retryAfterMs ?? Infinity);
  return Number.isNaN(waits) || waits === 0 ? rule.remaining < other.remaining : waits > 0;
}
