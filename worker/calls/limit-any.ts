/**
 * Several checks in their order, of which the first that admits is charged: a plan's quota, then bought credits.
 *
 * A check that denies changes nothing, so without an idempotency key the checks are plain calls, one after the other. Held
 * units decide them without a message. An unanswered check ends the call: it may have been charged.
 *
 * Under an idempotency key a repeated call must not charge another check, also if the worker died, if both attempts run
 * at once, and if a check that denied the first attempt would admit now. So each check's object gives one answer under
 * the key: it stores its denial as it stores an admission. A repeated call takes the way of the first one. When all
 * have denied, nobody can be charged any more by these answers, and the next attempt begins a *round*: in a later round an
 * object decides again what it denied in an earlier one.
 *
 * Why at most one check is charged: an attempt asks a check in a round only after all checks before it have denied in
 * that round for good, and begins a round only after all have in the one before. So a check that is charged has
 * denied neither in its round nor later, and no attempt gets past it.
 */
import { tryInOrder } from "../../client/try-in-order.ts";
import {
  countsDenials,
  type Cost,
  type Policy,
  publicName,
  takesNothing,
} from "../../core/policies/policy.ts";
import { type LimitParams, MAX_CHECKS } from "../../core/protocol/calls.ts";
import { type AnyDecision, standingFor } from "../../core/protocol/decision.ts";
import { type Answered, Problem } from "../../core/protocol/problems.ts";
import { limitCandidate } from "./candidates.ts";
import { digestOf, findChecks, groupsText, type IndependentCheck, textOf, withKeys } from "./checks.ts";
import { type CallContext, decidedBy, limitOf, rateProblem, withCharge } from "./limits.ts";
import * as requests from "./schemas/request-schemas.ts";
import { badValue, given, parse, type TargetAnswer } from "./validate.ts";

/** Charges the first check that admits. The policy is that of the decision that stands for the call. */
export async function callLimitAny(
  context: CallContext,
  input: unknown,
): Answered<TargetAnswer<AnyDecision>> {
  const call = await parseCall(context, input);
  if (call instanceof Problem) return call;
  const { request } = call;
  const answer = await (request === undefined
    ? tryInOrder(call.checks, decideBy(context, call))
    : tryOnce(context, call, request));
  if (answer instanceof Problem) return answer;
  const standing = standingFor(answer);
  const check = call.checks[answer.decisions.indexOf(standing)];
  if (check === undefined) throw new RangeError("no check was tried");
  return { policy: decidedBy(context.client, check, standing).policy, answer };
}

interface Call {
  readonly checks: readonly IndependentCheck[];
  readonly isRefundable: boolean;
  /** The call as text, which idempotency compares. Absent: there is nothing to compare. */
  readonly request: string | undefined;
}

/** Decides a check as a plain `limit`. */
function decideBy({ client, principal }: CallContext, { isRefundable }: Call) {
  return (check: IndependentCheck) => {
    const { cost, priority, idempotencyKey } = check;
    return limitOf(
      client,
      principal,
      check,
      { cost, priority, idempotencyKey, refundable: isRefundable },
      check,
    );
  };
}

/**
 * The same under an idempotency key. If all deny, and some only repeat what they said to an earlier attempt, all are asked
 * once more, in the next round.
 */
async function tryOnce(
  context: CallContext,
  call: Call,
  request: string,
  from = { round: 1, isLast: false },
): Answered<AnyDecision> {
  const { client } = context;
  let { round } = from;
  let [isFirst, hasEarlier] = [true, false];
  const answer = await tryInOrder(call.checks, async (check) => {
    const { policy, key, cost, priority, idempotencyKey } = check;
    // A cost of 0 takes nothing, so nothing is stored.
    if (idempotencyKey === undefined || takesNothing(policy, cost))
      return await client.limit(policy, key, { cost, priority });
    const params = { cost, priority, idempotencyKey, attempt: { request, round } };
    const attempted = await client.attempt(policy, key, params);
    if (attempted instanceof Problem) return attempted;
    const { decision, deniedIn } = attempted;
    hasEarlier ||= deniedIn?.isEarlier === true;
    // An earlier attempt was in a later round: this one goes on in that.
    if (isFirst && deniedIn !== undefined) round = Math.max(round, deniedIn.round);
    isFirst = false;
    return call.isRefundable ? withCharge(decision, idempotencyKey) : decision;
  });
  if (answer instanceof Problem) return answer;
  const isOver = !answer.success && answer.decisions.at(-1)?.source !== "fallback";
  if (isOver && hasEarlier && !from.isLast)
    return await tryOnce(context, call, request, { round: round + 1, isLast: true });
  for (const [index, decision] of answer.decisions.entries()) {
    const check = call.checks[index];
    client.recordDecision(decision);
    if (check !== undefined) limitCandidate(client, check, paramsOf(check), decision);
  }
  return answer;
}

function paramsOf({ cost, priority, idempotencyKey }: IndependentCheck): LimitParams {
  return { cost, priority, idempotencyKey };
}

async function parseCall(context: CallContext, input: unknown): Answered<Call> {
  const raw = given(input, "checks") as readonly unknown[];
  // First of all: thousands of checks would each be parsed, and answered with an error.
  if (Array.isArray(raw) && raw.length > MAX_CHECKS)
    return badValue(["checks"], raw, requests.ANY_CHECKS_ALLOWED);
  const parsed = parse(requests.LimitAnyRequest, input);
  if (parsed instanceof Problem) return parsed;
  const found = findChecks(context, parsed, raw, checkProblem);
  if (found instanceof Problem) return found;
  const { idempotencyKey, refundable: isRefundable } = parsed;
  const checks = withKeys(found, idempotencyKey);
  const request = idempotencyKey === undefined ? undefined : await requestText(checks);
  return { checks, isRefundable, request };
}

/** The call as idempotency stores it: never change it. */
async function requestText(checks: readonly IndependentCheck[]): Promise<string> {
  const lines = checks.map(textOf);
  const isOne = checks.length === 1;
  // Of one check its group is stored so.
  const group = isOne ? checks[0]?.policy.group?.group : undefined;
  if (group !== undefined) lines.push(group);
  const groups = isOne ? "" : await groupsText(checks, true);
  return `call on the first of ${checks.length} checks (${await digestOf(lines)})${groups}`;
}

/** The problem of a check that cannot be tried: its units are leased, or its denial would change something. */
function checkProblem(policy: Policy, cost: Cost, path: readonly [string, string]): Problem | undefined {
  const problem = rateProblem(policy, cost, path);
  if (problem !== undefined || !policy.rules.some(countsDenials)) return problem;
  const allowed =
    "a policy without countDenied and blockFor (a check that is tried and denied changes nothing here)";
  return badValue([...path, "policy"], publicName(policy.name), allowed);
}
