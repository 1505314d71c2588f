/** Policies and rules, as parse-policy.ts makes them. */
import type { AnyAlgorithm, LeaseTerms, LocalDecisions, Quota, Waiting } from "../algorithms/algorithm.ts";
import type { Shedding } from "../shedding/load-shedder.ts";

/** One limit: an algorithm with its configuration. */
export interface Rule {
  readonly name: string;
  readonly algorithm: AnyAlgorithm;
  /** Made by `algorithm.configure`, and only read by `algorithm`. */
  readonly config: object;
  /** The most units that can be admitted at once. */
  readonly capacity: number;
  /** As calls of one priority see it: units that are kept for more important calls. They are not in `capacity`. */
  readonly apart?: number;
  readonly quota: Quota;
  /** What the rule counts, such as `requests`. A call may give its cost by these names. */
  readonly unit: string;
  /** Present when units are not used up, but leased. */
  readonly lease?: LeaseTerms;
}

/** How keys are limited, as `[vars.POLICIES.<name>]` says. */
export interface Policy {
  readonly name: string;
  readonly rules: readonly [Rule, ...Rule[]];
  /** The rules as text, by which versions of them are compared. Absent: the units are in a pool. */
  readonly terms?: string;
  /** Present when a rule leases units: a call is an acquire, and each term is the strictest of those rules. */
  readonly lease?: LeaseTerms;
  /** How long callers may wait for units of a key, and how many of them; 0: nobody waits. */
  readonly waiting: Waiting;
  /** What is done when the object does not answer; `local`: a region whose pool does not answer goes on alone. */
  readonly onFailure: "closed" | "open" | "local";
  /** Present when the units are in a pool that regions share. */
  readonly pool?: Pool;
  /** Present in a region's copy of a policy with a pool: see regional-policies.ts. */
  readonly region?: Region;
  /** How long a caller waits for the object at most, in milliseconds. */
  readonly deadlineMs: number;
  readonly objects: Layout;
  /** The layouts before, the last one first: an unknown key is fetched from the objects that had it. */
  readonly objectsBefore?: readonly Layout[];
  /** Absent: its objects are created near their first caller. */
  readonly locationHint?: LocationHint;
  /** For ever: in another jurisdiction, or in none, its objects are others. */
  readonly jurisdiction?: Jurisdiction;
  /** How long isolates may reserve units; 0: they reserve nothing, and the object decides every call. */
  readonly reservation: Lifetimes;
  /**
   * How long a denial may be repeated from memory, in milliseconds: a refund or a reset through another isolate is
   * noticed so late at most. 0: the object denies every call itself.
   */
  readonly denialTtlMs: number;
  /** What an isolate may decide: only what every rule allows. */
  readonly localDecisions: LocalDecisions;
  /** Present when no rule has a state, so that a call which only decides needs no object. */
  readonly isStateless?: boolean;
  /** Decide and report, never deny. */
  readonly shadow: boolean;
  /** How important calls may be, and what is kept for which of them. */
  readonly priorities: Priorities;
  /** Present when calls are shed while the machines behind the policy are too busy. */
  readonly shedding?: Shedding;
  /** Present in a policy as calls of one priority see it: its name. */
  readonly priority?: string;
  /** `ip`: keys are IP addresses, and an IPv6 address counts with its whole /64. */
  readonly keyKind: "text" | "ip";
  /** Present when denied callers are told to wait a random time longer than they must. */
  readonly retryJitter?: RetryJitter;
  /** Present when it was changed at run time, or ever was. */
  readonly inForce?: PolicyRevision;
  /** Present when some of its keys have overrides. */
  readonly overrides?: Overrides<Policy>;
  /** Present in the policy of a key with an override. */
  readonly override?: AppliedOverride;
  /** Present when another policy is tried: it decides the same calls beside this one, and denies nobody. */
  readonly candidate?: Candidate;
  /** In which styles the headers of decisions tell of the limits. No two of them have a header in common. */
  readonly headers: readonly HeaderStyle[];
}

/** A policy that is tried. */
export interface Candidate {
  /** It has a name of its own, so its keys are apart from those of the policy in force. */
  readonly policy: Policy;
  /** Another candidate has another one. */
  readonly version: number;
}

/** Where the units are that regions share. */
interface Pool {
  readonly kind: "redis";
  /** The part (above 0, at most 1) of the limit that a region goes on with alone; absent: 1 / number of regions. */
  readonly localShare?: number;
}

/* The values of some fields. */

/** One object for each key, or the number of objects that share all keys. */
export type Layout = "per-key" | number;

/**
 * Where an object is to be near when it is created: later it stays where it is. See
 * https://developers.cloudflare.com/durable-objects/reference/data-location/
 */
export const LOCATION_HINTS = ["wnam", "enam", "sam", "weur", "eeur", "apac", "oc", "afr", "me"] as const;
export type LocationHint = (typeof LOCATION_HINTS)[number];

/** What an object and all that it stores never leave. It is a part of the object's id. */
export const JURISDICTIONS = ["eu", "us", "fedramp", "fedramp-high"] as const;
export type Jurisdiction = (typeof JURISDICTIONS)[number];

/** A region, and the codes of `request.cf` of its requests. Colo goes before country and continent. */
export interface Region {
  readonly name: string;
  readonly colos: readonly string[];
  readonly countries: readonly string[];
  readonly continents: readonly string[];
  /** Where its objects are created. */
  readonly locationHint?: LocationHint;
}

/**
 * The styles of headers: draft-ietf-httpapi-ratelimit-headers in two versions, and `X-RateLimit-*`, whose reset is an
 * instant in Unix seconds (`x-ratelimit`) or the seconds until then (`x-ratelimit-delta`). Styles of one line have
 * headers in common, so a policy has at most one of each line.
 */
export const HEADER_STYLES = [
  ["draft-11", "draft-7"],
  ["x-ratelimit", "x-ratelimit-delta"],
] as const;
export type HeaderStyle = (typeof HEADER_STYLES)[number][number];

/** How much longer than they must callers are told to wait at most: a share of the wait, or a duration. */
export type RetryJitter = { readonly share: number } | { readonly mostMs: number };

/**
 * The shortest and the longest lifetime of a reservation, in milliseconds. Both are 0: nothing is reserved.
 * core/reservations/sizing.ts says why, and what else depends on these numbers.
 */
export interface Lifetimes {
  readonly leastMs: number;
  readonly mostMs: number;
  /** `false`: only isolates of the limiter hold units, and clients in their callers' processes ask for each call. */
  readonly clients?: boolean;
}

/**
 * The lifetimes that `reservation = "auto"` chooses from. An object without calls leaves memory after about 10 s, and
 * then the units that isolates had reserved count as used. So isolates give units back sooner. (The background work of a
 * request could run for 30 s.)
 */
export const MIN_TTL_MS = 1_000;
export const MAX_TTL_MS = 8_000;
/** With a shorter lifetime nothing is reserved: messages would take too much of it. */
export const MIN_USEFUL_TTL_MS = 20;

/** What one caller may do in one isolate, so that its calls do not take an object from others. */
export interface CallerBounds {
  /** The calls that may wait for the answer of one object. Calls that the isolate decides alone do not count. */
  readonly maxCallsAtOnce: number;
  /** The keys a second that it has not asked for lately; ten times as many at once. */
  readonly maxNewKeysPerSecond: number;
}

/** Far above what an isolate does in earnest: an object answers some 1,000 calls a second. */
export const DEFAULT_BOUNDS: CallerBounds = { maxCallsAtOnce: 1_000, maxNewKeysPerSecond: 2_000 };

/** No token and no binding may have higher ones. */
export const MAX_CALLS_AT_ONCE = 100_000;
export const MAX_NEW_KEYS_PER_SECOND = 100_000;

/** For calls that are bounded by something else. */
export const MAX_BOUNDS: CallerBounds = {
  maxCallsAtOnce: MAX_CALLS_AT_ONCE,
  maxNewKeysPerSecond: MAX_NEW_KEYS_PER_SECOND,
};

/** By name. */
export type Policies = ReadonlyMap<string, Policy>;

/** The policies that a version knows. What is stored may be of others too. */
export interface PolicyLookup extends Pick<Policies, "get"> {
  /** Whether a policy was removed on purpose, so that its keys are forgotten. Absent: none was. */
  isRemoved?(name: string): boolean;
}

/** How important the calls of a policy may be: see parse-policy.ts. */
export interface Priorities {
  /** The most important first. */
  readonly names: readonly string[];
  /** The priority of a call that says none. */
  readonly usual: string;
  /** By name: the part of each limit that is kept for calls of this priority and above. */
  readonly reserve: Readonly<Record<string, number>>;
  /** In a queue: how much longer than a call of the next priority a call has to wait to be served before it. */
  readonly ageingMs: number;
  /** The policy as calls of each priority see it. Empty: nothing is kept, and all see the same. */
  readonly seen: ReadonlyMap<string, Policy>;
}

/** A rule, as a holder of its units sees it, which may be in another process. */
export interface RuleView extends Pick<Rule, "name" | "unit" | "capacity" | "config"> {
  readonly algorithm: Pick<AnyAlgorithm, "refillMs">;
}

/** A policy, as a holder of units under it sees it. */
export interface PolicyView extends Pick<
  Policy,
  | "name"
  | "onFailure"
  | "deadlineMs"
  | "objects"
  | "reservation"
  | "denialTtlMs"
  | "localDecisions"
  | "shadow"
  | "keyKind"
  | "pool"
  | "terms"
  | "region"
  | "locationHint"
  | "jurisdiction"
  | "priority"
  | "retryJitter"
  | "inForce"
  | "override"
> {
  readonly rules: readonly RuleView[];
  readonly priorities: Pick<Priorities, "usual"> & { readonly seen: ReadonlyMap<string, PolicyView> };
}

/** A policy that the limiter has not described yet: nothing is held under it. */
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

/** The policy as a call of this priority sees it; `undefined`: the priority of calls that say none. */
export function forPriority(policy: Policy, priority: string | undefined): Policy;
export function forPriority(policy: PolicyView, priority: string | undefined): PolicyView;
export function forPriority(policy: PolicyView, priority: string | undefined): PolicyView {
  const { usual, seen } = policy.priorities;
  return seen.get(priority ?? usual) ?? policy;
}

/* The names of copies of a policy. They are stored with keys: never change the marks. No policy's own name has one. */

/**
 * A region's copy of the policy `api` is called `api@eu`. The name is part of the names of objects, of reservations and
 * of ids of leases, so these differ from region to region.
 */
export const SEPARATOR = "@";
/** Ends the name of the policy that a region goes on with alone when its pool does not answer: `api@eu/local`. */
export const LOCAL = "/local";

/** The name under which a policy's candidate decides. */
export function candidateName(policy: string): string {
  return `${policy}~candidate`;
}

/** The name that the deployment gave the policy, and that callers know. */
export function publicName(name: string): string {
  const end = name.indexOf(SEPARATOR);
  return end < 0 ? name : name.slice(0, end);
}

/** The name of the policy that a region goes on with alone, when its pool does not answer. */
export function localName({ name }: Policy): string {
  return `${name}${LOCAL}`;
}

/* What was changed at run time, as policies carry it from isolates to objects. */

/**
 * The version of a policy that is in force for a key. Versions rise with each change of the policy or of an override for
 * its keys, and `sinceMs` within a version, so an object that has seen one never goes back (`later`). Sent and stored:
 * never rename a field.
 */
export interface PolicyRevision {
  readonly version: number;
  /** The policy's table as JSON text, with the override of the key in it. Absent: as the deployment's file says. */
  readonly fields?: string;
  /**
   * When an override of the key last reached its `expiresAt` in this version, in milliseconds since 1970. The version
   * rises a moment later, when the catalog has deleted the override. Absent: none has.
   */
  readonly sinceMs?: number;
  /** In a candidate: which one it is (`Candidate.version`). The keys of another one begin untouched. */
  readonly candidate?: number;
}

/** Whether a key that was decided by one version before has another candidate now. */
export function isOfAnother(before: PolicyRevision | undefined, now: PolicyRevision | undefined): boolean {
  return now?.candidate !== undefined && now.candidate !== before?.candidate;
}

/** The later of two revisions; of equal ones the first. */
export function later(
  one: PolicyRevision | undefined,
  other: PolicyRevision | undefined,
): PolicyRevision | undefined {
  const versions = (other?.version ?? 0) - (one?.version ?? 0);
  if (versions !== 0) return versions > 0 ? other : one;
  return (other?.sinceMs ?? 0) > (one?.sinceMs ?? 0) ? other : one;
}

/** The override that applies to a key. */
export interface AppliedOverride {
  /** As answers name it. */
  readonly pattern: string;
  /** Absent: the override has other limits, by which the key is decided as any other. */
  readonly effect?: "blocked" | "unlimited";
  /** When it ends by itself, in milliseconds since 1970. Absent: not before it is deleted. */
  readonly endsAtMs?: number;
}

/** Finds the policy of a key that has an override, or had one that has ended; `undefined`: it has none. */
export interface Overrides<Found> {
  find(key: string, nowMs: number): Found | undefined;
}

/** What a message says of the version that is in force; empty: the deployment's file says it. */
export function versionOf({ inForce }: Pick<Policy, "inForce">): Pick<Policy, "inForce"> {
  return inForce === undefined ? {} : { inForce };
}

/** Whether two versions of a policy, which were both changed at run time, say the same of a key. */
export function saysTheSame(one: Versioned, other: Versioned): boolean {
  if (one.inForce === undefined || other.inForce === undefined) return false;
  return (
    one.inForce.candidate === other.inForce.candidate &&
    one.inForce.fields === other.inForce.fields &&
    one.override?.pattern === other.override?.pattern
  );
}

type Versioned = Pick<Policy, "inForce" | "override">;

/**
 * The units that a call asks for. A number is for every rule. An object gives a number for each unit (`Rule.unit`),
 * and 1 counts for a unit that is left out.
 */
export type Cost = number | Readonly<Record<string, number>>;

/** The units that a cost has for a rule. */
export function costOf(rule: Pick<Rule, "unit">, cost: Cost): number {
  if (typeof cost === "number") return cost;
  return Object.hasOwn(cost, rule.unit) ? (cost[rule.unit] ?? 1) : 1;
}

/** Whether a cost has no units for any rule: then the call only reads, as with a cost of 0. */
export function takesNothing(
  { rules }: { readonly rules: readonly Pick<Rule, "unit">[] },
  cost: Cost,
): boolean {
  return typeof cost === "number" ? cost === 0 : rules.every((rule) => costOf(rule, cost) === 0);
}

/** A cost as text. The same cost has the same text, in whatever order its units were given. */
export function costText(cost: Cost): string {
  if (typeof cost === "number") return String(cost);
  return Object.keys(cost)
    .toSorted()
    .map((unit) => `${cost[unit]} ${unit}`)
    .join(", ");
}
