/// <reference lib="esnext.disposable" preserve="true" />
/**
 * The limiter over the service binding, the objects, HTTP, or in memory. A denial is an answer. Bad input, or
 * the id of an ended claim, throws a `LimiterError`.
 */
import type { Lease } from "../core/protocol/answers.ts";
import type { Decision } from "../core/protocol/decision.ts";
import type { PolicyName } from "./transports/policy-types.ts";
import type {
  Abortable,
  AcquireRequest,
  LimiterCalls,
  LimitRequest,
  Signal,
} from "./transports/transport.ts";

export type * from "./transports/transport.ts";

/** An `AbortSignal`, whatever types the platform has of it: nobody reads the two other members. */
interface OwnSignal extends Signal {
  readonly onabort: never;
  readonly dispatchEvent: never;
  addEventListener(type: string, listener: Listener, options?: boolean | object): void;
  removeEventListener(type: string, listener: Listener): void;
}

/** Compilers compare a lone function with the platform's more strictly than a union. */
type Listener = ((event: never) => void) | { handleEvent(event: never): void };

/** A lease. */
export interface GrantedLease extends Lease {
  /**
   * Present when this process granted the lease itself: aborted when it is lost before its release. It has expired, it was
   * ended elsewhere, the limiter was closed, or the limiter has not been reached for some 2 s. What the lease protects
   * must stop then.
   */
  readonly signal?: OwnSignal;
}

/** A decision on a lease. `await using` releases the lease. */
export type Grant = Omit<Decision, "lease"> & { readonly lease?: GrantedLease } & AsyncDisposable;

/** A limiter. `await using` closes it. */
export interface Limiter extends Omit<LimiterCalls, "reserve">, AsyncDisposable {
  /**
   * Takes a cost (default 1) if it fits, within `waitMs`. An aborted call leaves the queue only over HTTP.
   */
  limit(request: LimitRequest & Abortable): Promise<Decision>;
  /**
   * Leases units within `waitMs`, until `release` or expiry. A lease granted after an abort or the deadline
   * is released, unless it has an idempotency key.
   */
  acquire(request: AcquireRequest & Abortable): Promise<Grant>;
  /** Returns all units held here. Later calls are sent one by one. */
  close(): Promise<void>;
}

/**
 * Adds a release to `decision`, which it references, and so its link (client/remote/create-limiter.ts).
 * @param endHere ends a lease whose slot is the isolate's own, without a message. `false`: `release` is to end it
 */
export function withRelease(
  decision: Decision,
  release: (id: string) => Promise<void>,
  endHere?: () => boolean,
): Grant & { readonly endHere?: () => boolean } {
  const end = async () => {
    if (decision.lease !== undefined) await release(decision.lease.id).catch(() => undefined);
  };
  const grant = Object.defineProperty({ ...decision }, Symbol.asyncDispose, { value: end }) as Grant;
  return endHere === undefined ? grant : Object.defineProperty(grant, "endHere", { value: endHere });
}

export interface ClientOptions {
  readonly policy?: PolicyName;
  /** The longest wait for an answer, in milliseconds. Absent: the policy's deadline. */
  readonly deadlineMs?: number;
  /** Decides unanswered calls of policies that the limiter has not described yet, as at a start without it. Absent: `closed`. */
  readonly onFailure?: "closed" | "open";
}
