import * as v from "valibot";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { figuresOf } from "../../core/algorithms/penalty.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { mayUse, type Principal } from "../auth/tokens.ts";
import { figure, milliseconds } from "./schemas/answer-schemas.ts";

/** The policies that the principal may use. */
export function listPolicies({ policies }: LimiterClient, principal: Principal): PolicyList {
  const usable = [...policies.named.values()].filter(({ name }) => mayUse(principal, name));
  return {
    policies: usable.map(({ name, rules, ...policy }) => ({
      name,
      onFailure: policy.onFailure,
      deadlineMs: policy.deadlineMs,
      objects: policy.objects,
      ...(policy.objectsBefore && { objectsBefore: [...policy.objectsBefore] }),
      ...policy.waiting,
      reservationTtlMs: policy.localDecisions.admits ? policy.reservation.mostMs : 0,
      denialTtlMs: policy.denialTtlMs,
      ...(policy.locationHint && { locationHint: policy.locationHint }),
      ...(policy.jurisdiction && { jurisdiction: policy.jurisdiction }),
      ...(policy.pool && { pool: policy.pool.kind }),
      ...(policy.onFailure === "local" && {
        localShare: policy.pool?.localShare ?? 1 / policies.regions.length,
      }),
      ...retryJitterOf(policy),
      shadow: policy.shadow,
      keyKind: policy.keyKind,
      priorities: [...policy.priorities.names],
      defaultPriority: policy.priorities.usual,
      ageingMs: policy.priorities.ageingMs,
      reserve: { ...policy.priorities.reserve },
      ...(policy.shedding && { shed: policy.shedding }),
      headers: [...policy.headers],
      rules: rules.map(({ name: ruleName, algorithm, unit, capacity, config }) => ({
        name: ruleName,
        algorithm: algorithm.name,
        unit,
        capacity,
        ...figuresOf(config),
      })),
    })),
  };
}

function retryJitterOf({ retryJitter }: Pick<Policy, "retryJitter">): object {
  if (retryJitter === undefined) return {};
  return "share" in retryJitter ? { retryJitter: retryJitter.share } : { retryJitterMs: retryJitter.mostMs };
}

/* The schema of the list of policies. */

const LAYOUT = v.union([v.literal("per-key"), v.pipe(v.number(), v.integer())]);

/** What else a rule says is its algorithm's: limits in units, durations in milliseconds. */
export const PolicyRule = v.objectWithRest(
  { name: v.string(), algorithm: v.string() },
  v.union([v.string(), v.number(), v.boolean()]),
);

export const PolicyDescription = v.object({
  name: v.string(),
  rules: v.array(PolicyRule),
  onFailure: v.picklist(["closed", "open", "local"]),
  deadlineMs: milliseconds("The longest a caller waits for a decision."),
  objects: LAYOUT,
  objectsBefore: v.optional(
    v.pipe(v.array(LAYOUT), v.description("Where keys come from that have moved, the last layout first.")),
  ),
  locationHint: v.optional(v.pipe(v.string(), v.description("Where its objects are to be near."))),
  jurisdiction: v.optional(v.pipe(v.string(), v.description("What its objects never leave."))),
  maxWaitMs: milliseconds("The longest that a caller may wait for units."),
  maxWaiters: figure("The most callers that wait for units of one key."),
  reservationTtlMs: milliseconds("The longest a reservation can live; 0: none are made."),
  denialTtlMs: milliseconds("The longest a denial is repeated from memory; 0: it is not."),
  pool: v.optional(v.literal("redis")),
  localShare: v.optional(
    v.pipe(
      v.number(),
      v.description("The part of the limit that a region decides on alone while its pool does not answer."),
    ),
  ),
  retryJitter: v.optional(
    v.pipe(v.number(), v.description("Denied callers are told up to this part of the wait more.")),
  ),
  retryJitterMs: v.optional(milliseconds("Denied callers are told up to this much more.")),
  shadow: v.boolean(),
  keyKind: v.picklist(["text", "ip"]),
  priorities: v.pipe(
    v.array(v.string()),
    v.description("How important calls may be, the most important first."),
  ),
  defaultPriority: v.pipe(v.string(), v.description("The priority of calls that say none.")),
  ageingMs: milliseconds(
    "In a queue: how much longer than a call of the next priority a call has to wait to be served before it.",
  ),
  reserve: v.pipe(
    v.record(v.string(), v.number()),
    v.description("The part of each limit that is kept for calls of a priority and above it."),
  ),
  shed: v.optional(
    v.pipe(
      v.object({
        good: v.pipe(v.number(), v.description("Below this utilization, what is shed comes back.")),
        bad: v.pipe(v.number(), v.description("Above this utilization, more is shed.")),
        afterMs: milliseconds("How long it must have been bad before more is shed."),
        overMs: milliseconds("How long it takes to shed all calls of one priority."),
        by: v.pipe(
          v.picklist(["leases", "reports"]),
          v.description("Where the utilization is from: the key's leases, or what callers report."),
        ),
      }),
      v.description("How calls are shed while machines are too busy."),
    ),
  ),
  headers: v.pipe(
    v.array(v.picklist(["draft-11", "draft-7", "x-ratelimit", "x-ratelimit-delta"])),
    v.description("The styles in which the headers of decisions tell of the limits."),
  ),
});

export const PolicyList = v.object({ policies: v.array(PolicyDescription) });
export type PolicyList = Readonly<v.InferOutput<typeof PolicyList>>;
