/** The decisions on one request by all its middleware, and the headers that describe them. */
import type { GrantedLease, Limiter } from "../client/limiter.ts";
import type { Time } from "../core/clock.ts";
import type { HeaderStyle } from "../core/policies/policy.ts";
import { type Decision, standingFor } from "../core/protocol/decision.ts";
import { longestWaitMs } from "../core/protocol/denied-body.ts";
import {
  type HeaderPolicy,
  type HeaderRule,
  type Target,
  retryAfter,
  setPolicyHeaders,
  setQuotaHeaders,
} from "../core/protocol/headers.ts";
import type { ListedPolicy, ListedRule } from "../core/protocol/reservation-messages.ts";
import type { InBackground } from "./options.ts";

export type Decisions = Readonly<Record<string, Decision>>;

/** The lease of a request, until its answer has ended. */
export interface RequestLease extends GrantedLease {
  /** Aborted when the lease is lost before: a renewal finds it ended, or it expires since none succeeds. */
  readonly signal: NonNullable<GrantedLease["signal"]>;
}

/** By policy. */
export type Leases = Readonly<Record<string, RequestLease>>;

/** The limits that a call brings, by unit. */
type OwnLimits = Readonly<Record<string, number>>;

export interface Outcome {
  readonly success: boolean;
  /** One for each check that was tried, in their order. */
  readonly decisions: readonly Decision[];
  /** Of a call that charges one check: the index of that; `null`: none was charged. Absent: the call has no choice. */
  readonly chosen?: number | null;
  /** For each check the limits that it brings. Absent: none brings any. */
  readonly ownLimits?: readonly (OwnLimits | undefined)[];
}

/** Holds a request's limits. A `WeakMap` takes a tenth of an empty route's time: each GC walks it. */
const LIMITS = Symbol("limits");

export class RequestLimits {
  readonly #decisions: Record<string, Decision> = {};
  readonly #leases: Record<string, RequestLease> = {};
  #binding: Decision | undefined;
  #policies: HeaderPolicies | undefined;
  #ownLimits: OwnLimits | undefined;
  #waitMs: number | null = null;

  /** @param request the same object in all middleware of a request */
  static of(request: object): RequestLimits {
    return ((request as { [LIMITS]?: RequestLimits })[LIMITS] ??= new RequestLimits());
  }

  get decisions(): Decisions {
    return this.#decisions;
  }

  get leases(): Leases {
    return this.#leases;
  }

  noteLease(policy: string, lease: RequestLease): void {
    this.#leases[policy] = lease;
  }

  get isFirst(): boolean {
    return this.#binding === undefined;
  }

  /** Notes the decisions. A denial binds, or otherwise the decision with the least remaining. */
  note({ success, decisions: tried, chosen, ownLimits }: Outcome, policies: HeaderPolicies): void {
    for (const decision of tried) this.#decisions[decision.policy] = decision;
    // Where one check is enough, the others do not bind.
    const decisions = chosen === undefined ? tried : [standingFor({ chosen, decisions: tried })];
    const denied = decisions.filter((each) => !each.success);
    const least = (success ? decisions : denied).reduce<Decision | undefined>(
      (found, each) => (found !== undefined && remainingOf(found) <= remainingOf(each) ? found : each),
      success ? this.#binding : undefined,
    );
    if (least === undefined || least === this.#binding) return;
    this.#binding = least;
    this.#policies = policies;
    this.#ownLimits = ownLimits?.[tried.indexOf(least)];
    this.#waitMs = success ? null : longestWaitMs(denied);
  }

  /** Sets the headers of the decision that binds. @param nowMs reads the clock */
  setHeaders(headers: Target, nowMs: () => number): void {
    if (this.#binding === undefined) return;
    const { policy: named, plan = "" } = this.#binding;
    const described = this.#policies?.get(named) ?? { headers: DEFAULT_HEADERS, rules: [] };
    const policy = withOwnLimits(described.plans?.get(plan) ?? described, this.#ownLimits);
    for (const [name, value] of policyHeaders(policy)) headers.set(name, value);
    setQuotaHeaders(headers, policy, this.#binding, nowMs);
    for (const [name, value] of Object.entries(retryAfter(this.#waitMs))) headers.set(name, value);
  }
}

/** They are the same for all requests. Those of a policy with a call's own limits go with it. */
const knownHeaders = new WeakMap<HeaderPolicy, Map<string, string>>();

function policyHeaders(policy: HeaderPolicy): ReadonlyMap<string, string> {
  const made = knownHeaders.get(policy) ?? new Map<string, string>();
  if (made.size === 0 && policy.rules.length > 0) setPolicyHeaders(made, policy);
  knownHeaders.set(policy, made);
  return made;
}

/** The policy as a call with limits of its own sees it: those come without a burst. */
function withOwnLimits(policy: HeaderPolicy, limits: OwnLimits | undefined): HeaderPolicy {
  if (limits === undefined) return policy;
  const rules = policy.rules.map((rule) => {
    const units = Object.hasOwn(limits, rule.unit) ? limits[rule.unit] : undefined;
    const isLimited = units !== undefined && rule.quota.units !== NO_LIMIT;
    return isLimited ? { ...rule, quota: { ...rule.quota, units }, capacity: units } : rule;
  });
  return { ...policy, rules };
}

/** The decisions that middleware has made on this request, by policy name. */
export function decisionsOf(request: object): Decisions {
  return RequestLimits.of(request).decisions;
}

/** The leases that middleware holds for this request, by policy name. */
export function leasesOf(request: object): Leases {
  return RequestLimits.of(request).leases;
}

/** A degraded decision does not know what remains. */
function remainingOf({ remaining = Infinity }: Decision): number {
  return remaining;
}

export type HeaderPolicies = ReadonlyMap<string, HeaderPolicy>;

/** How long a list of policies is used, in milliseconds: headers follow a deployment this late. */
const FRESH_MS = 60_000;
/** The same when the limiter did not answer. */
const RETRY_MS = 10_000;
const DEFAULT_HEADERS: readonly HeaderStyle[] = ["draft-11"];

const known = new WeakMap<object, { readonly policies: HeaderPolicies; untilMs: number }>();

/**
 * The policies of a limiter, refreshed by each request itself: in a worker another's call may have ended.
 * None if the limiter does not answer. No promise if they are known.
 */
export function headerPolicies(
  limiter: Pick<Limiter, "policies">,
  time: Time,
  inBackground: InBackground,
): HeaderPolicies | Promise<HeaderPolicies> {
  const nowMs = time.nowMs();
  const before = known.get(limiter);
  if (before === undefined) return readPolicies(limiter, time);
  if (nowMs >= before.untilMs) {
    before.untilMs = nowMs + RETRY_MS;
    inBackground(readPolicies(limiter, time, before.policies));
  }
  return before.policies;
}

async function readPolicies(
  limiter: Pick<Limiter, "policies">,
  time: Time,
  before: HeaderPolicies = new Map(),
): Promise<HeaderPolicies> {
  try {
    const list = await limiter.policies();
    const policies = new Map(list.policies.map((policy) => [policy.name, headerPolicy(policy)]));
    known.set(limiter, { policies, untilMs: time.nowMs() + FRESH_MS });
    return policies;
  } catch {
    // Headers are optional: the decision itself shows whether the limiter answers.
    known.set(limiter, { policies: before, untilMs: time.nowMs() + RETRY_MS });
    return before;
  }
}

export function headerPolicy({ headers = DEFAULT_HEADERS, rules, plans = {} }: ListedPolicy): HeaderPolicy {
  const each = Object.entries(plans).map(
    ([plan, its]) => [plan, { headers, rules: its.map(headerRule), plan }] as const,
  );
  return { headers, rules: rules.map(headerRule), plans: new Map(each) };
}

/** The capacity of a rule without a limit: the largest cost. */
const NO_LIMIT = 1_000_000_000;

/** The quota follows from the rule's fields as in `quota` of each algorithm; a test compares them. */
function headerRule(rule: ListedRule): HeaderRule {
  const { name, unit = "requests", limit = NO_LIMIT, windowMs, burst = limit, capacity = burst } = rule;
  const quota = { units: Number(limit), ...(windowMs !== undefined && { windowMs: Number(windowMs) }) };
  return { name, unit: String(unit), quota, capacity: Number(capacity) };
}
