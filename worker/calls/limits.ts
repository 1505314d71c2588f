/** The calls on a key, the same over HTTP and RPC. The calls on holds and leases are in files of their own. */
import type * as v from "valibot";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { randomId } from "../../core/clock.ts";
import {
  type Cost,
  costOf,
  type Policy,
  publicName,
  type Rule,
  takesNothing,
} from "../../core/policies/policy.ts";
import type { Decision, KeyReport } from "../../core/protocol/decision.ts";
import type { LimitParams } from "../../core/protocol/messages.ts";
import { Problem } from "../../core/protocol/problems.ts";
import { type Principal, type Scope, scopeProblem } from "../auth/tokens.ts";
import { withCandidate, limitCandidate } from "./candidates.ts";
import {
  KeyRequest,
  LimitRequest,
  PeekRequest,
  RefundRequest,
  SetRequest,
  UNITS_ALLOWED,
} from "./schemas/request-schemas.ts";
import {
  type TargetAnswer,
  call,
  costProblem,
  priorityProblem,
  rateProblem,
  type Target,
  unitsProblem,
  utilizationProblem,
} from "./target.ts";
import { given, refused } from "./validate.ts";

type Promised<Answer> = Promise<TargetAnswer<Answer> | Problem>;

/** Decides on a cost, and takes it if it fits. `signal`: aborted when a caller has gone that waits. */
export function callLimit(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
  signal?: AbortSignal,
): Promised<Decision> {
  return call(client, principal, LimitRequest, input, (target, request) =>
    limitOf(client, principal, target, request, input, signal),
  );
}

/**
 * Decides on a parsed request.
 *
 * @param input what the request was parsed from
 */
export function limitOf(
  client: LimiterClient,
  principal: Principal,
  { policy, key }: Target,
  { refundable, force, cost, idempotencyKey, priority, utilization, waitMs = 0 }: LimitAsked,
  input: unknown,
  signal?: AbortSignal,
): ReturnType<LimiterClient["limit"]> | Problem {
  const problem =
    scopeProblem(principal, force === true ? FORCING : LIMITING) ??
    rateProblem(policy, cost) ??
    costProblem(policy, ["cost"], cost, given(input, "cost")) ??
    priorityProblem(policy, priority) ??
    utilizationProblem(policy, utilization) ??
    waitProblem(policy, waitMs) ??
    (force === true ? forceProblem(policy, cost, input) : undefined);
  if (problem !== undefined) return problem;
  if (utilization !== undefined) client.report(policy, key, utilization);
  // Field by field: the request has the policy and the key as the caller wrote them.
  const plain = { cost, idempotencyKey, priority, ...(waitMs > 0 && { waitMs }) };
  const asked = force === true ? { ...plain, force } : plain;
  const isCharge = refundable === true && policy.rules.some((rule) => costOf(rule, cost) > 0);
  if (!isCharge) return decide(client, { policy, key }, asked, signal);
  const charge = asked.idempotencyKey ?? randomId();
  return withCharge(decide(client, { policy, key }, { ...asked, idempotencyKey: charge }, signal), charge);
}

/** Decides, counts it, and puts it to a candidate. A call that the isolate decides has no promise, and gets none. */
export function decide(
  client: LimiterClient,
  target: Target,
  asked: LimitParams,
  signal?: AbortSignal,
): ReturnType<LimiterClient["limit"]> {
  const decided = client.limit(target.policy, target.key, asked, signal);
  const tell = <Told extends Decision | Problem>(told: Told) => {
    if (target.policy.candidate !== undefined) limitCandidate(client, target, asked, told);
    return client.told(told);
  };
  return decided instanceof Promise ? decided.then(tell) : tell(decided);
}

const LIMITING: readonly Scope[] = ["limit"];
const FORCING: readonly Scope[] = ["force", "admin"];

type LimitAsked = Pick<v.InferOutput<typeof LimitRequest>, "cost" | "idempotencyKey"> & {
  readonly priority?: string | undefined;
  readonly utilization?: number | undefined;
  readonly refundable?: boolean;
  readonly waitMs?: number;
  readonly force?: boolean;
};

/** The problem of a wait that is longer than the policy allows. */
function waitProblem({ waiting, pool }: Policy, waitMs: number): Problem | undefined {
  const { maxWaitMs } = waiting;
  if (waitMs <= maxWaitMs) return undefined;
  const allowed =
    maxWaitMs === 0 && pool !== undefined
      ? "left out or 0, since nobody waits for units of a pool"
      : `an integer from 0 to ${maxWaitMs}, the policy's maxWait`;
  return refused(["waitMs"], waitMs, allowed);
}

/** The problem of a debit that takes nothing, or whose units are in a pool. */
function forceProblem(policy: Policy, cost: Cost, input: unknown): Problem | undefined {
  if (policy.pool !== undefined)
    return refused(["force"], true, 'left out under a policy with pool = "redis"');
  if (!takesNothing(policy, cost)) return undefined;
  return refused(["cost"], given(input, "cost"), `${UNITS_ALLOWED}, at least one of them not 0, with force`);
}

/** The decision with its charge, if a charge was made and is remembered where a refund will look for it. */
async function withCharge(
  decided: ReturnType<LimiterClient["limit"]>,
  charge: string,
): Promise<Decision | Problem> {
  const decision = await decided;
  if (decision instanceof Problem) return decision;
  const isCharged =
    decision.violated === undefined && decision.source !== "fallback" && decision.rules.length > 0;
  return isCharged ? { ...decision, charge } : decision;
}

/** Gives back units that were taken and not used. */
export function callRefund(client: LimiterClient, principal: Principal, input: unknown): Promised<Decision> {
  return call(
    client,
    principal,
    RefundRequest,
    input,
    ({ policy, key }, { units, idempotencyKey, charge }) => {
      const problem =
        // A refund that names no charge can give back what others took, and what time has given back already.
        scopeProblem(principal, [charge === undefined ? "refund" : "limit"]) ??
        rateProblem(policy, units) ??
        unitsProblem(policy, units, given(input, "units"));
      if (problem !== undefined) return problem;
      withCandidate(client, policy, (beside, tried) =>
        beside.refund(tried, key, units, idempotencyKey, charge),
      );
      return client.refund(policy, key, units, idempotencyKey, charge);
    },
  );
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
  return call(client, principal, KeyRequest, input, ({ policy, key }) => {
    withCandidate(client, policy, (beside, tried) => beside.reset(tried, key));
    return client.reset(policy, key);
  });
}

/* The call that sets what a key has used. */

/** Sets what a key has used, and looks at it. */
export function callSetUsed(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<TargetAnswer<KeyReport> | Problem> {
  return call(client, principal, SetRequest, input, ({ policy, key }, { used }) => {
    const problem = costProblem(policy, ["used"], used, given(input, "used"));
    if (problem !== undefined) return problem;
    if (policy.pool !== undefined)
      return refused(
        ["policy"],
        publicName(policy.name),
        "a policy without a pool, to set what a key has used",
      );
    const rates = policy.rules.filter(({ lease }) => lease === undefined);
    if (rates.length === 0)
      return refused(
        ["policy"],
        policy.name,
        "a policy with a rule that counts a rate: leases are only released",
      );
    const isNamed = ({ unit }: Rule) => typeof used === "number" || Object.hasOwn(used, unit);
    if (!rates.some(isNamed))
      return refused(["used"], given(input, "used"), `a number, or a table with one of ${unitsOf(rates)}`);
    withCandidate(client, policy, (beside, tried) => beside.setUsed(tried, key, used));
    return client.setUsed(policy, key, used);
  });
}

function unitsOf(rules: readonly Rule[]): string {
  return [...new Set(rules.map(({ unit }) => unit))].join(", ");
}
