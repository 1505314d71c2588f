import type { LimiterClient } from "../../client/limiter-client.ts";
import { figuresOf } from "../../core/algorithms/penalty.ts";
import type { Policy } from "../../core/policies/policy.ts";
import { mayUse, type Principal } from "../auth/tokens.ts";
import type { PolicyList } from "./policy-list-schema.ts";

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
