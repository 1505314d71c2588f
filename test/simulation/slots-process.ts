/** A process that leases slots by its own client, in a random history of leases (slots.ts). */
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { RemoteLimiter } from "../../client/remote/remote-limiter.ts";
import type { LimiterTransport } from "../../client/transports/transport.ts";
import type { Time } from "../../core/clock.ts";
import { DEFAULT_BOUNDS, type Policy } from "../../core/policies/policy.ts";
import type { Lease } from "../../core/protocol/answers.ts";
import type { AcquireParams } from "../../core/protocol/calls.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { claimId, readClaimId } from "../../core/protocol/names.ts";
import { orThrow, Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import type { ReservationsMessage, ReservationsReply } from "../../core/protocol/reservation-messages.ts";
import { SCOPES } from "../../worker/auth/tokens.ts";
import { callReserve } from "../../worker/calls/reservations.ts";
import type { SlotsPlan } from "./slots-plan.ts";

/** The calls on leases of one key, in an isolate or a process. Leases are named by their secrets. */
export interface Leasing {
  acquire(call: AcquireParams, gone: AbortSignal): Promise<Decision | Problem>;
  release(id: string): Promise<unknown>;
  renew(id: string, ttlMs: number): Promise<Lease | Problem>;
}

/** An isolate, or a process with a client of its own. */
export interface Holder {
  readonly leasing: Leasing;
  readonly isProcess: boolean;
  /** By how much its clock is ahead. */
  aheadMs: number;
  stoppedUntilMs: number;
  isDead: boolean;
  frozenUntilMs: number;
  cutUntilMs: number;
}

export interface MadeCall {
  readonly id: string;
  readonly sentAtMs: number;
  /** The latest token before it was sent. */
  readonly before: number;
  readonly heldForMs: number;
  readonly ttlMs: number;
  readonly cost: number;
  readonly gone: AbortSignal;
}

/** What a caller trusts. */
export interface Trusted {
  /** Whose callers do nothing while it stands still. */
  readonly by: Holder;
  readonly isInProcess: boolean;
  readonly units: number;
  readonly sentAtMs: number;
  untilMs: number;
}

export function inIsolate({ claims }: LimiterClient, policy: Policy, key: string): Leasing {
  return {
    acquire: async (call, gone) => await claims.acquire(policy, key, call, gone),
    release: async (id) => await claims.release(policy, key, id, { outcome: "ignore" }),
    renew: (id, ttlMs) => claims.renew(policy, key, id, ttlMs),
  };
}

/** Makes one call over a network. */
type Send = (make: () => Promise<unknown>) => Promise<unknown>;

const CALLER = JSON.stringify({ token: "t" });
const PRINCIPAL = { title: "t", id: CALLER, bounds: DEFAULT_BOUNDS, scopes: SCOPES };

async function reserve(client: LimiterClient, message: ReservationsMessage): Promise<ReservationsReply> {
  return orThrow(await callReserve({ client, principal: PRINCIPAL }, message));
}

const OLDER = "-older";

/** The same by an isolate of the version before slots: it refuses what it cannot read, and describes policies without them. */
async function reserveOlder(client: LimiterClient, message: ReservationsMessage): Promise<ReservationsReply> {
  const { calls, known = {} } = message;
  if (calls.some(({ slots }) => slots !== undefined))
    throw new Problem(PROBLEMS.notAllowed, "slots is not a field of a call").toError();
  const its = Object.entries(known).flatMap(([name, version]) =>
    version.endsWith(OLDER) ? [[name, version.slice(0, -OLDER.length)] as const] : [],
  );
  const { policies, ...reply } = await reserve(client, { ...message, known: Object.fromEntries(its) });
  const described = Object.entries(policies).map(
    ([name, { slots: __, version, ...policy }]) => [name, { ...policy, version: version + OLDER }] as const,
  );
  return { ...reply, policies: Object.fromEntries(described) };
}

interface Way {
  readonly send: Send;
  readonly time: Time;
  readonly random: () => number;
}

/** @param workerOf draws the isolate of the limiter that answers a call */
export function inProcess(
  workerOf: () => LimiterClient,
  { older = 0 }: SlotsPlan,
  policy: Policy,
  key: string,
  { send, time, random }: Way,
): Leasing {
  const answer = async (name: string, request: object): Promise<unknown> => {
    const client = workerOf().for(CALLER, DEFAULT_BOUNDS);
    const message = JSON.parse(JSON.stringify(request)) as ReservationsMessage;
    if (name === "reserve") return await (random() < older ? reserveOlder : reserve)(client, message);
    const { units = 1, ttlMs = 0, waitMs = 0, id = "" } = request as Record<string, never>;
    const { secret = "" } = readClaimId("lease", id) ?? {};
    if (name === "renew") return orThrow(await client.claims.renew(policy, key, secret, ttlMs));
    if (name === "release") return orThrow(await client.claims.release(policy, key, secret));
    const asked = { id: client.newSecret("lease", policy, key), cost: units, ttlMs, waitMs };
    return orThrow(await client.claims.acquire(policy, key, asked));
  };
  const call = (name: string, request: object) => send(() => answer(name, request));
  const transport = { call: call as LimiterTransport["call"] };
  const inBackground = (work: Promise<unknown>) => void work.catch(() => undefined);
  const limiter = new RemoteLimiter({ transport, time, inBackground });
  const named = { policy: policy.name, key };
  const idOf = (secret: string) => ({ id: claimId("lease", named, secret) });
  const asProblem = (error: unknown) => new Problem(PROBLEMS.unavailable, String(error));
  return {
    acquire: ({ cost: units, ttlMs, waitMs }, signal) =>
      limiter.acquire({ ...named, units, ttlMs, waitMs, signal }).catch(asProblem),
    release: (secret) => limiter.release(idOf(secret)).catch(asProblem),
    renew: (secret, ttlMs) => limiter.renew({ ...idOf(secret), ttlMs }).catch(asProblem),
  };
}
