/** The decision that a caller sees. */
import { type DenialReason, MAX_UNITS, type Share } from "../algorithms/algorithm.ts";
import { END_MS } from "../algorithms/credits.ts";
import { type AppliedOverride, type Policy, type PolicyView, publicName } from "../policies/policy.ts";
import { planIn } from "../policies/seen-policy.ts";
import type { Decided, Hold, Lease, Peeked, RuleDecision, Shed } from "./answers.ts";
import { claimId } from "./names.ts";
import type { Problem } from "./problems.ts";

/** Besides those of rules. `shadow`: one denied, but the policy only reports. `degraded`: no object or pool answered. */
export const CALL_REASONS = ["ok", "wait-timeout", "queue-full", "shadow", "degraded", "refused"] as const;

export interface Decision {
  readonly success: boolean;
  readonly policy: string;
  /** The key that was counted: of an IPv6 address its /64. */
  readonly key: string;
  readonly limit: number;
  /** The largest cost that would be admitted now. Absent when no rule decided: degraded or shed. */
  readonly remaining?: number;
  /** Milliseconds until all units are back if no call comes. Absent when `remaining` is. */
  readonly resetAfterMs?: number;
  /** 0 when admitted; when denied the exact wait, plus any `retryJitter`; `null`: never. Absent when degraded. */
  readonly retryAfterMs?: number | null;
  readonly reason: DenialReason | (typeof CALL_REASONS)[number];
  /** When admitted: how long the caller should wait before it proceeds. Absent: not at all. */
  readonly delayMs?: number;
  /** `fallback`: the policy's `onFailure`, or a region that decides without its pool. */
  readonly source: "isolate" | "object" | "pool" | "fallback";
  readonly rules: readonly RuleDecision[];
  readonly violated?: readonly string[];
  readonly waitedMs?: number;
  readonly lease?: Lease;
  readonly hold?: Hold;
  /** Of a refund: the whole units that came back, of several rules the least. Absent: unknown. */
  readonly refunded?: number;
  /** The id of the charge, for a refund. Present on request, if units were taken. */
  readonly charge?: string;
  /** The pattern of the override that applied to the key. */
  readonly override?: string;
  /** The plan by which it was decided. Absent: by the policy's own figures. */
  readonly plan?: string;
  /** Whose call it was, where groups share a rule, and its part of that rule. */
  readonly group?: string;
  readonly share?: Pick<Share, "limit" | "remaining">;
  /** When denied: the wait whatever other active groups do; `null`: the cost is larger than the group's part. */
  readonly sureAfterMs?: number | null;
  /** With the reason `refused`, in a call of several checks: the problem of this check. */
  readonly problem?: Pick<Problem, "status" | "code" | "detail">;
}

/** The answer to `peek`: the decision for a cost of 1, and the present holders and waiters. */
export type KeyReport = Decision & Omit<Peeked, keyof Decided>;

export interface AllDecisions {
  /** Whether every check passed. If not, nothing was taken, unless each check is decided by itself. */
  readonly success: boolean;
  readonly decisions: readonly Decision[];
}

/** The answer to a call that charges the first check that admits. */
export interface AnyDecision {
  readonly success: boolean;
  /** The index of the check that was charged; `null`: none was. */
  readonly chosen: number | null;
  /** Those of the checks that were tried, in their order: the last one admits, unless none does. */
  readonly decisions: readonly Decision[];
}

/** The decision that stands for the call: that of the chosen check, or the denial with the shortest wait. */
export function standingFor({ chosen, decisions }: Omit<AnyDecision, "success">): Decision {
  // Unknown (degraded) is shorter than never.
  const waitOf = ({ retryAfterMs = Number.MAX_VALUE }: Decision) => retryAfterMs ?? Infinity;
  const first = decisions[chosen ?? 0];
  if (first === undefined) throw new RangeError("no check was tried");
  if (chosen !== null) return first;
  return decisions.reduce((least, each) => (waitOf(each) < waitOf(least) ? each : least), first);
}

/** The decision with the policy's jitter and the key's override. */
export function callerDecision(
  policy: PolicyView,
  key: string,
  decided: Decided,
  decidedBy: "isolate" | "object",
  random: () => number,
  nowMs: () => number,
): Decision {
  const decision = withJitter(policy, publicDecision(policy, key, decided, decidedBy), random);
  const { override } = policy;
  if (override === undefined) return decision;
  const { pattern, effect, endsAtMs } = override;
  if (effect !== "blocked" || decision.success) return { ...decision, override: pattern };
  return { ...decision, reason: "blocked", ...untilUnblocked(endsAtMs, nowMs()), override: pattern };
}

/** The decision without jitter and override, with the values of `bindingRule`. */
export function publicDecision(
  policy: PolicyView,
  key: string,
  decided: Decided,
  decidedBy: "isolate" | "object" = "object",
): Decision {
  const { rules, waitedMs, lease, hold, plan, source = decidedBy } = decided;
  const { limit, remaining, resetAfterMs, retryAfterMs, reason } = bindingRule(rules);
  const isAdmitted = rules.every((rule) => rule.success);
  const success = isAdmitted || policy.shadow;
  const decision: { -readonly [Field in keyof Decision]: Decision[Field] } = {
    success,
    // Ids of claims have the full name, including a region's.
    policy: publicName(policy.name),
    key,
    limit,
    remaining,
    resetAfterMs,
    retryAfterMs: success ? 0 : retryAfterMs,
    reason: isAdmitted ? reason : policy.shadow ? "shadow" : (decided.reason ?? reason),
    source,
    rules,
  };
  const delayMs = isAdmitted && !policy.shadow ? longestDelayMs(rules) : 0;
  const place = { policy: policy.name, key };
  // By assignments: copies would double the cost of a decision from held units.
  if (plan !== undefined) Object.assign(decision, planIn(decided), { [PLAN]: plan });
  else if (policy.plan) Object.assign(decision, planIn(policy));
  if (rules.some(({ share }) => share !== undefined)) Object.assign(decision, shareIn(rules));
  if (isAdmitted && source === "fallback") decision.reason = "degraded";
  if (delayMs > 0) decision.delayMs = delayMs;
  if (waitedMs !== undefined) decision.waitedMs = waitedMs;
  if (lease) decision.lease = { ...lease, id: claimId("lease", place, lease.id) };
  if (hold) decision.hold = { ...hold, id: claimId("hold", place, hold.id) };
  if (!isAdmitted) decision.violated = rules.filter((rule) => !rule.success).map(({ name }) => name);
  return decision;
}

/** Where a decision has `Decided.plan`, with a call's own limits. Copies have it too, but no JSON and no message. */
const PLAN = Symbol("the plan that decided");

/** The plan that decided; `undefined`: that of the call. */
export function decidingPlan(answer: unknown): string | undefined {
  return (answer as { readonly [PLAN]?: string } | undefined)?.[PLAN];
}

/** The part of the call's group: that of the rule that binds, of those that groups share. */
function shareIn(rules: readonly RuleDecision[]): Pick<Decision, "group" | "share" | "sureAfterMs"> {
  const shared = rules.filter(({ share }) => share !== undefined);
  const { group, limit, remaining, sureAfterMs } = bindingRule(shared).share as Share;
  return { group, share: { limit, remaining }, ...(sureAfterMs !== undefined && { sureAfterMs }) };
}

function longestDelayMs(rules: readonly RuleDecision[]): number {
  return rules.reduce((longestMs, { delayMs = 0 }) => Math.max(longestMs, delayMs), 0);
}

/** The decision after settling a hold, with the lease and the delays of the decision that made the hold. */
export function settledDecision(settled: Decision, { lease, delayMs, rules: heldRules }: Decision): Decision {
  const rules = settled.rules.map((rule, index) => {
    const ruleDelayMs = heldRules[index]?.delayMs;
    return ruleDelayMs === undefined ? rule : { ...rule, delayMs: ruleDelayMs };
  });
  return { ...(lease && { lease }), ...settled, ...(delayMs !== undefined && { delayMs }), rules };
}

/** The rule with the longest wait; of equal waits (all admit, for example) the one with the least remaining. */
function bindingRule(rules: readonly RuleDecision[]): RuleDecision {
  return rules.reduce((binding, rule) => (binds(rule, binding) ? rule : binding));
}

function binds(rule: RuleDecision, other: RuleDecision): boolean {
  const waits = (rule.retryAfterMs ?? Infinity) - (other.retryAfterMs ?? Infinity);
  return Number.isNaN(waits) || waits === 0 ? rule.remaining < other.remaining : waits > 0;
}

/** The rest of the block; never, if only deleting the override ends it. */
function untilUnblocked(endsAtMs: number | undefined, nowMs: number) {
  const waitMs = Math.max(1, (endsAtMs ?? END_MS) - nowMs);
  return { resetAfterMs: waitMs, retryAfterMs: endsAtMs === undefined ? null : waitMs };
}

/* Decisions that no rule has made: by `onFailure`, load shedding, an override, or a problem of one check of many. */

/** The policy's `onFailure`, when the object did not answer: without `remaining` and waits. */
export function degradedDecision(policy: PolicyView, key: string): Decision {
  const success = policy.shadow || policy.onFailure === "open";
  return { ...withoutRules(policy, key), success, reason: "degraded", source: "fallback" };
}

/** An immediate retry would only add load to busy machines. */
const MIN_RETRY_MS = 1_000;

export function shedDecision(policy: PolicyView, key: string, { restoredInMs }: Shed): Decision {
  return { ...withoutRules(policy, key), retryAfterMs: Math.max(MIN_RETRY_MS, restoredInMs), reason: "shed" };
}

export function refusedDecision(
  policy: PolicyView,
  key: string,
  { status, code, detail }: NonNullable<Decision["problem"]>,
): Decision {
  return { ...withoutRules(policy, key), reason: "refused", problem: { status, code, detail } };
}

const NO_WAIT = { resetAfterMs: 0, retryAfterMs: 0 };

/** The decision on a key whose override blocks it or lifts its limit. Nothing is counted. */
export function effectDecision(
  policy: PolicyView,
  key: string,
  { pattern, effect, endsAtMs }: AppliedOverride,
  nowMs: number,
): Decision {
  const isBlocked = effect === "blocked";
  const units = isBlocked ? 0 : MAX_UNITS;
  const { resetAfterMs, retryAfterMs } = isBlocked ? untilUnblocked(endsAtMs, nowMs) : NO_WAIT;
  const success = !isBlocked || policy.shadow;
  return {
    success,
    policy: publicName(policy.name),
    key,
    limit: units,
    remaining: units,
    resetAfterMs,
    retryAfterMs: success ? 0 : retryAfterMs,
    reason: !isBlocked ? "ok" : success ? "shadow" : "blocked",
    source: "isolate",
    rules: [],
    ...(isBlocked && { violated: [] }),
    override: pattern,
  };
}

function withoutRules(policy: PolicyView, key: string) {
  const limit = Math.min(...policy.rules.map(({ capacity }) => capacity));
  const source = "isolate" as const;
  const place = { policy: publicName(policy.name), key };
  return { success: false, ...place, limit, source, rules: [], ...planIn(policy) };
}

/**
 * Adds the policy's `retryJitter` to the wait of a denial. Callers that were denied together would return together,
 * and most would be denied again; jitter spreads them. No wait gets shorter, and `rules` keep the exact one.
 */
export function withJitter(
  { retryJitter }: Pick<Policy, "retryJitter">,
  decision: Decision,
  random: () => number,
): Decision {
  const { retryAfterMs } = decision;
  if (retryJitter === undefined || typeof retryAfterMs !== "number" || retryAfterMs <= 0) return decision;
  const maxMs = "mostMs" in retryJitter ? retryJitter.mostMs : Math.ceil(retryAfterMs * retryJitter.share);
  const waitMs = retryAfterMs + Math.floor(random() * (maxMs + 1));
  return { ...decision, retryAfterMs: Math.min(waitMs, Number.MAX_SAFE_INTEGER) };
}
