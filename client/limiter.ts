/// <reference lib="esnext.disposable" preserve="true" />
/**
 * The limiter that callers use, over the service binding, the objects, HTTP, or in memory. Requests and answers are those
 * of the service binding. A denial is an answer. Bad input, and an id of something that has ended, throws a `LimiterError`
 * with `status`, `code` and `errors`.
 */
import type { Decision } from "../core/protocol/decision.ts";
import type { Abortable, AcquireRequest, LimiterCalls, LimitRequest } from "./transports/transport.ts";

export type * from "./transports/transport.ts";

/** A decision on a lease. `await using` releases the lease at the end of the block. */
export type Grant = Decision & AsyncDisposable;

/** A limiter. `await using` closes it. */
export interface Limiter extends Omit<LimiterCalls, "reserve">, AsyncDisposable {
  /**
   * Takes a cost (by default 1) if it fits, waiting up to `waitMs` for its turn. Over HTTP, an aborted call leaves the
   * queue; elsewhere its units may still be taken when its turn comes.
   */
  limit(request: LimitRequest & Abortable): Promise<Decision>;
  /**
   * Leases units, waiting up to `waitMs` in the queue. The lease ends with `release`, or when it expires. A lease that is
   * granted after the call was aborted, or after its deadline, is released at once, unless it has an idempotency key.
   */
  acquire(request: AcquireRequest & Abortable): Promise<Grant>;
  /** Gives back all units that are held here. Later calls are sent one by one. */
  close(): Promise<void>;
}

/** The decision; `await using` releases its lease. It keeps `decision`, and so its link (client/remote/create-limiter.ts). */
export function withRelease(decision: Decision, release: (id: string) => Promise<void>): Grant {
  const end = async () => {
    if (decision.lease !== undefined) await release(decision.lease.id).catch(() => undefined);
  };
  return Object.defineProperty({ ...decision }, Symbol.asyncDispose, { value: end }) as Grant;
}

/** The options of a client. */
export interface ClientOptions {
  /** The policy of calls that name none. */
  readonly policy?: string;
  /** The longest wait for the limiter's answer, in milliseconds. Absent: the policy's deadline. */
  readonly deadlineMs?: number;
  /** What decides if the limiter does not answer, for policies that it has not described yet. Absent: `closed`. */
  readonly onFailure?: "closed" | "open";
}
