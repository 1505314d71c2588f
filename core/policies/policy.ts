import type { AnyAlgorithm, LeaseTerms, LocalDecisions, Quota, Waiting } from "../algorithms/algorithm.ts";
import { MAX_PARTS, RATE_WINDOWS } from "../algorithms/token-bucket.ts";
import type { Shedding } from "../shedding/load-shedder.ts";

/** What each isolate or process admits of a key by itself while the object does not answer. */
export interface FailureLimit {
  readonly limit: number;
  readonly windowMs: number;
}

/** What clients outside of the limiter know of a rule. */
export interface RuleView {
  readonly name: string;
  /** What the rule counts, such as `requests`. A call may give its cost by these names. */
  readonly unit: string;
  /** The most units that can be admitted at once. */
  readonly capacity: number;
  /** Made by `algorithm.configure`, and only read by `algorithm`. */
  readonly config: object;
  readonly algorithm: Pick<AnyAlgorithm, "refillMs" | "lessRate" | "isCutByWindow">;
}

/** Whether an object can cut the rule into buckets of holders. */
export function isCuttable({ algorithm, config }: RuleView): boolean {
  return algorithm.lessRate?.(config, { units: 0, windowMs: 1 }) !== undefined;
}

/** Whether a region's object can count its part of a rule exactly: in parts of a unit, as core/algorithms/token-bucket.ts. */
export function canHaveRegions(rule: Rule): boolean {
  return isCuttable(rule) && rule.capacity * RATE_WINDOWS * (rule.quota.windowMs ?? 1) <= MAX_PARTS;
}

/** Whether holders' buckets are cut from what a log or window has left: one that is too large costs the others a window. */
export function areCutByWindow(rules: readonly RuleView[]): boolean {
  return rules.some(({ algorithm }) => algorithm.isCutByWindow === true);
}

export interface Rule extends RuleView {
  readonly algorithm: AnyAlgorithm;
  /** For calls of one priority: units kept for more important calls, not included in `capacity`. */
  readonly apart?: number;
  readonly quota: Quota;
  /** Present when units are leased rather than used up. */
  readonly lease?: LeaseTerms;
}

/** What clients outside of the limiter know of a policy. */
export interface PolicyView {
  readonly name: string;
  readonly rules: readonly RuleView[];
  /** The rules as text, to compare versions. Absent: the units are in a pool. */
  readonly terms?: string;
  /** What happens when the object does not answer; `local`: a region decides without its unreachable pool. */
  readonly onFailure: "closed" | "open" | "local";
  /** Present with `onFailure = { limit, window }`: then `onFailure` is "closed", which leases, holds and joint checks are. */
  readonly failureLimit?: FailureLimit;
  readonly pool?: Pool;
  /** Present in a region's copy of a policy with a pool (parse-policies.ts). */
  readonly region?: Region;
  /** The longest wait for the object's answer. */
  readonly deadlineMs: number;
  readonly objects: Layout;
  /** Absent: its objects are created near their first caller. */
  readonly locationHint?: LocationHint | undefined;
  /** Never change it: another jurisdiction means other objects. */
  readonly jurisdiction?: Jurisdiction | undefined;
  /** Whether isolates ask objects in their regions: where they are many, from their first call on, or never. */
  readonly regions?: "auto" | "always" | "off";
  /** How long isolates may reserve units; 0: the object decides every call. */
  readonly reservation: Lifetimes;
  /** How long a denial may be repeated from memory, which delays a refund elsewhere; 0: not at all. */
  readonly denialTtlMs: number;
  readonly localDecisions: LocalDecisions;
  /** Decide and report, never deny. */
  readonly shadow: boolean;
  readonly priorities: Pick<Priorities, "usual"> & { readonly seen: ReadonlyMap<string, PolicyView> };
  readonly priority?: string;
  /** `ip`: keys are IP addresses, and an IPv6 address counts as its /64. */
  readonly keyKind: "text" | "ip";
  /** From such a round trip on a holder asks for a bucket of its own. Absent: the usual one. */
  readonly farMs?: number;
  /** Present when denials have a random extra wait. */
  readonly retryJitter?: RetryJitter | undefined;
  readonly inForce?: PolicyRevision;
  readonly override?: AppliedOverride;
  /** Present when groups share a rule (core/algorithms/fair/fair.ts): each call says its group. */
  readonly isFair?: boolean;
  /** Whose call it is, and the policy that a view of a group is of: the same for all that name the group. */
  readonly group?: GroupOfCall;
  readonly groupOf?: PolicyView;
  /** The plan that a call has named (plans.ts). Absent: the call names none, and its key keeps the plan that it has. */
  readonly plan?: string;
}

/** How keys are limited: `[vars.POLICIES.<name>]`. */
export interface Policy extends PolicyView {
  readonly rules: readonly [Rule, ...Rule[]];
  /** Present when a rule leases units: calls are acquires, and each term is the strictest of those rules. */
  readonly lease?: LeaseTerms;
  /** How long callers may wait for units of a key, and how many; 0: none. */
  readonly waiting: Waiting;
  /** Earlier layouts, the last one first: an unknown key is fetched from the objects that had it. */
  readonly objectsBefore?: readonly Layout[] | undefined;
  /** Present when no rule decides by a state, so a call that only decides needs no object. */
  readonly isStateless?: boolean;
  /** How important calls may be, and what is kept for them. */
  readonly priorities: Priorities;
  readonly shedding?: Shedding;
  readonly overrides?: Overrides<Policy>;
  /** The policy as calls of each plan see it, "" for those without a plan. Absent: it has no plans. */
  readonly plans?: ReadonlyMap<string, Policy>;
  /** Present when calls may bring limits of their own, up to `max`. */
  readonly limitInCall?: LimitInCall;
  /** The fractions of each limit at which a notice is sent (core/accounts/notices.ts). */
  readonly notify?: readonly number[] | undefined;
  /** Present when another policy is on trial: it decides the same calls, but denies none. */
  readonly candidate?: Candidate;
  /** The styles of its headers, with no header in common. */
  readonly headers: readonly HeaderStyle[];
}

export interface LimitInCall {
  readonly max: number;
  /** The policy with these limits, by unit; `undefined`: one of its rules cannot have such a limit. */
  readonly withLimits: (limits: Readonly<Record<string, number>>) => Policy | undefined;
  /** What is wrong with limits that a rule cannot have. */
  readonly whyNot: (limits: Readonly<Record<string, number>>) => string;
}

export interface Candidate {
  readonly policy: Policy;
  readonly version: number;
}

interface Pool {
  readonly kind: "redis";
  /** The part (above 0, at most 1) of the limit for a region without its pool. Default: 1 / number of regions. */
  readonly localShare?: number;
}

/** One object for each key, or the number of objects that share all keys. */
export type Layout = "per-key" | number;

/**
 * Where an object is created; it never moves.
 * https://developers.cloudflare.com/durable-objects/reference/data-location/
 */
export const LOCATION_HINTS = ["wnam", "enam", "sam", "weur", "eeur", "apac", "oc", "afr", "me"] as const;
export type LocationHint = (typeof LOCATION_HINTS)[number];

/** Objects and their storage never leave it. It is a part of the object's id. */
export const JURISDICTIONS = ["eu", "us", "fedramp", "fedramp-high"] as const;
export type Jurisdiction = (typeof JURISDICTIONS)[number];

export interface Region {
  readonly name: string;
  readonly colos: readonly string[];
  readonly countries: readonly string[];
  readonly continents: readonly string[];
  readonly locationHint?: LocationHint;
}

/**
 * The styles of headers: draft-ietf-httpapi-ratelimit-headers in two versions, and `X-RateLimit-*`, whose reset is in
 * Unix seconds (`x-ratelimit`) or seconds from now (`x-ratelimit-delta`). A policy has at most one of each line.
 */
export const HEADER_STYLES = [
  ["draft-11", "draft-7"],
  ["x-ratelimit", "x-ratelimit-delta"],
] as const;
export type HeaderStyle = (typeof HEADER_STYLES)[number][number];

/** The longest random addition to a denied caller's wait: a share of the wait, or a duration. */
export type RetryJitter = { readonly share: number } | { readonly mostMs: number };

/** The shortest and the longest lifetime of a reservation (core/reservations/sizing.ts); both 0: none. */
export interface Lifetimes {
  readonly leastMs: number;
  readonly mostMs: number;
  /** `false`: only isolates of the limiter hold units; clients in their callers' processes send each call. */
  readonly clients?: boolean;
}

/**
 * The lifetimes of `reservation = "auto"`. An object without calls leaves memory after about 10 s, and then units
 * reserved by isolates count as used, so isolates return them sooner.
 */
export const MIN_TTL_MS = 1_000;
export const MAX_TTL_MS = 8_000;
/** With a shorter lifetime nothing is reserved: messages would take too much of it. */
export const MIN_USEFUL_TTL_MS = 20;

/** Bounds of one caller in one isolate, so that its calls do not take an object from others. */
export interface CallerBounds {
  /** Calls that may wait for one object. Calls decided by the isolate do not count. */
  readonly maxCallsAtOnce: number;
  /** New keys per second, with a burst of ten times as many. */
  readonly maxNewKeysPerSecond: number;
}

/** Far above normal use: an object answers some 1,000 calls a second. */
export const DEFAULT_BOUNDS: CallerBounds = { maxCallsAtOnce: 1_000, maxNewKeysPerSecond: 2_000 };

/** The most that a caller may have, and the bounds of calls with other ones. */
export const MAX_BOUNDS: CallerBounds = { maxCallsAtOnce: 100_000, maxNewKeysPerSecond: 100_000 };

export type Policies = ReadonlyMap<string, Policy>;

/** The policies that a version knows. Storage may have keys of others. */
export interface PolicyLookup extends Pick<Policies, "get"> {
  isRemoved?(name: string): boolean;
  /** A version of a policy as the object of this name decides it; `undefined`: this version knows no such region. */
  copyOf?(policy: Policy, name: string): Policy | undefined;
}

export interface Priorities {
  /** The most important first. */
  readonly names: readonly string[];
  /** The default priority. */
  readonly usual: string;
  /** By name: the part of each limit that is kept for calls of this priority and above. */
  readonly reserve: Readonly<Record<string, number>>;
  /** In a queue: how much longer than a call of the next priority a call must wait to be served first. */
  readonly ageingMs: number;
  /** The policy as calls of each priority see it. Empty: all see the same. */
  readonly seen: ReadonlyMap<string, Policy>;
}

/** A policy before its description arrives: nothing is held under it. */
export const UNDESCRIBED: Omit<PolicyView, "name" | "onFailure" | "deadlineMs"> = {
  objects: "per-key",
  reservation: { leastMs: 0, mostMs: 0 },
  denialTtlMs: 0,
  localDecisions: { admits: false, denies: false },
  shadow: false,
  keyKind: "text",
  rules: [{ name: "", unit: "", capacity: 0, config: {}, algorithm: { refillMs: () => 0 } }],
  priorities: { usual: "", seen: new Map() },
};

/** Whether a denial by the rule changes what later calls get: it counts as a call, or begins a block. */
export function countsDenials({ algorithm, config }: Pick<Rule, "algorithm" | "config">): boolean {
  return algorithm.hasPenalty === true || (config as { countDenied?: unknown }).countDenied === true;
}

/** The policy as calls of a priority see it; `undefined`: the default one. */
export function forPriority(policy: Policy, priority: string | undefined): Policy;
export function forPriority(policy: PolicyView, priority: string | undefined): PolicyView;
export function forPriority(policy: PolicyView, priority: string | undefined): PolicyView {
  const { usual, seen } = policy.priorities;
  return seen.get(priority ?? usual) ?? policy;
}

/* The names of copies of a policy. They are stored with keys: never change the marks. Policy names contain none. */

/** A region's copy of `api` is `api@eu`, also in the names of its objects and reservations and the ids of leases. */
export const SEPARATOR = "@";
const CANDIDATE = "~candidate";
/** Ends the name of the policy of a region without its pool: `api@eu/local`. */
const LOCAL = "/local";

export function candidateName(policy: string): string {
  return `${policy}${CANDIDATE}`;
}

export function isCandidate({ name }: Pick<Policy, "name">): boolean {
  return name.endsWith(CANDIDATE);
}

export function publicName(name: string): string {
  const end = name.indexOf(SEPARATOR);
  return end < 0 ? name : name.slice(0, end);
}

/** The name of the policy of a region without its pool. */
export function localName({ name }: Pick<Policy, "name">): string {
  return `${name}${LOCAL}`;
}

/** The region in the name of a copy, and whether it is the one of a region without its pool. */
export function regionIn(name: string): { readonly region: string; readonly isAlone: boolean } {
  const region = name.slice(publicName(name).length + SEPARATOR.length);
  const isAlone = region.endsWith(LOCAL);
  return { region: isAlone ? region.slice(0, -LOCAL.length) : region, isAlone };
}

/* Changes at run time, as policies carry them from isolates to objects. */

/**
 * The version of a policy in force for a key. Versions rise with each change of the policy or an override of its keys,
 * and `sinceMs` within a version. Sent and stored: never rename a field.
 */
export interface PolicyRevision {
  readonly version: number;
  /** The policy's table as JSON text, including the key's override. Absent: the deployment's file applies. */
  readonly fields?: string;
  /** When an override of the key last began or ended in this version, in milliseconds since 1970. */
  readonly sinceMs?: number;
  /** In a candidate: its `Candidate.version`. Keys of another one begin untouched. */
  readonly candidate?: number;
  /** As `PolicyView.plan`. */
  readonly plan?: string;
}

/** A call that may name a plan. None: the one in force for its key decides. */
export interface NamingPlan {
  readonly inForce?: PolicyRevision | undefined;
}

/** The revision for a key that keeps the plan which it has. */
export function withoutPlan(inForce: PolicyRevision): PolicyRevision {
  const { plan: _, ...revision } = inForce;
  return revision;
}

/** Whether a key now has another candidate than in the version before. */
export function isOfAnother(before: PolicyRevision | undefined, now: PolicyRevision | undefined): boolean {
  return now?.candidate !== undefined && now.candidate !== before?.candidate;
}

/** The later of two revisions; of equal ones the first, but with the plan of the other one, if that names one. */
export function later(
  one: PolicyRevision | undefined,
  other: PolicyRevision | undefined,
): PolicyRevision | undefined {
  const versions = (other?.version ?? 0) - (one?.version ?? 0);
  if (other === undefined || versions < 0) return one;
  const isLater = versions > 0 || (other.sinceMs ?? 0) > (one?.sinceMs ?? 0);
  const plan = other.plan ?? one?.plan;
  if (!isLater && plan === one?.plan) return one;
  const latest = isLater ? other : (one ?? other);
  return plan === undefined || latest.plan === plan ? latest : { ...latest, plan };
}

export interface AppliedOverride {
  readonly pattern: string;
  /** Absent: the override has other limits, and the key is decided normally. */
  readonly effect?: "blocked" | "unlimited";
  /** When it expires, in milliseconds since 1970. Absent: never. */
  readonly endsAtMs?: number;
}

/** Finds the policy of a key with a present or ended override; `undefined`: it has none. */
export interface Overrides<Found> {
  /** @param aheadMs an override that begins within this time counts as present. Absent: none */
  find(key: string, nowMs: number, aheadMs?: number): Found | undefined;
}

/** The rule of whose slots holders may have some; `undefined`: the object decides each lease. */
export function relaxedRule({ rules, pool, shedding, shadow, priorities }: Policy): Rule | undefined {
  const [rule, ...others] = rules;
  const isPlain = others.length === 0 && pool === undefined && shedding === undefined && !shadow;
  if (!isPlain || priorities.seen.size > 0) return undefined;
  return rule.algorithm.leasing?.isRelaxed?.(rule.config) === true ? rule : undefined;
}

const OF_THE_FILE: PolicyRevision = { version: 0 };

/** What a call says of its policy: the version, with its plan, if the policy has plans and the call may name one; its group. */
export function versionOf({
  inForce,
  plan,
  group,
}: Pick<PolicyView, "inForce" | "plan" | "group">): Pick<PolicyView, "inForce"> & Partial<GroupOfCall> {
  if (plan !== undefined) return { inForce: { ...(inForce ?? OF_THE_FILE), plan }, ...group };
  return inForce === undefined ? (group ?? {}) : { inForce, ...group };
}

/** A group, and a hash of the caller that names it. */
export interface GroupOfCall {
  readonly group: string;
  readonly namedBy?: string;
}

/** The units of a call: a number for every rule, or one for each unit (`Rule.unit`), 1 by default. */
export type Cost = number | Readonly<Record<string, number>>;

export function costOf(rule: Pick<Rule, "unit">, cost: Cost): number {
  if (typeof cost === "number") return cost;
  return Object.hasOwn(cost, rule.unit) ? (cost[rule.unit] ?? 1) : 1;
}

/** Whether a cost has no units for any rule: the call only reads, as with a cost of 0. */
export function takesNothing(
  { rules }: { readonly rules: readonly Pick<Rule, "unit">[] },
  cost: Cost,
): boolean {
  return typeof cost === "number" ? cost === 0 : rules.every((rule) => costOf(rule, cost) === 0);
}

/** A cost as text, independent of the order of its units. */
export function costText(cost: Cost): string {
  if (typeof cost === "number") return String(cost);
  return Object.keys(cost)
    .toSorted()
    .map((unit) => `${cost[unit]} ${unit}`)
    .join(", ");
}
