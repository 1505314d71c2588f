import type { Lease, RuleDecision } from "../../core/protocol/answers.ts";
import type { LeaseHandle, LeaseReport } from "../../core/protocol/calls.ts";
import type { AllDecisions, AnyDecision, Decision, KeyReport } from "../../core/protocol/decision.ts";
import type {
  PolicyList,
  ReservationsMessage,
  ReservationsReply,
} from "../../core/protocol/reservation-messages.ts";
import type { CatalogService } from "./catalog-service.ts";
import type { CallFields, Cost, PolicyName, PriorityName } from "./policy-types.ts";

export type * from "./policy-types.ts";

/**
 * The deciding calls of the service binding. Each throws a `LimiterError` if the limiter refuses the call,
 * and any other error if there is no answer.
 */
export interface LimiterCalls {
  /** Takes a cost (default 1) if it fits, waiting up to `waitMs`. With `force` it is always taken. */
  limit(request: LimitRequest): Promise<Decision>;
  /** Takes the costs of up to 16 checks, all or none; without `atomic` those of up to 100, each by itself. */
  limitAll(request: LimitAllRequest): Promise<AllDecisions>;
  /** Takes the cost of the first of up to 16 checks that admits, and of no other. */
  limitAny(request: LimitAnyRequest): Promise<AnyDecision>;
  /** Returns units, once for each idempotency key. */
  refund(request: RefundRequest): Promise<Decision>;
  /** Holds units until their use is known: `settle`, or `cancel` if none were used. */
  hold(request: HoldRequest): Promise<Decision>;
  /** Ends a hold with the units that were used. */
  settle(request: { readonly id: string; readonly used: Cost }): Promise<Decision>;
  /** Ends an unused hold. */
  cancel(request: { readonly id: string }): Promise<void>;
  /** Leases units, waiting up to `waitMs` in the queue. */
  acquire(request: AcquireRequest & { readonly detached?: boolean }): Promise<Decision>;
  /** Moves a lease's end to `ttlMs` milliseconds from now, by default its first ttl. */
  renew(request: { readonly id: string; readonly ttlMs?: number }): Promise<Lease>;
  /** Ends a lease, and may report how the call went. The next caller in the queue gets its units at once. */
  release(request: { readonly id: string } & LeaseReport): Promise<void>;
  /** The decision for a cost of 1, without taking, and the counts of held and waiting units. */
  peek(request: PeekRequest): Promise<KeyReport>;
  /** Resets the key to an untouched quota. */
  reset(request: KeyRequest): Promise<void>;
  /** Ends the waits of the key's callers: each that cannot pass now is denied with the reason `wait-timeout`. */
  endWaits(request: KeyRequest): Promise<void>;
  /** The policies that the caller may use. */
  policies(): Promise<PolicyList>;
  /** Holds units of many keys in the caller's own process: the message of `POST /v1/reservations`. */
  reserve(request: ReservationsMessage): Promise<ReservationsReply>;
}

/** A kind of field in an answer: see `KINDS` in http.ts. */
type FieldKind = "text" | "flag" | "number" | "choice" | "tables" | "decisions" | "answers" | "descriptions";

/** How a call is made: over HTTP, and by all clients. */
export interface Address {
  readonly method: "GET" | "POST" | "DELETE";
  readonly path: string;
  /** What the answer must be, or the fields that it must have. */
  readonly shape: "nothing" | "decision" | Readonly<Record<string, FieldKind>>;
  /** What the call is on, if every client makes it in the same way (`UniformClient`). Absent: each writes it out. */
  readonly on?: "key" | "hold" | "lease";
  /** If the limiter does not answer, the policy's `onFailure` decides. */
  readonly mayDegrade?: true;
  /** Fields of the request that are sent in the query, of a call without a body. */
  readonly query?: readonly string[];
  /** Nothing has to be ended that a late answer brings, as a lease has. */
  readonly isOnlyRead?: boolean;
}

/** How each call is made: for the worker's routes, the OpenAPI document and all clients. */
export const ADDRESSES = {
  limit: { method: "POST", path: "/v1/limit", shape: "decision", mayDegrade: true, isOnlyRead: true },
  limitAll: {
    method: "POST",
    path: "/v1/limit/all",
    shape: { success: "flag", decisions: "decisions" },
    mayDegrade: true,
  },
  limitAny: {
    method: "POST",
    path: "/v1/limit/any",
    shape: { success: "flag", chosen: "choice", decisions: "decisions" },
    mayDegrade: true,
  },
  refund: { method: "POST", path: "/v1/refund", shape: "decision", on: "key" },
  hold: { method: "POST", path: "/v1/holds", shape: "decision", on: "key", mayDegrade: true },
  settle: { method: "POST", path: "/v1/holds/:id/settle", shape: "decision", on: "hold" },
  cancel: { method: "DELETE", path: "/v1/holds/:id", shape: "nothing", on: "hold" },
  acquire: { method: "POST", path: "/v1/leases", shape: "decision", mayDegrade: true },
  renew: {
    method: "POST",
    path: "/v1/leases/:id/renew",
    shape: { id: "text", expiresAfterMs: "number" },
    on: "lease",
  },
  release: { method: "POST", path: "/v1/leases/:id/release", shape: "nothing", on: "lease" },
  peek: {
    method: "GET",
    path: "/v1/policies/:policy/keys/:key",
    shape: "decision",
    on: "key",
    query: ["plan", "group", "waitFor", "waitMs"],
    isOnlyRead: true,
  },
  reset: {
    method: "DELETE",
    path: "/v1/policies/:policy/keys/:key",
    shape: "nothing",
    on: "key",
    query: ["plan"],
  },
  endWaits: {
    method: "DELETE",
    path: "/v1/policies/:policy/keys/:key/waiters",
    shape: "nothing",
    on: "key",
    query: ["plan"],
  },
  policies: { method: "GET", path: "/v1/policies", shape: { policies: "tables" }, isOnlyRead: true },
  reserve: {
    method: "POST",
    path: "/v1/reservations",
    shape: { answers: "answers", policies: "descriptions" },
  },
} as const satisfies Readonly<Record<keyof LimiterCalls, Address>>;

/** The service binding. */
export interface LimiterService extends LimiterCalls {
  /** Leases units within `waitMs`. The lease ends with its caller, unless it is detached or has a grace. */
  acquire(request: AcquireRequest & { readonly detached?: boolean }): Promise<BoundGrant>;
  /** Sets what the key has used: more than the limit is a debt. Holds and leases stay. */
  setUsed(request: KeyRequest & { readonly used: Cost }): Promise<KeyReport>;
  /** A page of the keys of which something is stored, under a policy with a number of objects. */
  keys(request: KeyRange & { readonly limit?: number }): Promise<KeyList>;
  countKeys(request: KeyRange): Promise<KeyCount>;
  catalog(): Promise<CatalogService>;
}

/** A decision on a lease that ends with its caller, or `using`. The methods are present with such a lease. */
export interface BoundGrant extends Decision, LeaseHandle, Disposable {}

export type CallRequests = {
  readonly [Name in keyof LimiterCalls]: Name extends "policies" ? object : Parameters<LimiterCalls[Name]>[0];
};

export type CallAnswers = {
  readonly [Name in keyof LimiterCalls]: Awaited<ReturnType<LimiterCalls[Name]>>;
};

export interface LimiterTransport {
  /** @param until aborted when the caller stops waiting, or how long it waits, in milliseconds */
  call<Name extends keyof LimiterCalls>(
    name: Name,
    request: CallRequests[Name],
    until?: Signal | number,
  ): Promise<CallAnswers[Name]>;
  /** Aborts requests whose callers have stopped waiting. */
  close?(): void;
}

/** A key. `policy` is optional if the limiter was created with one. */
export type KeyRequest = Key & CallFields<"neither", "plan">;

interface Key {
  readonly key: string;
}

interface Once extends Key {
  readonly idempotencyKey?: string;
}

export type LimitRequest = Once &
  CallFields<"takes", "plan" | "priority" | "cost" | "limits" | "group"> &
  LimitOptions;

interface LimitOptions {
  /** Whether the decision carries a `charge`, which a refund names. */
  readonly refundable?: boolean;
  readonly waitMs?: number;
  /** The units are taken even if they do not fit. */
  readonly force?: boolean;
  /** Utilization of the caller's machine, from 0 to 1. */
  readonly utilization?: number;
}

/** All checks pass or nothing is taken, unless `atomic` is false. */
export interface LimitAllRequest {
  readonly checks: readonly (Key & CallFields<"takes", "plan" | "cost" | "limits" | "group">)[];
  readonly atomic?: boolean;
  readonly priority?: PriorityName;
  readonly idempotencyKey?: string;
}

/** The checks are tried in their order: the first that admits is charged. */
export interface LimitAnyRequest {
  readonly checks: LimitAllRequest["checks"];
  readonly priority?: PriorityName;
  /** Whether the decision of the chosen check carries a `charge`, which a refund names. */
  readonly refundable?: boolean;
  readonly idempotencyKey?: string;
}

export type RefundRequest = Key &
  CallFields<"takes", "plan", "units"> & { readonly idempotencyKey: string; readonly charge?: string };

export type HoldRequest = Once &
  CallFields<"takes", "plan" | "priority" | "limits" | "group", "units"> & { readonly ttlMs?: number };

export type AcquireRequest = Once &
  CallFields<"leases", "plan" | "priority" | "limits" | "group" | "units"> &
  AcquireOptions;

interface AcquireOptions {
  readonly ttlMs?: number;
  /** The longest wait in the queue, in milliseconds. */
  readonly waitMs?: number;
  readonly utilization?: number;
  /** Service binding only: milliseconds for which the lease outlives its request or link. */
  readonly graceMs?: number;
  /** Service binding only: the id of a lease of this policy and key to take over. */
  readonly resume?: string;
}

export type PeekRequest = KeyRequest & {
  /** Whose part the decision says, under a policy with `fair`. */
  readonly group?: string;
  /** The answer comes when the key has no leases, or after `waitMs` milliseconds. */
  readonly waitFor?: "idle";
  readonly waitMs?: number;
};

/** Keys of a policy that begin with `prefix`; `cursor`, from an answer, asks for the next page. */
export interface KeyRange extends Listed {
  readonly policy?: PolicyName;
  readonly prefix?: string;
}

interface Listed {
  readonly cursor?: string;
}

export interface KeyList extends Listed {
  readonly keys: readonly ListedKey[];
}

export interface ListedKey extends Pick<RuleDecision, "limit" | "remaining" | "resetAfterMs"> {
  readonly key: string;
  readonly outstanding: number;
  readonly holds: number;
  readonly leases: number;
}

export interface KeyCount extends Listed {
  readonly count: number;
}

/** An `AbortSignal`, whose type differs or is missing on some platforms. */
export interface Signal {
  readonly aborted: boolean;
  readonly reason: unknown;
  throwIfAborted(): void;
  addEventListener(type: "abort", listener: () => void, options?: { readonly once?: boolean }): void;
  removeEventListener(type: "abort", listener: () => void): void;
}

/** Aborting throws the signal's reason. */
export interface Abortable {
  readonly signal?: Signal | undefined;
}
