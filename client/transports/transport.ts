/** A limiter that is elsewhere, as a client reaches it. */
import type { Lease } from "../../core/protocol/answers.ts";
import type { Cost } from "../../core/protocol/cost.ts";
import type { AllDecisions, Decision, KeyReport } from "../../core/protocol/decision.ts";
import type { LeaseReport } from "../../core/protocol/messages.ts";
import type { PolicyList } from "../../core/protocol/policy-descriptions.ts";
import { LimiterError } from "../../core/protocol/problems.ts";
import type { ReservationsMessage, ReservationsReply } from "../../core/protocol/reservation-messages.ts";
import type { CatalogService } from "./catalog-service.ts";

/**
 * The calls of the service binding that decide. Each throws a `LimiterError` when the limiter refuses the call, and any
 * other error when there is no answer.
 */
export interface LimiterCalls {
  limit(asked: LimitRequest): Promise<Decision>;
  limitAll(asked: LimitAllRequest): Promise<AllDecisions>;
  refund(asked: RefundRequest): Promise<Decision>;
  hold(asked: HoldRequest): Promise<Decision>;
  settle(asked: { readonly id: string; readonly used: Cost }): Promise<Decision>;
  cancel(asked: { readonly id: string }): Promise<void>;
  acquire(asked: AcquireRequest & { readonly detached?: boolean }): Promise<Decision>;
  renew(asked: { readonly id: string; readonly ttlMs?: number }): Promise<Lease>;
  release(asked: { readonly id: string } & LeaseReport): Promise<void>;
  peek(asked: PeekRequest): Promise<KeyReport>;
  reset(asked: KeyRequest): Promise<void>;
  policies(): Promise<PolicyList>;
  reserve(asked: ReservationsMessage): Promise<ReservationsReply>;
}

/** All calls of the service binding. */
export interface LimiterService extends LimiterCalls {
  /** What changes at run time: policies, overrides, tokens. */
  catalog(): Promise<CatalogService>;
}

/** The calls with what tells that nobody waits for the answer any more: `ended` is aborted then. */
type Endable = {
  readonly [Name in Exclude<keyof LimiterCalls, "policies" | "reserve">]: (
    asked: Parameters<LimiterCalls[Name]>[0],
    ended?: Signal,
  ) => ReturnType<LimiterCalls[Name]>;
};

/** A limiter that is elsewhere. */
export interface LimiterTransport extends Endable {
  policies(ended?: Signal): Promise<PolicyList>;
  /** @param withinMs for so long somebody waits for the answer */
  reserve(asked: ReservationsMessage, withinMs?: number): Promise<ReservationsReply>;
  /** Ends what nobody waits for. */
  close?(): void;
}

/** How many requests of a limiter may be under way at once. */
export interface RequestBounds {
  readonly asking: number;
  /** Those that may wait for their turn at the limiter: a release that ends their wait must find a place. */
  readonly waiting: number;
}

/**
 * How long a call may wait for its turn, in milliseconds. What is no time waits for nothing: the limiter says what is
 * wrong with it.
 */
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

/* What calls say. They are the arguments of the service binding. */

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
