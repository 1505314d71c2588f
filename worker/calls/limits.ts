/** The calls on a key, the same over HTTP and RPC. The calls on holds and leases are in claims.ts. */
import type * as v from "valibot";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { ADDRESS_ALLOWED, normaliseKey } from "../../core/catalog/keys.ts";
import { randomId, readClockMs } from "../../core/clock.ts";
import type { RegionalPolicies } from "../../core/policies/parse-policies.ts";
import { limitedRules } from "../../core/policies/plans.ts";
import { type Cost, costOf, type Policy, publicName, takesNothing } from "../../core/policies/policy.ts";
import { namedPlan, ofGroup, withCallLimits } from "../../core/policies/seen-policy.ts";
import type { LimitParams } from "../../core/protocol/calls.ts";
import { decidingPlan, type Decision, type KeyReport } from "../../core/protocol/decision.ts";
import { hash } from "../../core/protocol/names.ts";
import { type Answered, catalogUnreached, Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { oneOfNames, pointerTo, violation, wrong } from "../../core/violations.ts";
import { keyProblem, mayUse, policyProblem, type Principal, scopeProblem } from "../auth/tokens.ts";
import { limitCandidate, withCandidate } from "./candidates.ts";
import * as requests from "./schemas/request-schemas.ts";
import {
  badValue,
  given,
  notAllowed,
  parse,
  type Target,
  type TargetAnswer,
  unitsOf,
  unknownUnit,
  unknownUnits,
} from "./validate.ts";

export interface CallContext {
  readonly client: LimiterClient;
  readonly principal: Principal;
  /** Its signal is aborted when an HTTP caller has left. */
  readonly request?: Pick<Request, "signal">;
}

export function onKey<
  Schema extends v.GenericSchema<unknown, { policy: string; key: string }>,
  Context extends CallContext,
  Answer,
>(
  schema: Schema,
  answerOf: (
    target: Target,
    request: v.InferOutput<Schema>,
    context: Context,
    input: unknown,
  ) => Answered<Answer> | Answer | Problem,
  isDecided = true,
  plain: (input: unknown) => v.InferOutput<Schema> | undefined = () => undefined,
): (context: Context, input: unknown) => Answered<TargetAnswer<Answer>> {
  return async (context, input) => {
    const request = plain(input) ?? parse(schema, input);
    if (request instanceof Problem) return request;
    const target = findTarget(context.client, context.principal, request, [], isDecided);
    if (target instanceof Problem) return target;
    const answer = await answerOf(target, request, context, input);
    if (answer instanceof Problem) return answer;
    return decidedBy(context.client, target, answer);
  };
}

/**
 * The policy as the plan sees it that decided: to a repeated call the first one's, to one without a plan its key's. A call
 * that has waited was decided by the override of then.
 */
export function decidedBy<Answer>({ policies }: LimiterClient, { policy, key }: Target, answer: Answer) {
  const { waitedMs = 0 } = (answer ?? {}) as { readonly waitedMs?: number };
  const plan = decidingPlan(answer) ?? policy.plan;
  const whole = policies.named.get(publicName(policy.name));
  if ((plan === policy.plan && waitedMs === 0) || whole === undefined) return { policy, answer };
  const now = whole.overrides?.find(key, readClockMs()) ?? whole;
  const by = plan === undefined ? now : (namedPlan(now, plan) ?? policy);
  const override = by.override?.pattern;
  const isOther = waitedMs > 0 && override !== policy.override?.pattern;
  return { policy: by, answer: isOther ? { ...answer, override } : answer };
}

/**
 * The policy and the key of a request.
 * @param below the request's place in the input, for errors
 * @param isDecided whether it is decided: under `fair` its group is needed then
 */
export function findTarget(
  { policies }: Pick<LimiterClient, "policies">,
  principal: Principal,
  request: TargetFields,
  below: readonly string[] = [],
  isDecided = true,
): Target | Problem {
  const { policy: name, key: givenKey } = request;
  const policy = findPolicy(policies, principal, name, below);
  if (policy instanceof Problem) return policy;
  const key = policy.keyKind === "text" ? givenKey : normaliseKey(policy, givenKey);
  if (key === undefined) return badValue([...below, "key"], givenKey, ADDRESS_ALLOWED);
  const problem = keyProblem(principal, key);
  if (problem !== undefined) return problem;
  const found = policy.overrides?.find(key, readClockMs()) ?? policy;
  const planned = withPlan(found, request, below);
  if (planned instanceof Problem) return planned;
  const seen = withGroup(planned, principal, request, below, isDecided);
  if (seen instanceof Problem) return seen;
  return { policy: seen.pool === undefined ? seen : policies.within(seen, principal.region), key };
}

export function findPolicy(
  { named, isComplete }: RegionalPolicies,
  principal: Principal,
  name: string,
  below: readonly string[] = [],
): Policy | Problem {
  const refusal = policyProblem(principal, name);
  if (refusal !== undefined) return refusal;
  const policy = named.get(name);
  if (policy !== undefined) return policy;
  if (!isComplete) return catalogUnreached(`the policy ${JSON.stringify(name)}`);
  const names = [...named.keys()].filter((each) => mayUse(principal, each));
  const path = [...below, "policy"];
  const detail = violation(path, name, oneOfNames(name, names));
  return new Problem(PROBLEMS.policyNotFound, detail, { errors: [{ pointer: pointerTo(path), detail }] });
}

/** The problem of units that no rule counts. @param input the request before it was parsed */
export function costProblem(
  { rules }: Policy,
  path: readonly [...string[], string],
  cost: Cost,
  input: unknown,
): Problem | undefined {
  if (typeof cost === "number") return undefined;
  const givenCost = given(input, path.at(-1) ?? "");
  if (typeof givenCost !== "object" || givenCost === null) return undefined;
  if (Array.isArray(givenCost)) return badValue(path, givenCost, requests.COST_ALLOWED);
  return unknownUnits(rules, path, givenCost);
}

const NOT_ALL_ZERO = `${requests.UNITS_ALLOWED}, at least one of them not 0`;

/** The same for units that must not all be 0. */
export function unitsProblem(policy: Policy, units: Cost, input: unknown): Problem | undefined {
  const problem = costProblem(policy, ["units"], units, input);
  if (problem !== undefined || policy.rules.some((rule) => costOf(rule, units) > 0)) return problem;
  return badValue(["units"], given(input, "units"), NOT_ALL_ZERO);
}

export function priorityProblem({ priorities: { names } }: Policy, priority?: string): Problem | undefined {
  if (priority === undefined || names.includes(priority)) return undefined;
  const allowed = `one of ${names.map((name) => JSON.stringify(name)).join(", ")}, the policy's priorities`;
  return badValue(["priority"], priority, allowed);
}

export function utilizationProblem({ shedding }: Policy, utilization?: number): Problem | undefined {
  if (utilization === undefined || shedding?.by === "reports") return undefined;
  return badValue(["utilization"], utilization, 'left out: this policy has no shed = { by = "reports" }');
}

/** The problem of taking units from a policy that leases them. A cost of 0 only reads. */
export function rateProblem(policy: Policy, cost: Cost, below: readonly string[] = []): Problem | undefined {
  if (policy.lease === undefined || takesNothing(policy, cost)) return undefined;
  const allowed =
    "a policy without a concurrency rule (units of this one are leased: acquire, POST /v1/leases)";
  return badValue([...below, "policy"], publicName(policy.name), allowed);
}

function waitProblem({ waiting: { maxWaitMs }, pool }: Policy, waitMs: number): Problem | undefined {
  if (pool === undefined || maxWaitMs > 0 || waitMs === 0) return maxWaitProblem(waitMs, maxWaitMs);
  return badValue(["waitMs"], waitMs, "left out or 0, since nobody waits for units of a pool");
}

export function maxWaitProblem(waitMs: number, maxWaitMs: number): Problem | undefined {
  if (waitMs <= maxWaitMs) return undefined;
  return badValue(["waitMs"], waitMs, `an integer from 0 to ${maxWaitMs}, the policy's maxWait`);
}

function forceProblem(policy: Policy, cost: Cost, input: unknown): Problem | undefined {
  if (policy.pool !== undefined)
    return badValue(["force"], true, 'left out under a policy with pool = "redis"');
  if (!takesNothing(policy, cost)) return undefined;
  return badValue(["cost"], given(input, "cost"), `${NOT_ALL_ZERO}, with force`);
}

export const callLimit = onKey(requests.LimitRequest, (target, request, context, input) =>
  limitOf(context.client, context.principal, target, request, input, context.request?.signal),
);

type Fields = v.InferOutput<typeof requests.LimitRequest>;
type ParsedLimit = Readonly<Pick<Fields, "cost"> & Partial<Fields>>;

/** Decides a request. @param input before it was parsed @param signal aborted when the caller has left */
export function limitOf(
  client: LimiterClient,
  principal: Principal,
  target: Target,
  { refundable, force, cost, idempotencyKey, priority, utilization, waitMs = 0 }: ParsedLimit,
  input: unknown,
  signal?: AbortSignal,
): ReturnType<LimiterClient["limit"]> | Problem {
  const { policy } = target;
  const problem =
    scopeProblem(principal, force === true ? FORCING : LIMITING) ??
    rateProblem(policy, cost) ??
    costProblem(policy, COST, cost, input) ??
    priorityProblem(policy, priority) ??
    utilizationProblem(policy, utilization) ??
    waitProblem(policy, waitMs) ??
    (force === true ? forceProblem(policy, cost, input) : undefined);
  if (problem !== undefined) return problem;
  if (utilization !== undefined) client.report(policy, target.key, utilization);
  // Field by field: the request has the policy and the key as the caller wrote them.
  const plain = { cost, idempotencyKey, priority, ...(waitMs > 0 && { waitMs }) };
  const params = force === true ? { ...plain, force } : plain;
  const isCharge = refundable === true && policy.rules.some((rule) => costOf(rule, cost) > 0);
  if (!isCharge) return decide(client, target, params, signal);
  const charge = params.idempotencyKey ?? randomId();
  return withCharge(decide(client, target, { ...params, idempotencyKey: charge }, signal), charge);
}

const COST = ["cost"] as const;
const LIMITING = ["limit"] as const;
const FORCING = ["force", "admin"] as const;

/** Decides, counts, and sends the call to a candidate. Local decisions get no promise. */
export function decide(
  client: LimiterClient,
  target: Target,
  params: LimitParams,
  signal?: AbortSignal,
): ReturnType<LimiterClient["limit"]> {
  const decided = client.limit(target.policy, target.key, params, signal);
  const record = <Answer extends Decision | Problem>(answer: Answer) => {
    if (target.policy.candidate !== undefined) limitCandidate(client, target, params, answer);
    return client.recordDecision(answer);
  };
  return decided instanceof Promise ? decided.then(record) : record(decided);
}

/** Adds the charge, if one was made and stored where a refund searches for it. */
export async function withCharge(
  decided: ReturnType<LimiterClient["limit"]>,
  charge: string,
): Answered<Decision> {
  const decision = await decided;
  if (decision instanceof Problem) return decision;
  const isCharged =
    decision.violated === undefined && decision.source !== "fallback" && decision.rules.length > 0;
  return isCharged ? { ...decision, charge } : decision;
}

/** Returns taken units that were not used. */
export const callRefund = onKey(
  requests.RefundRequest,
  ({ policy, key }, { units, idempotencyKey, charge }, { client, principal }, input) => {
    const problem =
      // A refund without a charge can return other callers' units, and units that time has already refilled.
      scopeProblem(principal, [charge === undefined ? "refund" : "limit"]) ??
      rateProblem(policy, units) ??
      unitsProblem(policy, units, input);
    if (problem !== undefined) return problem;
    const refund = (each: LimiterClient, its: Policy) => each.refund(its, key, units, idempotencyKey, charge);
    return withCandidate(client, policy, refund);
  },
  false,
);

/** Reads a key: at once, or when the key has no leases. */
export const callPeek = onKey(
  requests.PeekRequest,
  ({ policy, key }, { waitFor, waitMs }, context) => {
    const { client, request } = context;
    if (waitFor === undefined && waitMs > 0) return badValue(["waitMs"], waitMs, "left out, or with waitFor");
    if (policy.lease === undefined || waitMs === 0) return withoutNames(client.peek(policy, key), context);
    const problem = maxWaitProblem(waitMs, policy.lease.maxWaitMs);
    return problem ?? withoutNames(client.waitForIdle(policy, key, waitMs, request?.signal), context);
  },
  false,
);

/** Who else calls is for the scope admin: others only see how many groups there are. */
async function withoutNames(peeked: Answered<KeyReport>, { principal }: CallContext): Answered<KeyReport> {
  const report = await peeked;
  if (report instanceof Problem || report.groups === undefined) return report;
  if (scopeProblem(principal, ["admin"]) === undefined) return report;
  return { ...report, groups: { active: report.groups.active } };
}

export const callReset = onKey(
  requests.KeyRequest,
  ({ policy, key }, _, { client }) => withCandidate(client, policy, (each, its) => each.reset(its, key)),
  false,
);

/** A candidate has no waiters. */
export const callEndWaits = onKey(
  requests.KeyRequest,
  ({ policy, key }, _, { client }) => client.endWaits(policy, key),
  false,
);

export const callSetUsed = onKey(
  requests.SetRequest,
  ({ policy, key }, { used }, { client }, input) => {
    const problem = costProblem(policy, ["used"], used, input);
    if (problem !== undefined) return problem;
    const name = publicName(policy.name);
    if (policy.pool !== undefined)
      return badValue(["policy"], name, "a policy without a pool, to set what a key has used");
    const rates = policy.rules.filter(({ lease }) => lease === undefined);
    if (rates.length === 0)
      return badValue(["policy"], name, "a policy with a rule that counts a rate: leases are only released");
    if (typeof used !== "number" && !rates.some(({ unit }) => Object.hasOwn(used, unit))) {
      const allowed = `a number, or a table with one of ${unitsOf(rates).join(", ")}`;
      return badValue(["used"], given(input, "used"), allowed);
    }
    return withCandidate(client, policy, (each, its) => each.setUsed(its, key, used));
  },
  false,
);

/** The handlers of calls on a key, by the name of the call, for limiters without a worker. */
export const keyHandlers = { refund: callRefund, peek: callPeek, reset: callReset, endWaits: callEndWaits };

/** How a request names a key, and what counts for it. */
interface TargetFields {
  readonly policy: string;
  readonly key: string;
  /** "": the policy's own figures. Absent: those that the key has. */
  readonly plan?: string | undefined;
  /** As the caller wrote them: a table of anything. */
  readonly limits?: Readonly<Record<string, number>> | undefined;
  readonly group?: string | undefined;
}

/** The policy as the plan of a call sees it. A key with an override keeps that, whatever limits the call brings. */
function withPlan(
  policy: Policy,
  { plan, limits }: TargetFields,
  below: readonly string[],
): Policy | Problem {
  if (policy.plans === undefined) {
    if (limits !== undefined) return badValue([...below, "limits"], limits, NO_LIMITS);
    return plan === undefined || plan === "" ? policy : badValue([...below, "plan"], plan, NO_PLANS);
  }
  if (plan === undefined) return policy;
  const own = policy.plans.get(plan);
  if (own === undefined) {
    const names = [...policy.plans.keys()].filter((name) => name !== "");
    return badValue([...below, "plan"], plan, names.length === 0 ? NO_PLANS : oneOfNames(plan, names));
  }
  return limits === undefined ? own : withLimits(policy, own, limits, [...below, "limits"]);
}

/** The policy as the group of a call sees it. */
function withGroup(
  policy: Policy,
  { id }: Pick<Principal, "id">,
  { plan, group }: TargetFields,
  below: readonly string[],
  isDecided: boolean,
): Policy | Problem {
  if (policy.isFair !== true)
    return group === undefined ? policy : badValue([...below, "group"], group, NO_GROUPS);
  if (group !== undefined) return ofGroup(policy, { group, namedBy: hash(id).toString(36) });
  // Calls without a plan only give back what others took.
  return !isDecided || plan === undefined ? policy : badValue([...below, "group"], group, GROUP_ALLOWED);
}

const NO_GROUPS = "left out: this policy has no fair = true";
const GROUP_ALLOWED = `${requests.GROUP_ALLOWED}: whose call it is, since groups share this policy's limit (fair = true)`;
const NO_PLANS = "left out: this policy has no plans";
const NO_LIMITS = "left out: this policy has no limitInCall";

function withLimits(
  policy: Policy,
  own: Policy,
  limits: Readonly<Record<string, number>>,
  path: readonly string[],
): Policy | Problem {
  const { limitInCall, rules, override, plan = "" } = own;
  if (limitInCall === undefined) return badValue(path, limits, NO_LIMITS);
  const { max, whyNot } = limitInCall;
  const units = unitsOf(limitedRules(rules));
  const allowed = `an integer from 0 to ${max}, the policy's limitInCall.max`;
  const entries = Object.entries(limits);
  const problems = entries.flatMap(([unit, limit]) => {
    const place = [...path, unit];
    if (!units.includes(unit)) return [{ path: place, detail: unknownUnit(unit, units) }];
    return Number.isInteger(limit) && limit >= 0 && limit <= max ? [] : [wrong(place, limit, allowed)];
  });
  if (problems.length > 0) return notAllowed(problems);
  const limited = override === undefined ? namedPlan(policy, withCallLimits(plan, limits)) : own;
  if (limited !== undefined) return limited;
  // The algorithm counts `max`, but another field of the rule may need a larger limit, as `carry` does.
  const unfit = entries.flatMap(([unit, limit]) => {
    const why = whyNot({ [unit]: limit });
    const can = `a limit that the policy's rule can have (${why})`;
    return why === "" ? [] : [wrong([...path, unit], limit, can)];
  });
  return unfit.length > 0 ? notAllowed(unfit) : badValue(path, limits, `other limits (${whyNot(limits)})`);
}
