/** The decision that a caller sees, and the headers that describe it. */
import type { Share } from "../algorithms/algorithm.ts";
import { type HeaderStyle, type Policy, type PolicyView, publicName, type Rule } from "../policies/policy.ts";
import { planIn } from "../policies/seen-policy.ts";
import type { Decided, Hold, Lease, Peeked, RuleDecision } from "./answers.ts";
import { claimId } from "./names.ts";
import type { Problem } from "./problems.ts";

/** `shadow`: a rule denied, but the policy only reports. `degraded`: the object or pool did not answer. */
export const REASONS = [
  "ok",
  // Those of rules, written out: so bundles that need no list have none.
  "quota",
  "min-interval",
  "cost-over-limit",
  "shed",
  "blocked",
  "wait-timeout",
  "queue-full",
  "shadow",
  "degraded",
  "refused",
] as const;

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
  readonly reason: (typeof REASONS)[number];
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
  return {
    ...decision,
    reason: "blocked",
    retryAfterMs: blockedForMs(endsAtMs, nowMs()),
    override: pattern,
  };
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
  const decision: Decision = {
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
  const isPlain = delayMs === 0 && waitedMs === undefined && !lease && !hold && plan === undefined;
  // A decision from held units is complete here: a copy would double its cost.
  if (isAdmitted && source !== "fallback" && isPlain)
    return policy.plan || policy.isFair ? { ...decision, ...planIn(policy), ...shareIn(rules) } : decision;
  const place = { policy: policy.name, key };
  return {
    ...decision,
    ...(plan === undefined ? planIn(policy) : { ...planIn(decided), [PLAN]: plan }),
    ...shareIn(rules),
    ...(isAdmitted && source === "fallback" && { reason: "degraded" }),
    ...(delayMs > 0 && { delayMs }),
    ...(waitedMs !== undefined && { waitedMs }),
    ...(lease && { lease: { ...lease, id: claimId("lease", place, lease.id) } }),
    ...(hold && { hold: { ...hold, id: claimId("hold", place, hold.id) } }),
    ...(!isAdmitted && { violated: rules.filter((rule) => !rule.success).map(({ name }) => name) }),
  };
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
  if (shared.length === 0) return {};
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
  return { ...settled, ...(lease && { lease }), ...(delayMs !== undefined && { delayMs }), rules };
}

/** The rule with the longest wait; of equal waits (all admit, for example) the one with the least remaining. */
function bindingRule(rules: readonly RuleDecision[]): RuleDecision {
  return rules.reduce((binding, rule) => (binds(rule, binding) ? rule : binding));
}

function binds(rule: RuleDecision, other: RuleDecision): boolean {
  const waits = (rule.retryAfterMs ?? Infinity) - (other.retryAfterMs ?? Infinity);
  return Number.isNaN(waits) || waits === 0 ? rule.remaining < other.remaining : waits > 0;
}

/** The rest of the block; `null`: until the override is deleted. */
export function blockedForMs(endsAtMs: number | undefined, nowMs: number): number | null {
  return endsAtMs === undefined ? null : Math.max(1, endsAtMs - nowMs);
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

/*
 * The headers that describe limits, in the styles of the policy's `headers`.
 *
 * `draft-11` is draft-ietf-httpapi-ratelimit-headers-11: every header has a member for each rule. The older styles
 * have room for one rule, and most clients that read them ignore Retry-After. So they describe the rule that binds,
 * and their reset after a denial is Retry-After, as draft-ietf-httpapi-ratelimit-headers-07, section 4, requires.
 */

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
  if (!neverResets(decision)) headers.set("X-RateLimit-Reset", String(seconds(fromMs + backInMs(decision))));
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
