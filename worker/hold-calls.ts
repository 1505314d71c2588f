/** Holds: units set apart, and settled when it is known how many were used. */
import { degradedDecision } from "../durable-objects/answers.ts";
import { given } from "./calls.ts";
import { decisionOf, holdMissing, type LimiterClient } from "./limiter-client.ts";
import { parse } from "./parse.ts";
import { Problem } from "./problems.ts";
import type { Decision } from "./answer-schemas.ts";
import { CancelRequest, HoldRequest, SettleRequest } from "./request-schemas.ts";
import { call, costProblem, findClaim, rateProblem, unitsProblem, type Answered } from "./targets.ts";
import type { Principal } from "./tokens.ts";

type Promised<Answer> = Promise<Answered<Answer> | Problem>;

export function callHold(client: LimiterClient, principal: Principal, input: unknown): Promised<Decision> {
  return call(principal, HoldRequest, input, async ({ policy, key }, { units, ttlMs, idempotencyKey }) => {
    const problem = rateProblem(policy, units) ?? unitsProblem(policy, units, given(input, "units"));
    if (problem !== undefined) return problem;
    const asked = { cost: units, ttlMs, ...(idempotencyKey !== undefined && { idempotencyKey }) };
    const answer = await client.hold(policy, key, asked);
    return answer === undefined ? degradedDecision(policy, key) : decisionOf(policy, key, answer);
  });
}

export async function callSettle(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promised<Decision> {
  const request = parse(SettleRequest, input);
  if (request instanceof Problem) return request;
  const claim = findClaim(principal, "hold", request.id);
  if (claim === undefined) return holdMissing();
  const { policy, key, secret } = claim;
  const problem = costProblem(policy, ["used"], request.used, given(input, "used"));
  const answer = problem ?? (await client.settle(policy, key, secret, request.used));
  return answer instanceof Problem ? answer : { policy, answer };
}

export async function callCancel(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<Problem | undefined> {
  const request = parse(CancelRequest, input);
  if (request instanceof Problem) return request;
  const claim = findClaim(principal, "hold", request.id);
  if (claim === undefined) return holdMissing();
  const answer = await client.cancel(claim.policy, claim.key, claim.secret);
  return answer instanceof Problem ? answer : undefined;
}
