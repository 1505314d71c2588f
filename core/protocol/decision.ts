/** The decision that a caller sees, made of the decisions of the rules. */
import { type DenialReason, MAX_UNITS } from "../algorithms/algorithm.ts";
import { type AppliedOverride, type Policy, type PolicyView, publicName } from "../policies/policy.ts";
import type { Decided, Hold, Lease, Peeked, RuleDecision, Shed } from "./answers.ts";
import { claimId } from "./names.ts";
import type { Problem } from "./problems.ts";

/** A decision as callers see it, over HTTP and over RPC. */
export interface Decision {
  /** Whether the call may go on. */
  readonly success: boolean;
  readonly policy: string;
  /** The key that was counted: of an IPv6 address its /64. */
  readonly key: string;
  /** The most units that can be admitted at once; where the limit adapts: today. */
  readonly limit: number;
  /** The largest cost that would pass now. Absent when no rule was asked: degraded, or shed since machines are busy. */
  readonly remaining?: number;
  /** Milliseconds until all units are there again, if no call comes before. Absent when `remaining` is. */
  readonly resetAfterMs?: number;
  /**
   * 0 when admitted; when denied the exact wait in milliseconds, or with the policy's `retryJitter` a random time more;
   * `null`: never passes. Absent when degraded.
   */
  readonly retryAfterMs?: number | null;
  /** `shadow`: a rule denied, but the policy only reports. `degraded`: the level beneath did not answer. */
  readonly reason: "ok" | DenialReason | "wait-timeout" | "queue-full" | "shadow" | "degraded" | "refused";
  /**
   * When admitted: how long the caller should wait before it goes on, in milliseconds: the longest of the rules.
   * Absent: it goes on at once, as it always does in shadow.
   */
  readonly delayMs?: number;
  /** Who decided. `fallback`: the policy's `onFailure`, or a region that goes on without its pool. */
  readonly source: "isolate" | "object" | "pool" | "fallback";
  /** What every rule said. Empty when none was asked. */
  readonly rules: readonly RuleDecision[];
  /** The names of the rules that denied. Absent when none did. */
  readonly violated?: readonly string[];
  /** How long an acquire, or a `limit` with `waitMs`, stood in the queue, in milliseconds. */
  readonly waitedMs?: number;
  readonly lease?: Lease;
  readonly hold?: Hold;
  /** Names what this call has taken, for a refund. Present when it was asked for and something was taken. */
  readonly charge?: string;
  /** The pattern of the override that applied to the key. Absent: none did. */
  readonly override?: string;
  /** With the reason `refused`, of a check among several: what this check alone would have been answered. */
  readonly problem?: Pick<Problem, "status" | "code" | "detail">;
}

/** What `peek` answers: the decision for a cost of 1, and how many callers hold units or wait for them. */
export type KeyReport = Decision & Omit<Peeked, keyof Decided>;

/** The answer to several checks. */
export interface AllDecisions {
  /** Whether every check passed; if not, nothing was taken, unless each check was decided by itself. */
  readonly success: boolean;
  /** One for each check, in the order of the checks. */
  readonly decisions: readonly Decision[];
}

/** The decision for the caller. Its own figures are those of the rule that binds, as `bindingRule` finds it. */
export function publicDecision(
  policy: PolicyView,
  key: string,
  decided: Decided,
  decidedBy: "isolate" | "object" = "object",
): Decision {
  const { rules, waitedMs, lease, hold, source = decidedBy } = decided;
  const { limit, remaining, resetAfterMs, retryAfterMs, reason } = bindingRule(rules);
  const isAdmitted = rules.every(isSuccess);
  const success = isAdmitted || policy.shadow;
  const decision: Decision = {
    success,
    // The caller sees the policy's public name. Ids of claims have the full name, a region's included.
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
  // A decision from units that are held is all of this, and to copy it would cost as much as to make it.
  if (isAdmitted && source !== "fallback" && delayMs === 0 && waitedMs === undefined && !lease && !hold)
    return decision;
  const place = { policy: policy.name, key };
  return {
    ...decision,
    // A region that decides without its pool says so.
    ...(isAdmitted && source === "fallback" && { reason: "degraded" }),
    ...(delayMs > 0 && { delayMs }),
    ...(waitedMs !== undefined && { waitedMs }),
    ...(lease && { lease: { ...lease, id: claimId("lease", place, lease.id) } }),
    ...(hold && { hold: { ...hold, id: claimId("hold", place, hold.id) } }),
    ...(!isAdmitted && { violated: rules.filter((rule) => !rule.success).map(({ name }) => name) }),
  };
}

function isSuccess({ success }: RuleDecision): boolean {
  return success;
}

function longestDelayMs(rules: readonly RuleDecision[]): number {
  return rules.reduce((longestMs, { delayMs = 0 }) => Math.max(longestMs, delayMs), 0);
}

/** What settling says, with what the caller was told when its units were set apart: its lease, and its delays. */
export function asTold(settled: Decision, { lease, delayMs, rules }: Decision): Decision {
  const given = { ...settled, ...(lease && { lease }), ...(delayMs !== undefined && { delayMs }) };
  const delays = rules.map((rule) => rule.delayMs);
  if (delays.every((each) => each === undefined)) return given;
  const withDelay = (rule: RuleDecision, ruleDelayMs: number | undefined) =>
    ruleDelayMs === undefined ? rule : { ...rule, delayMs: ruleDelayMs };
  return { ...given, rules: settled.rules.map((rule, index) => withDelay(rule, delays[index])) };
}

/** The decision of the policy's `onFailure` when the object did not answer. It invents no figures. */
export function degradedDecision(policy: PolicyView, key: string): Decision {
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

/** The decision on a call that was shed, since machines are too busy. Nothing was asked of the rules. */
export function shedDecision(policy: PolicyView, key: string, { restoredInMs }: Shed): Decision {
  const { limit, rules } = degradedDecision(policy, key);
  const place = { policy: publicName(policy.name), key };
  const retryAfterMs = Math.max(MIN_RETRY_MS, restoredInMs);
  return { success: false, ...place, limit, retryAfterMs, reason: "shed", source: "isolate", rules };
}

/** Who tries again at once is only another call for machines that are too busy. */
const MIN_RETRY_MS = 1_000;

/** The decision of a check among several that was refused: nothing was taken for it. */
export function refusedDecision(
  policy: PolicyView,
  key: string,
  { status, code, detail }: NonNullable<Decision["problem"]>,
): Decision {
  const { limit, rules } = degradedDecision(policy, key);
  const problem = { status, code, detail };
  const place = { policy: publicName(policy.name), key };
  return { success: false, ...place, limit, reason: "refused", source: "isolate", rules, problem };
}

/** The rule with the longest wait; among equal waits (all admit, for example) the rule with the fewest units left. */
function bindingRule(rules: readonly RuleDecision[]): RuleDecision {
  return rules.reduce((binding, rule) => (binds(rule, binding) ? rule : binding));
}

function binds(rule: RuleDecision, other: RuleDecision): boolean {
  const waits = (rule.retryAfterMs ?? Infinity) - (other.retryAfterMs ?? Infinity);
  return Number.isNaN(waits) || waits === 0 ? rule.remaining < other.remaining : waits > 0;
}

/** Decisions on keys that have an override (core/catalog/policies-in-force.ts). */

/** The decision on a key that is blocked, or that has no limit. Nobody is asked, and nothing is counted. */
export function effectDecision(
  policy: PolicyView,
  key: string,
  { pattern, effect, endsAtMs }: AppliedOverride,
  nowMs: number,
): Decision {
  const place = { policy: publicName(policy.name), key };
  if (effect !== "blocked")
    return {
      success: true,
      ...place,
      limit: MAX_UNITS,
      remaining: MAX_UNITS,
      resetAfterMs: 0,
      retryAfterMs: 0,
      reason: "ok",
      source: "isolate",
      rules: [],
      override: pattern,
    };
  const isAdmitted = policy.shadow;
  return {
    success: isAdmitted,
    ...place,
    limit: 0,
    remaining: 0,
    // Of a block without an end nobody knows when it is over.
    resetAfterMs: blockedForMs(endsAtMs, nowMs) ?? 0,
    retryAfterMs: isAdmitted ? 0 : blockedForMs(endsAtMs, nowMs),
    reason: isAdmitted ? "shadow" : "blocked",
    source: "isolate",
    rules: [],
    violated: [],
    override: pattern,
  };
}

/** The decision with the override that applied. Of a key that is blocked an object knows only that its limit is 0. */
export function withOverride(
  decision: Decision,
  { pattern, effect, endsAtMs }: AppliedOverride,
  nowMs: number,
): Decision {
  if (effect !== "blocked" || decision.success) return { ...decision, override: pattern };
  return { ...decision, reason: "blocked", retryAfterMs: blockedForMs(endsAtMs, nowMs), override: pattern };
}

/** How long a key stays blocked; `null`: until somebody takes the override away. */
function blockedForMs(endsAtMs: number | undefined, nowMs: number): number | null {
  return endsAtMs === undefined ? null : Math.max(1, endsAtMs - nowMs);
}

/*
 * Jitter on the wait that a denied caller is told.
 *
 * Callers that were denied together are told the same instant, and come back together: most of them are denied again,
 * and so on. With jitter each waits a random time longer, so they come one after the other. Nobody is told less than the
 * exact wait, which stays in the decisions of the rules.
 */

/**
 * The decision as its caller is told it. A policy without `retryJitter` tells the exact wait.
 *
 * @param random draws a number from 0, included, to 1, not included; it is asked only if there is something to add
 */
export function withJitter(
  { retryJitter }: Pick<Policy, "retryJitter">,
  decision: Decision,
  random: () => number,
): Decision {
  const { retryAfterMs } = decision;
  // 0, `null` (never) and a wait that nobody knows stay what they are.
  if (retryJitter === undefined || typeof retryAfterMs !== "number" || retryAfterMs <= 0) return decision;
  const mostMs = "mostMs" in retryJitter ? retryJitter.mostMs : Math.ceil(retryAfterMs * retryJitter.share);
  const toldMs = retryAfterMs + Math.floor(random() * (mostMs + 1));
  return { ...decision, retryAfterMs: Math.min(toldMs, Number.MAX_SAFE_INTEGER) };
}
