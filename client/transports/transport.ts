import type { Cost } from "../../core/policies/policy.ts";
import type { Lease } from "../../core/protocol/answers.ts";
import type { AllDecisions, Decision, KeyReport } from "../../core/protocol/decision.ts";
import type { LeaseReport } from "../../core/protocol/messages.ts";
import { LimiterError } from "../../core/protocol/problems.ts";
import type {
  PolicyList,
  ReservationsMessage,
  ReservationsReply,
} from "../../core/protocol/reservation-messages.ts";
import type { CatalogService } from "./catalog-service.ts";

/**
 * The calls of the service binding that decide. Each throws a `LimiterError` when the limiter refuses the call, and any
 * other error when there is no answer.
 */
export interface LimiterCalls {
  /** Takes a cost (by default 1) if it fits, waiting up to `waitMs` for its turn. With `force` it is always taken. */
  limit(asked: LimitRequest): Promise<Decision>;
  /** Takes the costs of up to 16 checks, of all or of none. Without `atomic`, of up to 100, each by itself. */
  limitAll(asked: LimitAllRequest): Promise<AllDecisions>;
  /** Gives units back, once for each idempotency key. */
  refund(asked: RefundRequest): Promise<Decision>;
  /** Sets units apart until it is known how many were used: `settle`, or `cancel` when none were. */
  hold(asked: HoldRequest): Promise<Decision>;
  /** Ends a hold with the units really used. */
  settle(asked: { readonly id: string; readonly used: Cost }): Promise<Decision>;
  /** Ends a hold of which nothing was used. */
  cancel(asked: { readonly id: string }): Promise<void>;
  /** Leases units, waiting up to `waitMs` in the queue. */
  acquire(asked: AcquireRequest & { readonly detached?: boolean }): Promise<Decision>;
  /** Moves a lease's end to `ttlMs` milliseconds from now; by default as long as it was asked for at first. */
  renew(asked: { readonly id: string; readonly ttlMs?: number }): Promise<Lease>;
  /** Ends a lease, and may report how the call went. The next caller in the queue gets its units at once. */
  release(asked: { readonly id: string } & LeaseReport): Promise<void>;
  /** What a cost of 1 would be answered, and how many units are held and waited for. Takes nothing. */
  peek(asked: PeekRequest): Promise<KeyReport>;
  /** Makes the key as new. */
  reset(asked: KeyRequest): Promise<void>;
  /** The policies that the caller may use. */
  policies(): Promise<PolicyList>;
  /** Holds units of many keys in the caller's own process: the message of `POST /v1/reservations`. */
  reserve(asked: ReservationsMessage): Promise<ReservationsReply>;
}

/** How a call is made over HTTP. */
export interface Address {
  readonly method: "GET" | "POST" | "DELETE";
  /** Fields of the call that stand in the path have a colon. */
  readonly path: string;
  /** What is answered. */
  readonly shape: Shape;
  /** Fields that stand in the query, of a call that has no body. */
  readonly query?: readonly string[];
  /** A late answer is of no use. */
  readonly isOnlyRead?: true;
}

/** How each call is made over HTTP. The worker's routes, the OpenAPI document and the client over HTTP read it. */
export const ADDRESSES = {
  limit: { method: "POST", path: "/v1/limit", shape: "decision", isOnlyRead: true },
  limitAll: { method: "POST", path: "/v1/limit/all", shape: "decisions" },
  refund: { method: "POST", path: "/v1/refund", shape: "decision" },
  hold: { method: "POST", path: "/v1/holds", shape: "decision" },
  settle: { method: "POST", path: "/v1/holds/:id/settle", shape: "decision" },
  cancel: { method: "DELETE", path: "/v1/holds/:id", shape: "nothing" },
  acquire: { method: "POST", path: "/v1/leases", shape: "decision" },
  renew: { method: "POST", path: "/v1/leases/:id/renew", shape: "lease" },
  release: { method: "POST", path: "/v1/leases/:id/release", shape: "nothing" },
  peek: {
    method: "GET",
    path: "/v1/policies/:policy/keys/:key",
    shape: "decision",
    query: ["waitFor", "waitMs"],
    isOnlyRead: true,
  },
  reset: { method: "DELETE", path: "/v1/policies/:policy/keys/:key", shape: "nothing" },
  policies: { method: "GET", path: "/v1/policies", shape: "policies", isOnlyRead: true },
  reserve: { method: "POST", path: "/v1/reservations", shape: "reservations" },
} as const satisfies Readonly<Record<keyof LimiterCalls, Address>>;

/** All calls of the service binding. */
export interface LimiterService extends LimiterCalls {
  /** What changes at run time: policies, overrides, tokens. */
  catalog(): Promise<CatalogService>;
}

/** The calls, with a signal that is aborted when the caller stops waiting. */
type Endable = {
  readonly [Name in Exclude<keyof LimiterCalls, "policies" | "reserve">]: (
    asked: Parameters<LimiterCalls[Name]>[0],
    ended?: Signal,
  ) => ReturnType<LimiterCalls[Name]>;
};

/** How a client reaches a limiter that is elsewhere. */
export interface LimiterTransport extends Endable {
  policies(ended?: Signal): Promise<PolicyList>;
  /** @param withinMs how long the caller waits for the answer, in milliseconds */
  reserve(asked: ReservationsMessage, withinMs?: number): Promise<ReservationsReply>;
  /** Aborts requests whose callers have stopped waiting. */
  close?(): void;
}

/**
 * A transport whose calls are all made in one way.
 *
 * @param until what ends the call: a signal, or how many milliseconds the caller waits
 */
export function callsBy(
  make: (name: keyof LimiterCalls, asked: object, until?: Signal | number) => Promise<unknown>,
): LimiterTransport {
  const names = Object.keys(ADDRESSES) as (keyof LimiterCalls)[];
  const calls = names.map((name) => [
    name,
    (asked: object, until?: Signal | number) => make(name, asked, until),
  ]);
  const transport = Object.fromEntries(calls) as LimiterTransport;
  return { ...transport, policies: (ended) => make("policies", {}, ended) as Promise<PolicyList> };
}

/** The most requests of a limiter in flight. */
export interface RequestBounds {
  readonly asking: number;
  /** Those that may wait for their turn at the limiter: a release that ends their wait must find a place. */
  readonly waiting: number;
}

/** How long a call may wait for its turn, in milliseconds; 0 for a value that is no time, which the limiter refuses. */
export function waitOf(asked: object): number {
  const waitMs = "waitMs" in asked ? asked.waitMs : 0;
  return typeof waitMs === "number" && Number.isFinite(waitMs) ? Math.max(0, waitMs) : 0;
}

/** The error as a `LimiterError` if the limiter has thrown it; `undefined`: it did not answer. */
export function limiterErrorIn(error: unknown): LimiterError | undefined {
  if (error instanceof LimiterError) return error;
  if (!(error instanceof Error) || !("status" in error) || !("code" in error)) return undefined;
  const { status, code, message } = error;
  if (typeof status !== "number" || typeof code !== "string") return undefined;
  const errors = "errors" in error && Array.isArray(error.errors) ? error.errors : [];
  return new LimiterError({ status, code, title: message, detail: message, errors }, message);
}

/* The arguments of the service binding. */

/** Names a key. `policy` may be left out where the limiter has one of its own. */
export interface KeyRequest {
  readonly policy?: string;
  readonly key: string;
}

/** What several calls may say. */
interface CostRequest extends KeyRequest {
  /** How important the call is: one of the policy's priorities. */
  readonly priority?: string;
  readonly idempotencyKey?: string;
}

/** Asks for a decision on a cost. */
export interface LimitRequest extends CostRequest {
  /** Units to take if they all fit; 0 looks. Absent: 1. */
  readonly cost?: Cost;
  /** The decision is to carry a `charge`, which a refund names. */
  readonly refundable?: boolean;
  /** The longest wait for its turn, in milliseconds. */
  readonly waitMs?: number;
  /** The units are taken whatever is there. */
  readonly force?: boolean;
  /** How busy the caller's machine is, from 0 to 1. */
  readonly utilization?: number;
}

/** Asks for decisions on several keys: all or nothing, unless `atomic` is false. */
export interface LimitAllRequest {
  readonly checks: readonly (KeyRequest & { readonly cost?: Cost })[];
  readonly atomic?: boolean;
  readonly priority?: string;
  readonly idempotencyKey?: string;
}

/** Gives back units of one charge. */
export interface RefundRequest extends KeyRequest {
  readonly units: Cost;
  readonly idempotencyKey: string;
  readonly charge?: string;
}

/** Asks for a hold. */
export interface HoldRequest extends CostRequest {
  readonly units: Cost;
  readonly ttlMs?: number;
}

/** Asks for a lease. */
export interface AcquireRequest extends CostRequest {
  /** Absent: 1. */
  readonly units?: Cost;
  readonly ttlMs?: number;
  /** The longest wait in the queue, in milliseconds. */
  readonly waitMs?: number;
  readonly utilization?: number;
  /**
   * Over a service binding: the lease ends so many milliseconds after the request that acquired it, or after its link
   * breaks, unless it is released or resumed. Elsewhere it is refused.
   */
  readonly graceMs?: number;
  /** Over a service binding: the id of a lease of this policy and key, which is taken over. Elsewhere it is refused. */
  readonly resume?: string;
}

/** Asks what is left of a key. */
export interface PeekRequest extends KeyRequest {
  /** The answer comes when the key has no leases, or after `waitMs` milliseconds. */
  readonly waitFor?: "idle";
  readonly waitMs?: number;
}

/** An `AbortSignal`. The platforms have types of their own for it, or none. */
export interface Signal {
  readonly aborted: boolean;
  readonly reason: unknown;
  throwIfAborted(): void;
  addEventListener(type: "abort", listener: () => void, options?: { readonly once?: boolean }): void;
  removeEventListener(type: "abort", listener: () => void): void;
}

/** What ends a call before it is answered: then it throws the signal's reason. */
export interface Abortable {
  readonly signal?: Signal | undefined;
}

/*
 * What a client checks of an answer: a wrong address, a proxy or a sign-in page may answer too. A limiter may be of any
 * version, so unknown fields are ignored.
 */

type Check = (value: unknown) => boolean;

const isText: Check = (value) => typeof value === "string";
const isFlag: Check = (value) => typeof value === "boolean";
const isNumber: Check = (value) => Number.isFinite(value);
const isMs: Check = (value) => isNumber(value) && (value as number) >= 0;
const isUnits: Check = (value) => Number.isSafeInteger(value) && (value as number) >= 0;
const maybe =
  (check: Check): Check =>
  (value) =>
    value === undefined || check(value);
const listOf =
  (check: Check): Check =>
  (value) =>
    Array.isArray(value) && value.every(check);
const isTable = (value: unknown): value is Readonly<Record<string, unknown>> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
const tableOf =
  (check: Check): Check =>
  (value) =>
    isTable(value) && Object.values(value).every(check);
const having =
  (fields: Readonly<Record<string, Check>>): Check =>
  (value) =>
    isTable(value) && Object.entries(fields).every(([name, check]) => check(value[name]));

const isLease = having({ id: isText, expiresAfterMs: isNumber });
const isDecision = having({
  success: isFlag,
  rules: listOf(having({ name: isText, success: isFlag })),
  lease: maybe(isLease),
  hold: maybe(having({ id: isText, expiresAfterMs: isNumber })),
});

const areRules = listOf(
  having({
    name: isText,
    success: isFlag,
    limit: isNumber,
    remaining: isNumber,
    resetAfterMs: isNumber,
    retryAfterMs: (value) => value === null || isNumber(value),
    reason: isText,
    quotaRemaining: maybe(isNumber),
    delayMs: maybe(isNumber),
  }),
);
const isReserved = having({
  ttlMs: isMs,
  isNew: isFlag,
  units: tableOf(isUnits),
  prospects: maybe(tableOf(having({ resetAfterMs: isMs, gains: maybe(listOf(isNumber)) }))),
});
const isDecided = having({
  rules: (value) => areRules(value) && (value as readonly unknown[]).length > 0,
  source: maybe(isText),
  reserved: maybe(isReserved),
  next: maybe(areRules),
  firmForMs: maybe(isNumber),
});
const isProblem = having({
  status: (value) => Number.isInteger(value),
  code: isText,
  title: isText,
  detail: isText,
  errors: maybe(listOf(having({ pointer: isText, detail: isText }))),
});
const isAnswer: Check = (value) => {
  if (value === null) return true;
  if (!isTable(value)) return false;
  if ("problem" in value) return isProblem(value["problem"]);
  if ("failed" in value) return isText(value["failed"]);
  return "decision" in value ? isDecision(value["decision"]) : isDecided(value);
};
const isDescription = having({
  version: isText,
  onFailure: isText,
  deadlineMs: (value) => isMs(value) && value !== 0,
  objects: (value) => isText(value) || isUnits(value),
  localDecisions: having({ admits: isFlag, denies: isFlag }),
  reservation: having({ leastMs: isMs, mostMs: isMs }),
  denialTtlMs: isMs,
  shadow: isFlag,
  keyKind: isText,
  retryJitter: maybe((value) => having({ share: isMs })(value) || having({ mostMs: isMs })(value)),
  priorities: listOf(isText),
  defaultPriority: isText,
  seen: maybe(tableOf(listOf(isNumber))),
  rules: (value) =>
    listOf(having({ name: isText, unit: isText, capacity: isMs, wholeMs: having({ one: isMs, all: isMs }) }))(
      value,
    ) && (value as readonly unknown[]).length > 0,
});

/** The checks of answers. */
export const SHAPES = {
  nothing: (value) => value === undefined,
  decision: isDecision,
  decisions: having({ success: isFlag, decisions: listOf(isDecision) }),
  lease: isLease,
  policies: having({ policies: listOf(isTable) }),
  problem: isProblem,
  reservations: having({ answers: listOf(isAnswer), policies: tableOf(isDescription) }),
} as const satisfies Record<string, Check>;

export type Shape = keyof typeof SHAPES;

/**
 * The answer, if it has its shape.
 *
 * @throws Error when it has not: then whoever answered is no limiter
 */
export function shaped<Answer>(shape: Shape, answer: Answer): Answer {
  if (SHAPES[shape](answer)) return answer;
  throw new Error(`the answer is not of this protocol: it is no ${shape}`);
}
