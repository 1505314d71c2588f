/** The calls on holds and leases. */
import type * as v from "valibot";
import { plainCall } from "../../client/local-limiter.ts";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { blockedDecision, decisionOf, notFound } from "../../client/read-answer.ts";
import { MAX_UNITS } from "../../core/algorithms/algorithm.ts";
import { normaliseKey } from "../../core/catalog/keys.ts";
import { readClockMs } from "../../core/clock.ts";
import { type Cost, costOf, type Policy, publicName } from "../../core/policies/policy.ts";
import type { AcquireParams, HoldParams } from "../../core/protocol/calls.ts";
import { type Decision, degradedDecision } from "../../core/protocol/decision.ts";
import { claimId, type ClaimKind, isKeySized, readClaimId } from "../../core/protocol/names.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import { catalogUnreached, CLOSE_DENIED, Problem } from "../../core/protocol/problems.ts";
import { clip } from "../../core/violations.ts";
import { keyProblem, mayUse } from "../auth/tokens.ts";
import { acquireCandidate, holdCandidate, skipCandidate, withCandidate } from "./candidates.ts";
import {
  type CallContext,
  costProblem,
  maxWaitProblem,
  onKey,
  priorityProblem,
  rateProblem,
  unitsProblem,
  utilizationProblem,
} from "./limits.ts";
import * as requests from "./schemas/request-schemas.ts";
import { parse, badValue, type Target, unitsOf } from "./validate.ts";

/** A hold or lease of a key. Its secret is the unguessable part of its id. */
interface ClaimTarget extends Target {
  readonly secret: string;
  /** Ends or renews it: see `LimiterClient.endingBy`. */
  readonly client: LimiterClient;
}

function onClaim<Schema extends v.GenericSchema<unknown, { id: string }>, Answer>(
  kind: ClaimKind,
  schema: Schema,
  answerOf: (
    claim: ClaimTarget,
    request: v.InferOutput<Schema>,
    input: unknown,
  ) => MaybePromise<Answer | Problem>,
  plain: (input: unknown) => v.InferOutput<Schema> | undefined = () => undefined,
): (context: CallContext, input: unknown) => MaybePromise<Answer | Problem> {
  return (context, input) => {
    const request = plain(input) ?? parse(schema, input);
    if (request instanceof Problem) return request;
    const claim = findClaim(context, kind, request.id) ?? claimMissing(context, kind, request.id);
    return claim instanceof Problem ? claim : answerOf(claim, request, input);
  };
}

/** The claim of an id; `undefined`: malformed, or of a policy or key that this caller may not use. */
export function findClaim(context: CallContext, kind: ClaimKind, id: string): ClaimTarget | undefined {
  const { client, principal } = context;
  const claim = readClaimId(kind, id);
  const policy = claim && client.policies.get(claim.policy);
  if (claim === undefined || policy === undefined) return undefined;
  if (!mayUse(principal, publicName(policy.name))) return undefined;
  // An id can be forged, so its key has to pass all checks of a call's key.
  const { key, secret } = claim;
  if (key === "" || !isKeySized(key) || normaliseKey(policy, key) !== key) return undefined;
  if (keyProblem(principal, key) !== undefined) return undefined;
  const its = policy.overrides?.find(key, readClockMs()) ?? policy;
  return { policy: its, key, secret, client: client.endingBy(kind, its, key, secret) };
}

/** The problem of an unknown id. A caller with rights to its policy learns if that was removed. */
function claimMissing({ client, principal }: CallContext, kind: ClaimKind, id: string): Problem {
  const name = readClaimId(kind, id)?.policy;
  const isGone = name !== undefined && client.policies.get(name) === undefined;
  if (!isGone || !mayUse(principal, publicName(name))) return notFound(kind);
  const shown = JSON.stringify(clip(publicName(name)));
  if (!client.policies.isComplete) return catalogUnreached(`the policy ${shown}`);
  return notFound(kind, `it is of the policy ${shown}, which this deployment does not have (any more)`);
}

export interface Acquire extends Target {
  readonly params: AcquireParams;
}

interface AcquireContext extends CallContext {
  readonly waitUntil: (work: Promise<unknown>) => void;
}

/** In milliseconds: long for a message between worker and object, short for an unused slot. */
export const CONFIRM_WITHIN_MS = 5_000;

/** Leases units. If the caller leaves, the call leaves the queue, and a granted lease is released. */
export function acquireUnits(
  target: Target,
  request: AcquireFields & Pick<Fields, "confirm">,
  { client, request: http, waitUntil }: AcquireContext,
  input: unknown,
): MaybePromise<Decision | Problem> {
  const acquiring = acquireOf(client, target, request, input);
  if (acquiring instanceof Problem) return acquiring;
  const { policy, key } = acquiring;
  const blocked = blockedDecision(policy, key);
  if (blocked !== undefined) return client.recordDecision(blocked);
  if (request.utilization !== undefined) client.report(policy, key, request.utilization);
  const brief = request.confirm && { confirmWithinMs: CONFIRM_WITHIN_MS };
  const params = { ...acquiring.params, ...brief };
  // The runtime has to make the signal, so a call that does not wait asks for it only when it has been answered.
  const signal = params.waitMs > 0 || policy.pool !== undefined ? http?.signal : undefined;
  const answered = (acquired: Decision | Problem) => {
    const answer = request.confirm ? toBeConfirmed(acquired) : acquired;
    // The caller never learns of the lease. With an idempotency key, a repeated call finds it.
    const isUnknown =
      !(answer instanceof Problem) && answer.reason === "degraded" && answer.lease === undefined;
    const isUnheard = isUnknown || http?.signal.aborted === true;
    if (isUnheard && params.idempotencyKey === undefined) {
      const { lease } = answer as Partial<Decision>;
      // A lease of the isolate's own has another id than was asked for.
      const id = (lease && readClaimId("lease", lease.id)?.secret) ?? params.id;
      const released = client.claims.release(policy, key, id, { outcome: "ignore" });
      if (released !== undefined) waitUntil(released);
    } else acquireCandidate(client, acquiring, params, answer);
    return client.recordDecision(answer);
  };
  const acquired = client.claims.acquire(policy, key, params, signal);
  if (!(acquired instanceof Promise)) return answered(acquired);
  const answering = acquired.then(answered);
  waitUntil(answering.catch(() => undefined));
  return answering;
}

export const callAcquire = onKey(requests.AcquireRequest, acquireUnits, true, plainAcquire);

/** One without a wait and a time of its own, as most are: a schema would cost as much as the lease. */
export function plainAcquire(input: unknown) {
  const call = plainCall(input, undefined, "units");
  return call && { ...call, units: call.cost, waitMs: 0, confirm: false };
}

/** A call with the id alone, as most releases are. */
function plainId(input: unknown): { readonly id: string } | undefined {
  if (typeof input !== "object" || input === null) return undefined;
  for (const field in input) if (field !== "id") return undefined;
  const { id } = input as { readonly id?: unknown };
  return typeof id === "string" ? { id } : undefined;
}

/** The decision with the lease's time until it has to be renewed: longer if it was renewed before. */
function toBeConfirmed(answer: Decision | Problem): Decision | Problem {
  if (answer instanceof Problem || answer.lease === undefined) return answer;
  const { expiresAfterMs } = answer.lease;
  if (expiresAfterMs > CONFIRM_WITHIN_MS) return answer;
  return { ...answer, lease: { ...answer.lease, confirmWithinMs: expiresAfterMs } };
}

/** Opens a WebSocket. Its first message is the decision, and the lease lasts while the socket is open. */
export const callSocket = onKey(requests.SocketRequest, (target, request, context, input) => {
  const { client } = context;
  const acquiring = acquireOf(client, target, request, input);
  if (acquiring instanceof Problem) return acquiring;
  const { policy, key, params } = acquiring;
  skipCandidate(client, acquiring);
  const blocked = request.resume === undefined ? blockedDecision(policy, key) : undefined;
  if (blocked !== undefined) return deniedSocket(blocked);
  const linked = linkedOf(context, acquiring, request);
  if (linked instanceof Problem) return linked;
  return client.claims.openSocket(policy, key, { ...params, ...linked, pingWithinMs: request.pingWithinMs });
});

/** A socket of a call that is denied before it is sent to the object. */
function deniedSocket(decision: Decision): Response {
  const { 0: client, 1: socket } = new WebSocketPair();
  socket.accept();
  socket.send(JSON.stringify(decision));
  socket.close(CLOSE_DENIED, decision.reason);
  return new Response(null, { status: 101, webSocket: client });
}

/** The grace after the socket or link ends, and the lease to take over; or what is wrong with them. */
export function linkedOf(
  context: CallContext,
  { policy, key }: Target,
  { graceMs, resume }: { readonly graceMs?: number | undefined; readonly resume?: string | undefined },
): Pick<AcquireParams, "graceMs" | "resume"> | Problem {
  const problem = ttlProblem(policy, graceMs, "graceMs");
  if (problem !== undefined) return problem;
  const claim = resume === undefined ? undefined : findClaim(context, "lease", resume);
  if (resume !== undefined && (claim?.policy.name !== policy.name || claim.key !== key))
    return notFound("lease");
  return { graceMs, resume: claim?.secret };
}

type Fields = v.InferOutput<typeof requests.AcquireRequest>;
type AcquireFields = Pick<Fields, "units" | "waitMs"> & Partial<Fields>;

/** The acquire, or what its policy does not allow. @param input the request before it was parsed */
export function acquireOf(
  client: LimiterClient,
  target: Target,
  { units, ttlMs, waitMs, priority, utilization, idempotencyKey }: AcquireFields,
  input: unknown,
): Acquire | Problem {
  const { policy } = target;
  const { lease } = policy;
  if (lease === undefined)
    return badValue(
      ["policy"],
      publicName(policy.name),
      "a policy with a concurrency rule (units of this one are not leased: limit, POST /v1/limit)",
    );
  const problem =
    maxWaitProblem(waitMs, lease.maxWaitMs) ??
    ttlProblem(policy, ttlMs) ??
    leasedProblem(policy, units, input) ??
    priorityProblem(policy, priority) ??
    utilizationProblem(policy, utilization);
  if (problem !== undefined) return problem;
  const id = client.newSecret("lease", policy, target.key);
  const params = { id, cost: units, ttlMs: ttlMs ?? lease.ttlMs, waitMs, priority };
  return { ...target, params: idempotencyKey === undefined ? params : { ...params, idempotencyKey } };
}

/** The problem of units without one of a leasing rule: there would be no lease. */
function leasedProblem(policy: Policy, units: Cost, input: unknown): Problem | undefined {
  const problem = unitsProblem(policy, units, input);
  const none = policy.rules.find((rule) => rule.lease !== undefined && costOf(rule, units) === 0);
  if (problem !== undefined || none === undefined) return problem;
  return badValue(["units", none.unit], 0, `an integer from 1 to ${MAX_UNITS}`);
}

function ttlProblem({ lease }: Policy, ms: number | undefined, field = "ttlMs"): Problem | undefined {
  const maxMs = lease?.maxTtlMs ?? 0;
  if (ms === undefined || ms <= maxMs) return undefined;
  return badValue([field], ms, `an integer from 1 to ${maxMs}, the policy's maxTtl`);
}

export const callRenew = onClaim("lease", requests.RenewRequest, async (claim, { ttlMs }) => {
  const { policy, key, secret, client } = claim;
  const problem = ttlProblem(policy, ttlMs);
  if (problem !== undefined) return problem;
  const answer = await withCandidate(client, policy, (each, its) => {
    const maxMs = its.lease?.maxTtlMs ?? 0;
    return each.claims.renew(its, key, secret, ttlMs === undefined ? ttlMs : Math.min(ttlMs, maxMs));
  });
  if (answer instanceof Problem) return answer;
  const { id, ...lease } = answer;
  return { id: claimId("lease", { policy: policy.name, key }, id), ...lease };
});

export const callRelease = onClaim(
  "lease",
  requests.ReleaseRequest,
  (claim, { outcome, durationMs }) => {
    const { policy, key, secret, client } = claim;
    const report = { outcome, durationMs };
    return withCandidate(client, policy, (each, its) => each.claims.release(its, key, secret, report));
  },
  plainId,
);

export const callHold = onKey(requests.HoldRequest, async ({ policy, key }, request, { client }, input) => {
  const { units, ttlMs, priority, idempotencyKey } = request;
  const problem =
    rateProblem(policy, units) ?? unitsProblem(policy, units, input) ?? priorityProblem(policy, priority);
  if (problem !== undefined) return problem;
  const blocked = blockedDecision(policy, key);
  if (blocked !== undefined) return client.recordDecision(blocked);
  const params: HoldParams = {
    id: client.newSecret("hold", policy, key),
    cost: units,
    ttlMs,
    priority,
    ...(idempotencyKey !== undefined && { idempotencyKey }),
  };
  const held = await client.claims.hold(policy, key, params);
  const answer = held === undefined ? degradedDecision(policy, key) : decisionOf(policy, key, held);
  holdCandidate(client, { policy, key }, params, answer);
  return client.recordDecision(answer);
});

export const callSettle = onClaim("hold", requests.SettleRequest, async (claim, { used }, input) => {
  const { policy, key, secret, client } = claim;
  const problem = costProblem(policy, ["used"], used, input);
  const counted = unitsOf(policy.rules);
  const had = typeof used === "number" ? [] : Object.keys(used).filter((unit) => !counted.includes(unit));
  if (problem !== undefined && had.length === 0) return problem;
  const settle = (each: LimiterClient, its: Policy) =>
    each.claims.settle(its, key, { id: secret, used, ...(each === client && had.length > 0 && { had }) });
  const answer = await withCandidate(client, policy, settle);
  if (!(answer instanceof Problem)) return { policy, answer };
  // Only the object knows whether the hold was taken with these units.
  return answer.status === 404 ? (problem ?? answer) : answer;
});

export const callCancel = onClaim("hold", requests.CancelRequest, async ({ policy, key, secret, client }) => {
  const answer = await withCandidate(client, policy, (each, its) => each.claims.cancel(its, key, secret));
  return answer instanceof Problem ? answer : undefined;
});

/** The handlers of calls on holds and leases, by the name of the call, for limiters without a worker. */
export const claimHandlers = {
  hold: callHold,
  settle: callSettle,
  cancel: callCancel,
  renew: callRenew,
  release: callRelease,
};
