/** The decision that a caller sees, made of the decisions of the rules, and the headers that describe it. */
import { type DenialReason, MAX_UNITS } from "../algorithms/algorithm.ts";
import {
  type HeaderStyle,
  type AppliedOverride,
  type Policy,
  type PolicyView,
  publicName,
  type Rule,
} from "../policies/policy.ts";
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

/**
 * The decision as its caller gets it: with the jitter of the policy, and the override of the key.
 *
 * @param random draws a number from 0, included, to 1, not included
 * @param nowMs reads the clock
 */
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
  // The object decides a blocked key by a limit of 0.
  return {
    ...decision,
    reason: "blocked",
    retryAfterMs: blockedForMs(endsAtMs, nowMs()),
    override: pattern,
  };
}

/** The decision without jitter and override. Its numbers are those of the rule that binds, as `bindingRule` finds it. */
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
    // Ids of claims have the full name, a region's included.
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
  // A decision from held units is complete here, and to copy it would cost as much as to make it.
  if (isAdmitted && source !== "fallback" && delayMs === 0 && waitedMs === undefined && !lease && !hold)
    return decision;
  const place = { policy: policy.name, key };
  return {
    ...decision,
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

/** The decision after settling a hold, with the lease and the delays of the decision that made the hold. */
export function settledDecision(settled: Decision, { lease, delayMs, rules: heldRules }: Decision): Decision {
  const rules = settled.rules.map((rule, index) => {
    const ruleDelayMs = heldRules[index]?.delayMs;
    return ruleDelayMs === undefined ? rule : { ...rule, delayMs: ruleDelayMs };
  });
  return { ...settled, ...(lease && { lease }), ...(delayMs !== undefined && { delayMs }), rules };
}

/** The decision of the policy's `onFailure` when the object did not answer. It invents no numbers. */
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

/** The decision on a call that was shed, since machines are too busy. No rule was asked. */
export function shedDecision(policy: PolicyView, key: string, { restoredInMs }: Shed): Decision {
  const retryAfterMs = Math.max(MIN_RETRY_MS, restoredInMs);
  return { ...withoutRules(policy, key), retryAfterMs, reason: "shed", source: "isolate", rules: [] };
}

/** A caller that tries again at once is only another call for machines that are too busy. */
const MIN_RETRY_MS = 1_000;

function withoutRules(policy: PolicyView, key: string) {
  const { limit } = degradedDecision(policy, key);
  return { success: false, policy: publicName(policy.name), key, limit };
}

/** The decision of a check among several that was refused: nothing was taken for it. */
export function refusedDecision(
  policy: PolicyView,
  key: string,
  { status, code, detail }: NonNullable<Decision["problem"]>,
): Decision {
  const problem = { status, code, detail };
  return { ...withoutRules(policy, key), reason: "refused", source: "isolate", rules: [], problem };
}

/** The rule with the longest wait; among equal waits (all admit, for example) the rule with the fewest units left. */
function bindingRule(rules: readonly RuleDecision[]): RuleDecision {
  return rules.reduce((binding, rule) => (binds(rule, binding) ? rule : binding));
}

function binds(rule: RuleDecision, other: RuleDecision): boolean {
  const waits = (rule.retryAfterMs ?? Infinity) - (other.retryAfterMs ?? Infinity);
  return Number.isNaN(waits) || waits === 0 ? rule.remaining < other.remaining : waits > 0;
}

/** The decision on a key whose override (core/catalog/policies-in-force.ts) blocks it or lifts its limit. Nothing is counted. */
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
    // A block without an end has no reset.
    resetAfterMs: blockedForMs(endsAtMs, nowMs) ?? 0,
    retryAfterMs: isAdmitted ? 0 : blockedForMs(endsAtMs, nowMs),
    reason: isAdmitted ? "shadow" : "blocked",
    source: "isolate",
    rules: [],
    violated: [],
    override: pattern,
  };
}

/** How long a key stays blocked; `null`: until the override is deleted. */
function blockedForMs(endsAtMs: number | undefined, nowMs: number): number | null {
  return endsAtMs === undefined ? null : Math.max(1, endsAtMs - nowMs);
}

/**
 * Adds the policy's `retryJitter` to the wait of a denial.
 *
 * Callers that were denied together would come back together, and most of them would be denied again. With jitter each
 * waits a random time longer, so they come one after the other. No wait gets shorter, and the rules keep the exact one.
 *
 * @param random draws a number from 0, included, to 1, not included; it is called only if there is something to add
 */
export function withJitter(
  { retryJitter }: Pick<Policy, "retryJitter">,
  decision: Decision,
  random: () => number,
): Decision {
  const { retryAfterMs } = decision;
  // 0, `null` (never) and an unknown wait stay what they are.
  if (retryJitter === undefined || typeof retryAfterMs !== "number" || retryAfterMs <= 0) return decision;
  const maxMs = "mostMs" in retryJitter ? retryJitter.mostMs : Math.ceil(retryAfterMs * retryJitter.share);
  const waitMs = retryAfterMs + Math.floor(random() * (maxMs + 1));
  return { ...decision, retryAfterMs: Math.min(waitMs, Number.MAX_SAFE_INTEGER) };
}

/*
 * The headers that tell clients of limits, in the styles that a policy may name (`headers`).
 *
 * `draft-11` is draft-ietf-httpapi-ratelimit-headers-11: every header has one member for each rule. The older styles
 * have room for one rule only, and most clients that read them read no Retry-After. So they describe the rule that
 * binds, and the instant at which a denied client may come back is the one in Retry-After:
 * draft-ietf-httpapi-ratelimit-headers-07, section 4, asks for that too.
 */

export type HeaderRule = Pick<Rule, "name" | "unit" | "quota" | "capacity">;

/** What headers say of a policy, and in which styles. */
export interface HeaderPolicy {
  readonly headers: readonly HeaderStyle[];
  readonly rules: readonly HeaderRule[];
}

/** Where headers are set: `Headers`, or a map. */
export interface Target {
  set(name: string, value: string): void;
}

/** How one style describes a policy, and a decision that rules made. */
interface Style {
  policy(headers: Target, policy: HeaderPolicy): void;
  quota(headers: Target, decision: Decision, nowMs: () => number): void;
}

const STYLES: Readonly<Record<HeaderStyle, Style>> = {
  "draft-11": {
    policy: (headers, { rules }) => headers.set("RateLimit-Policy", rules.map(quotaItem).join(", ")),
    quota(headers, { rules }) {
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
    quota: (headers, decision) =>
      headers.set(
        "RateLimit",
        `limit=${decision.limit}, remaining=${decision.remaining ?? 0}, reset=${seconds(backInMs(decision))}`,
      ),
  },
  "x-ratelimit": {
    policy: () => undefined,
    quota: (headers, decision, nowMs) => setX(headers, decision, seconds(nowMs() + backInMs(decision))),
  },
  "x-ratelimit-delta": {
    policy: () => undefined,
    quota: (headers, decision) => setX(headers, decision, seconds(backInMs(decision))),
  },
};

/** Sets the headers that all decisions of a policy share. */
export function setPolicyHeaders(headers: Target, policy: HeaderPolicy): void {
  for (const style of policy.headers) STYLES[style].policy(headers, policy);
}

/**
 * Sets the headers that describe a decision. A degraded decision has none.
 *
 * @param nowMs reads the clock: only `x-ratelimit` needs it
 */
export function setQuotaHeaders(
  headers: Target,
  policy: HeaderPolicy,
  decision: Decision,
  nowMs: () => number,
): void {
  // The older styles tell a caller that was shed when to come again.
  if (decision.rules.length === 0 && decision.reason !== "shed") return;
  for (const style of policy.headers) STYLES[style].quota(headers, decision, nowMs);
}

/** The Retry-After header, in seconds rounded up. There is none for `null`: waiting does not help, or its end is not known. */
export function retryAfter(waitMs: number | null): Record<string, string> {
  return waitMs === null ? {} : { "Retry-After": String(seconds(waitMs)) };
}

/** Seconds, rounded up: a caller who waits for them is not refused again. */
function seconds(durationMs: number): number {
  return Math.ceil(durationMs / 1_000);
}

/** When a client may come again, if it was denied and waiting helps; else when its quota has refilled. */
function backInMs({ success, retryAfterMs, resetAfterMs = 0 }: Decision): number {
  return success ? resetAfterMs : (retryAfterMs ?? resetAfterMs);
}

function setX(headers: Target, { limit, remaining = 0 }: Decision, reset: number): void {
  headers.set("X-RateLimit-Limit", String(limit));
  headers.set("X-RateLimit-Remaining", String(remaining));
  headers.set("X-RateLimit-Reset", String(reset));
}

/**
 * One rule in RateLimit-Policy. The draft's window is in seconds. Any other window is rounded up, with the units that
 * its rate gives in that time: 10 per 250 ms is 40 per second. A concurrency rule has no window. The draft's default
 * unit is requests, so only another unit is named.
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
