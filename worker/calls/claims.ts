import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { decisionOf, leaseMissing } from "../../client/read-answer.ts";
import { MAX_UNITS } from "../../core/algorithms/algorithm.ts";
import { type Cost, costOf, type Policy, publicName } from "../../core/policies/policy.ts";
import type { Lease } from "../../core/protocol/answers.ts";
import { type Decision, degradedDecision } from "../../core/protocol/decision.ts";
import type { AcquireParams, HoldParams } from "../../core/protocol/messages.ts";
import { claimId } from "../../core/protocol/names.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import type { Principal } from "../auth/tokens.ts";
import { acquireCandidate, holdCandidate, skipCandidate, withCandidate } from "./candidates.ts";
import {
  AcquireRequest,
  CancelRequest,
  HoldRequest,
  ReleaseRequest,
  RenewRequest,
  SettleRequest,
  SocketRequest,
} from "./schemas/request-schemas.ts";
import {
  blockedDecision,
  call,
  callClaim,
  costProblem,
  findClaim,
  priorityProblem,
  rateProblem,
  type Target,
  type TargetAnswer,
  unitsProblem,
  utilizationProblem,
} from "./target.ts";
import { given, refused } from "./validate.ts";

/** The calls on leases: units that a caller has for a while, and may have to wait for in a queue. */

/** An acquire that keeps to the terms of its policy. */
export interface Acquire extends Target {
  readonly asked: AcquireParams;
}

/**
 * Leases units for a caller who may go at any time.
 *
 * @param signal aborted when the caller has gone: the call leaves the queue, and a lease that was granted is released
 * @param waitUntil keeps that work going after the request has ended
 */
export function callAcquire(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
  signal: AbortSignal,
  waitUntil: (promise: Promise<unknown>) => void,
): Promise<TargetAnswer<Decision> | Problem> {
  const answered = call(client, principal, AcquireRequest, input, async (target, request) => {
    const acquire = acquireOf(client, target, request, given(input, "units"));
    if (acquire instanceof Problem) return acquire;
    const { policy, key } = acquire;
    const blocked = blockedDecision(target);
    if (blocked !== undefined) return client.told(blocked);
    if (request.utilization !== undefined) client.report(policy, key, request.utilization);
    const asked = { ...acquire.asked, ...(request.confirm && { confirmWithinMs: CONFIRM_WITHIN_MS }) };
    const acquired = await client.leases.acquire(policy, key, asked, signal);
    const answer = request.confirm ? toBeConfirmed(acquired) : acquired;
    // No caller will hear of a lease that was granted, so it is released. With an idempotency key it stays, since the
    // call may be made again and then has its lease.
    const isUnknown =
      !(answer instanceof Problem) && answer.reason === "degraded" && answer.lease === undefined;
    const isLost = signal.aborted || isUnknown;
    if (isLost && asked.idempotencyKey === undefined)
      waitUntil(client.leases.release(policy, key, asked.id, { outcome: "ignore" }));
    else acquireCandidate(client, acquire, asked, answer);
    return client.told(answer);
  });
  waitUntil(answered.catch(() => undefined));
  return answered;
}

/** In milliseconds: long for a message between worker and object, short for a slot that nobody uses. */
export const CONFIRM_WITHIN_MS = 5_000;

/** The decision, which says how long its lease lasts unless it is renewed: one that was renewed before lasts longer. */
function toBeConfirmed(answer: Decision | Problem): Decision | Problem {
  if (answer instanceof Problem || answer.lease === undefined) return answer;
  const { expiresAfterMs } = answer.lease;
  if (expiresAfterMs > CONFIRM_WITHIN_MS) return answer;
  return { ...answer, lease: { ...answer.lease, confirmWithinMs: expiresAfterMs } };
}

/** Opens a WebSocket. Its first message is the decision, and the lease lasts while the socket is open. */
export function callSocket(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<TargetAnswer<Response> | Problem> {
  return call(client, principal, SocketRequest, input, (target, request) => {
    const acquire = acquireOf(client, target, request, given(input, "units"));
    if (acquire instanceof Problem) return acquire;
    const { policy, key, asked } = acquire;
    skipCandidate(client, acquire);
    const linked =
      (request.resume === undefined ? blockedProblem(target) : undefined) ??
      linkedOf(client, principal, acquire, request);
    return linked instanceof Problem
      ? linked
      : client.leases.openSocket(policy, key, { ...asked, ...linked, pingWithinMs: request.pingWithinMs });
  });
}

/** For how long a lease outlives its socket or link, and which lease is taken over; or what is wrong with them. */
export function linkedOf(
  client: LimiterClient,
  principal: Principal,
  { policy, key }: Target,
  { graceMs, resume }: { readonly graceMs?: number | undefined; readonly resume?: string | undefined },
): Pick<AcquireParams, "graceMs" | "resume"> | Problem {
  const problem = durationProblem(policy, "graceMs", graceMs);
  if (problem !== undefined) return problem;
  const claim = resume === undefined ? undefined : findClaim(client, principal, "lease", resume);
  if (resume !== undefined && (claim?.policy.name !== policy.name || claim.key !== key))
    return leaseMissing();
  return { graceMs, resume: claim?.secret };
}

/**
 * Checks an acquire against the terms of its policy.
 *
 * @param givenUnits the units before they were parsed
 */
export function acquireOf(
  client: LimiterClient,
  target: Target,
  request: {
    readonly units: Cost;
    readonly ttlMs?: number | undefined;
    readonly waitMs: number;
    readonly priority?: string | undefined;
    readonly utilization?: number | undefined;
    readonly idempotencyKey?: string | undefined;
  },
  givenUnits: unknown,
): Acquire | Problem {
  const { policy } = target;
  const { units, waitMs, priority, idempotencyKey } = request;
  if (policy.lease === undefined)
    return refused(
      ["policy"],
      publicName(policy.name),
      "a policy with a concurrency rule (units of this one are not leased: limit, POST /v1/limit)",
    );
  const { maxWaitMs, ttlMs } = policy.lease;
  if (waitMs > maxWaitMs)
    return refused(["waitMs"], waitMs, `an integer from 0 to ${maxWaitMs}, the policy's maxWait`);
  const problem =
    ttlProblem(policy, request.ttlMs) ??
    leasedProblem(policy, units, givenUnits) ??
    priorityProblem(policy, priority) ??
    utilizationProblem(policy, request.utilization);
  if (problem !== undefined) return problem;
  const id = client.newSecret("lease", policy, target.key);
  const asked = { id, cost: units, ttlMs: request.ttlMs ?? ttlMs, waitMs, priority };
  return { ...target, asked: idempotencyKey === undefined ? asked : { ...asked, idempotencyKey } };
}

/** The problem of units that leave out a rule that leases: there would be no lease. */
function leasedProblem(policy: Policy, units: Cost, givenUnits: unknown): Problem | undefined {
  const problem = unitsProblem(policy, units, givenUnits);
  const none = policy.rules.find((rule) => rule.lease !== undefined && costOf(rule, units) === 0);
  if (problem !== undefined || none === undefined) return problem;
  return refused(["units", none.unit], 0, `an integer from 1 to ${MAX_UNITS}`);
}

/** The problem of a lifetime that is longer than a lease may have. */
function ttlProblem(policy: Policy, ttlMs: number | undefined): Problem | undefined {
  return durationProblem(policy, "ttlMs", ttlMs);
}

/** The problem of a duration that is longer than a lease may live. */
function durationProblem({ lease }: Policy, field: string, ms: number | undefined): Problem | undefined {
  const mostMs = lease?.maxTtlMs ?? 0;
  if (ms === undefined || ms <= mostMs) return undefined;
  return refused([field], ms, `an integer from 1 to ${mostMs}, the policy's maxTtl`);
}

/** A socket is opened for who may wait. Who is blocked is told so by the status. */
function blockedProblem(target: Target): Problem | undefined {
  const blocked = blockedDecision(target);
  if (blocked === undefined) return undefined;
  return new Problem(PROBLEMS.forbidden, `the override ${JSON.stringify(blocked.override)} blocks this key`);
}

/* The calls that renew and end leases. */

/** Moves a lease's end to `ttlMs` from now. */
export function callRenew(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<Lease | Problem> {
  return callClaim(client, principal, "lease", RenewRequest, input, async (claim, { ttlMs }) => {
    const { policy, key, secret } = claim;
    const problem = ttlProblem(policy, ttlMs);
    if (problem === undefined)
      withCandidate(claim.client, policy, (beside, tried) => {
        const mostMs = tried.lease?.maxTtlMs ?? 0;
        return beside.leases.renew(tried, key, secret, ttlMs === undefined ? ttlMs : Math.min(ttlMs, mostMs));
      });
    const answer = problem ?? (await claim.client.leases.renew(policy, key, secret, ttlMs));
    return answer instanceof Problem ? answer : publicLease(claim, answer);
  });
}

/** Ends a lease, as the caller reports if it does; `undefined`: done. */
export function callRelease(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<Problem | undefined> {
  return callClaim(client, principal, "lease", ReleaseRequest, input, (claim, { outcome, durationMs }) => {
    const { policy, key, secret } = claim;
    const report = { outcome, durationMs };
    withCandidate(claim.client, policy, (beside, tried) => beside.leases.release(tried, key, secret, report));
    return claim.client.leases.release(policy, key, secret, report);
  });
}

function publicLease(place: { policy: Policy; key: string }, { id, ...lease }: Lease): Lease {
  return { id: claimId("lease", { policy: place.policy.name, key: place.key }, id), ...lease };
}

/* The calls on holds: units set apart, and settled when it is known how many were used. */

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
