/** The calls on holds: units set apart, and settled when it is known how many were used. */
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { decisionOf } from "../../client/read-answer.ts";
import { degradedDecision, type Decision } from "../../core/protocol/decision.ts";
import type { HoldParams } from "../../core/protocol/messages.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { Principal } from "../auth/tokens.ts";
import { withCandidate, holdCandidate } from "./candidates.ts";
import { CancelRequest, HoldRequest, SettleRequest } from "./schemas/request-schemas.ts";
import {
  blockedDecision,
  call,
  callClaim,
  costProblem,
  priorityProblem,
  rateProblem,
  unitsProblem,
  type TargetAnswer,
} from "./target.ts";
import { given } from "./validate.ts";

type Promised<Answer> = Promise<TargetAnswer<Answer> | Problem>;

/** Sets units apart until they are settled or cancelled. */
export function callHold(client: LimiterClient, principal: Principal, input: unknown): Promised<Decision> {
  return call(
    client,
    principal,
    HoldRequest,
    input,
    async ({ policy, key }, { units, ttlMs, priority, idempotencyKey }) => {
      const problem =
        rateProblem(policy, units) ??
        unitsProblem(policy, units, given(input, "units")) ??
        priorityProblem(policy, priority);
      if (problem !== undefined) return problem;
      const blocked = blockedDecision({ policy, key });
      if (blocked !== undefined) return client.told(blocked);
      const asked: HoldParams = {
        id: client.newSecret("hold", policy, key),
        cost: units,
        ttlMs,
        priority,
        ...(idempotencyKey !== undefined && { idempotencyKey }),
      };
      const answer = await client.holds.hold(policy, key, asked);
      const told = answer === undefined ? degradedDecision(policy, key) : decisionOf(policy, key, answer);
      holdCandidate(client, { policy, key }, asked, told);
      return client.told(told);
    },
  );
}

/** Ends a hold with the units that were used. */
export function callSettle(client: LimiterClient, principal: Principal, input: unknown): Promised<Decision> {
  return callClaim(
    client,
    principal,
    "hold",
    SettleRequest,
    input,
    async ({ policy, key, secret, client: ending }, { used }) => {
      const problem = costProblem(policy, ["used"], used, given(input, "used"));
      if (problem !== undefined) return problem;
      withCandidate(ending, policy, (beside, tried) => beside.holds.settle(tried, key, secret, used));
      const answer = await ending.holds.settle(policy, key, secret, used);
      return answer instanceof Problem ? answer : { policy, answer };
    },
  );
}

/** Ends a hold of which nothing was used; `undefined`: done. */
export function callCancel(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<Problem | undefined> {
  return callClaim(client, principal, "hold", CancelRequest, input, async (claim) => {
    const { policy, key, secret } = claim;
    withCandidate(claim.client, policy, (beside, tried) => beside.holds.cancel(tried, key, secret));
    const answer = await claim.client.holds.cancel(policy, key, secret);
    return answer instanceof Problem ? answer : undefined;
  });
}
