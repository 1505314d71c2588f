/**
 * The message by which a client in its caller's process holds units of many keys: `POST /v1/reservations`, and `reserve`
 * over the service binding. Its calls are those of a batch (wire-methods.ts), and each is answered by itself. Clients in
 * other languages send it too: fields are only added, and an added field is optional.
 */
import type { LocalDecisions } from "../algorithms/algorithm.ts";
import type {
  HeaderStyle,
  Lifetimes,
  Policy,
  PolicyView,
  RetryJitter,
  Rule,
  RuleView,
} from "../policies/policy.ts";
import type { Decided } from "./answers.ts";
import type { Decision } from "./decision.ts";
import type { BatchedCall, Failed } from "./messages.ts";
import { hash } from "./names.ts";
import type { Problem } from "./problems.ts";

/** The version of the message. */
export const RESERVATIONS_PROTOCOL = 1;

/** So many calls go in one message at most. */
export const MAX_RESERVING = 100;

/** The message. */
export interface ReservationsMessage {
  readonly protocol: number;
  /** The policies that the client knows, by name: the versions of their descriptions. */
  readonly known?: Readonly<Record<string, string>>;
  /** Each has one of `giveBack`, `limit` and `reserve`. */
  readonly calls: readonly BatchedCall[];
}

/** A decision by the limiter, since the client could not have understood the object's answer. */
export interface RemoteDecision {
  readonly decision: Decision;
}

/** A call that was refused. It has changed nothing. */
export interface RefusedCall {
  readonly problem: Pick<Problem, "status" | "code" | "title" | "detail" | "errors">;
}

/** The answer to one call. `null`: it gave units back. */
export type ReservationAnswer = Decided | RemoteDecision | RefusedCall | Failed | null;

/** The answer to the message. */
export interface ReservationsReply {
  readonly protocol: number;
  /** One for each call, in their order. */
  readonly answers: readonly ReservationAnswer[];
  /** By name: policies of the calls that the client does not know, or that have changed. */
  readonly policies: Readonly<Record<string, PolicyDescription>>;
}

/*
 * What a client in its caller's process has to know of a policy to decide by itself, as JSON. Clients and limiters of
 * different versions send it to each other: fields are only added, and an added field is optional.
 */

/** A rule. */
interface RuleDescription {
  readonly name: string;
  readonly unit: string;
  readonly capacity: number;
  /** How long until a quota is whole again of which one unit is missing, and of which all are, in milliseconds. */
  readonly wholeMs: { readonly one: number; readonly all: number };
}

/** A policy. */
export interface PolicyDescription {
  /** Another one means that the policy is another. */
  readonly version: string;
  readonly onFailure: "closed" | "open";
  readonly deadlineMs: number;
  readonly objects: "per-key" | number;
  /** What the client may decide by itself. Both are false: it has to ask for each call. */
  readonly localDecisions: LocalDecisions;
  /** The shortest and the longest lifetime of a reservation, in milliseconds. */
  readonly reservation: Lifetimes;
  readonly denialTtlMs: number;
  readonly shadow: boolean;
  readonly keyKind: "text" | "ip";
  /** The units are in a pool, so it takes longer until they are settled. */
  readonly isPooled?: true;
  readonly retryJitter?: RetryJitter;
  /** How important calls may be, and the priority of those that say none. */
  readonly priorities: readonly string[];
  readonly defaultPriority: string;
  /** By priority: the capacity of each rule as calls of that priority see it. Absent: all see the same. */
  readonly seen?: Readonly<Record<string, readonly number[]>>;
  readonly rules: readonly RuleDescription[];
}

/** What a client knows of a policy. */
export interface DescribedPolicy extends PolicyView {
  readonly version: string;
  readonly priorityNames: readonly string[];
}

const known = new WeakMap<Policy, PolicyDescription>();

/** The description of a policy. A client decides nothing where calls are shed, lease units, or need no object. */
export function describePolicy(policy: Policy): PolicyDescription {
  const before = known.get(policy);
  if (before !== undefined) return before;
  const { priorities, pool, lease, shedding, isStateless, retryJitter, reservation } = policy;
  const isAsked = lease !== undefined || shedding !== undefined || isStateless === true;
  const seen = [...priorities.seen].map(([name, { rules }]) => [name, rules.map((rule) => rule.capacity)]);
  const described = {
    onFailure: policy.onFailure === "open" ? ("open" as const) : ("closed" as const),
    deadlineMs: policy.deadlineMs,
    objects: policy.objects,
    localDecisions: isAsked
      ? { admits: false, denies: false }
      : { ...policy.localDecisions, ...(reservation.clients === false && { admits: false }) },
    reservation,
    denialTtlMs: policy.denialTtlMs,
    shadow: policy.shadow,
    keyKind: policy.keyKind,
    ...(pool && { isPooled: true as const }),
    ...(retryJitter && { retryJitter }),
    priorities: priorities.names,
    defaultPriority: priorities.usual,
    ...(seen.length > 0 && { seen: Object.fromEntries(seen) as PolicyDescription["seen"] & object }),
    rules: policy.rules.map(describeRule),
  };
  const description = { version: (hash(JSON.stringify(described)) >>> 0).toString(36), ...described };
  known.set(policy, description);
  return description;
}

function describeRule({ name, unit, capacity, algorithm, config }: Rule): RuleDescription {
  const wholeMs = { one: algorithm.wholeFromMs(config, 1), all: algorithm.wholeFromMs(config, capacity) };
  return { name, unit, capacity, wholeMs };
}

/** The policy of a description, as a holder sees it. */
export function describedPolicy(name: string, description: PolicyDescription): DescribedPolicy {
  const { isPooled, priorities: priorityNames, defaultPriority: usual, seen, rules, ...policy } = description;
  const views = new Map<string, PolicyView>();
  const whole = {
    ...policy,
    name,
    priorityNames,
    rules: rules.map((rule) => heldRule(rule, rule.capacity)),
    priorities: { usual, seen: views },
    ...(isPooled && { pool: { kind: "redis" as const } }),
  };
  for (const [priority, capacities] of Object.entries(seen ?? {})) {
    const viewed = rules.map((rule, index) => heldRule(rule, capacities[index] ?? rule.capacity));
    views.set(priority, { ...whole, rules: viewed, priority });
  }
  return whole;
}

/** In between, the time is on the line through both ends: never too short of rates that refill evenly, or all at once. */
function heldRule({ name, unit, capacity: most, wholeMs: { one, all } }: RuleDescription, capacity: number) {
  const eachMs = most > 1 ? (all - one) / (most - 1) : 0;
  const wholeFromMs = (_: object, missing: number) => Math.ceil(one + (missing - 1) * eachMs);
  return { name, unit, capacity, config: {}, algorithm: { wholeFromMs } } satisfies RuleView;
}

/* The policies of a deployment, as callers see them. The schema for OpenAPI is in worker/calls/keys.ts. */

/** A rule. What else it says is its algorithm's: limits in units, durations in milliseconds. */
export interface ListedRule {
  readonly name: string;
  readonly algorithm: string;
  readonly [figure: string]: string | number | boolean;
}

/** A policy. Durations are in milliseconds. */
export interface ListedPolicy {
  readonly name: string;
  readonly rules: readonly ListedRule[];
  readonly onFailure: "closed" | "open" | "local";
  readonly deadlineMs: number;
  readonly objects: "per-key" | number;
  readonly maxWaitMs: number;
  readonly maxWaiters: number;
  readonly reservationTtlMs: number;
  readonly denialTtlMs: number;
  readonly shadow: boolean;
  readonly keyKind: "text" | "ip";
  readonly priorities: readonly string[];
  readonly defaultPriority: string;
  /** The styles in which headers tell of the limits. Absent: an older limiter. */
  readonly headers?: readonly HeaderStyle[];
}

/** What `policies` answers. */
export interface PolicyList {
  readonly policies: readonly ListedPolicy[];
}
