/// <reference lib="esnext.disposable" preserve="true" />
/**
 * What a caller calls, whatever is behind it: the service binding, the objects, HTTP, or memory. Arguments and answers
 * are those of the service binding. A denial is an answer. Bad input, and an id of something that is no more, throws a
 * `LimiterError` with `status`, `code` and `errors`.
 */
import type { Decision } from "../core/protocol/decision.ts";
import type { Abortable, AcquireRequest, LimiterCalls, LimitRequest } from "./transports/transport.ts";

export type * from "./transports/transport.ts";

/** A decision on a lease. `await using` releases the lease at the end of the block. */
export type Grant = Decision & AsyncDisposable;

/** The limiter as its callers see it. `await using` closes it. */
export interface Limiter extends Omit<LimiterCalls, "reserve">, AsyncDisposable {
  /**
   * Takes a cost (by default 1) if it fits, waiting up to `waitMs` for its turn. A call that is aborted leaves the line
   * where the limiter hears of that, over HTTP; if not, its units may be taken when its turn comes.
   */
  limit(asked: LimitRequest & Abortable): Promise<Decision>;
  /**
   * Leases units, waiting up to `waitMs` in the queue. The lease ends with `release`, or when it expires. A lease that is
   * granted after the call was aborted, or after its deadline, is released at once, unless it has an idempotency key.
   */
  acquire(asked: AcquireRequest & Abortable): Promise<Grant>;
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
