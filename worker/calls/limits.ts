/** The calls on a key, the same over HTTP and RPC. The calls on holds and leases are in files of their own. */
import type * as v from "valibot";
import type { LimiterClient } from "../../client/limiter-client.ts";
import type { Decision, KeyReport } from "../../core/protocol/decision.ts";
import type { Problem } from "../../core/protocol/problems.ts";
import { mayUse, type Principal } from "../auth/tokens.ts";
import type { PolicyList } from "./answer-schemas.ts";
import { KeyRequest, LimitRequest, PeekRequest, RefundRequest } from "./request-schemas.ts";
import { call, costProblem, rateProblem, unitsProblem, type Answered, type Target } from "./target.ts";
import { given } from "./validate.ts";
import { refused } from "./validate.ts";

type Promised<Answer> = Promise<Answered<Answer> | Problem>;

/** Decides on a cost, and takes it if it fits. */
export function callLimit(client: LimiterClient, principal: Principal, input: unknown): Promised<Decision> {
  return call(client, principal, LimitRequest, input, (target, request) =>
    limitOf(client, target, request, input),
  );
}

/**
 * Decides on a parsed request.
 *
 * @param input what the request was parsed from
 */
export function limitOf(
  client: LimiterClient,
  { policy, key }: Target,
  { cost, idempotencyKey }: Pick<v.InferOutput<typeof LimitRequest>, "cost" | "idempotencyKey">,
  input: unknown,
): ReturnType<LimiterClient["limit"]> | Problem {
  const problem = rateProblem(policy, cost) ?? costProblem(policy, ["cost"], cost, given(input, "cost"));
  return problem ?? client.limit(policy, key, cost, idempotencyKey);
}

/** Gives back units that were taken and not used. */
export function callRefund(client: LimiterClient, principal: Principal, input: unknown): Promised<Decision> {
  return call(client, principal, RefundRequest, input, ({ policy, key }, { units, idempotencyKey }) => {
    const problem = rateProblem(policy, units) ?? unitsProblem(policy, units, given(input, "units"));
    return problem ?? client.refund(policy, key, units, idempotencyKey);
  });
}

/** Looks at a key: at once, or when the key has no leases. */
export function callPeek(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
  signal?: AbortSignal,
): Promised<KeyReport> {
  return call(client, principal, PeekRequest, input, ({ policy, key }, { waitFor, waitMs }) => {
    const mostMs = policy.lease?.maxWaitMs ?? 0;
    if (waitFor === undefined && waitMs > 0) return refused(["waitMs"], waitMs, "left out, or with waitFor");
    if (waitMs > mostMs && policy.lease !== undefined)
      return refused(["waitMs"], waitMs, `an integer from 0 to ${mostMs}, the policy's maxWait`);
    const waits = policy.lease !== undefined && waitMs > 0;
    return waits ? client.waitForIdle(policy, key, waitMs, signal) : client.peek(policy, key);
  });
}

/** Makes a key as new. */
export function callReset(client: LimiterClient, principal: Principal, input: unknown): Promised<undefined> {
  return call(client, principal, KeyRequest, input, ({ policy, key }) => client.reset(policy, key));
}

/** The policies that the principal may use. */
export function listPolicies({ policies }: LimiterClient, principal: Principal): PolicyList {
  const usable = [...policies.named.values()].filter(({ name }) => mayUse(principal, name));
  return {
    policies: usable.map(({ name, rules, ...policy }) => ({
      name,
      onFailure: policy.onFailure,
      deadlineMs: policy.deadlineMs,
      objects: policy.objects,
      reservationTtlMs: policy.localDecisions.admits ? policy.reservation.mostMs : 0,
      ...(policy.pool && { pool: policy.pool.kind }),
      ...(policy.onFailure === "local" && {
        localShare: policy.pool?.localShare ?? 1 / policies.regions.length,
      }),
      shadow: policy.shadow,
      keyKind: policy.keyKind,
      rules: rules.map(({ name: ruleName, algorithm, unit, config }) => ({
        name: ruleName,
        algorithm: algorithm.name,
        unit,
        ...config,
      })),
    })),
  };
}
