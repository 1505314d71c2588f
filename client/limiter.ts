/// <reference lib="esnext.disposable" preserve="true" />
/**
 * What a caller calls, whatever is behind it: the service binding, the objects, HTTP, or memory. Arguments and answers
 * are those of the service binding. A denial is an answer. Bad input, and an id of something that is no more, throws a
 * `LimiterError` with `status`, `code` and `errors`.
 */
import type { Lease } from "../core/protocol/answers.ts";
import type { Cost } from "../core/protocol/cost.ts";
import type { AllDecisions, Decision, KeyReport } from "../core/protocol/decision.ts";
import type { LeaseReport } from "../core/protocol/messages.ts";
import type { PolicyList } from "../core/protocol/policy-descriptions.ts";
import type {
  Abortable,
  AcquireRequest,
  HoldRequest,
  KeyRequest,
  LimitAllRequest,
  LimitRequest,
  PeekRequest,
  RefundRequest,
} from "./transports/transport.ts";

export type * from "./transports/transport.ts";

/** A decision on a lease. `await using` releases the lease at the end of the block. */
export type Grant = Decision & AsyncDisposable;

/** The limiter as its callers see it. `await using` closes it. */
export interface Limiter extends AsyncDisposable {
  /**
   * Takes a cost (by default 1) if it fits, waiting up to `waitMs` for its turn. A call that is aborted leaves the line
   * where the limiter hears of that, over HTTP; if not, its units may be taken when its turn comes.
   */
  limit(asked: LimitRequest & Abortable): Promise<Decision>;
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
  /**
   * Leases units, waiting up to `waitMs` in the queue. The lease ends with `release`, or when it expires. A lease that is
   * granted after the call was aborted, or after its deadline, is released at once, unless it has an idempotency key.
   */
  acquire(asked: AcquireRequest & Abortable): Promise<Grant>;
  /** Moves a lease's end to `ttlMs` milliseconds from now. */
  renew(asked: { readonly id: string; readonly ttlMs?: number }): Promise<Lease>;
  /** Ends a lease, and may report how the call went. */
  release(asked: { readonly id: string } & LeaseReport): Promise<void>;
  /** What a cost of 1 would be answered, and how many units are held and waited for. Takes nothing. */
  peek(asked: PeekRequest): Promise<KeyReport>;
  /** Makes the key as new. */
  reset(asked: KeyRequest): Promise<void>;
  /** The policies that the caller may use. */
  policies(): Promise<PolicyList>;
  /** Gives back all units that are held here. Calls after that are made one by one. */
  close(): Promise<void>;
}

/**
 * The decision, of which `await using` releases the lease. A lease that has ended by then needs no release. The decision
 * that was given may keep a link (client/remote/create-limiter.ts), and what is returned keeps it.
 */
export function withRelease(decision: Decision, release: (id: string) => Promise<void>): Grant {
  const end = async () => {
    if (decision.lease !== undefined) await release(decision.lease.id).catch(() => undefined);
  };
  return Object.defineProperty({ ...decision }, Symbol.asyncDispose, { value: end }) as Grant;
}

/** What a client may be told. */
export interface ClientOptions {
  /** The policy of calls that name none. */
  readonly policy?: string;
  /** The longest that a caller waits for the limiter, in milliseconds. Absent: what the policy says. */
  readonly deadlineMs?: number;
  /** What is answered when the limiter does not answer, of policies that it has not described yet. */
  readonly onFailure?: "closed" | "open";
}
