import type { QueuedCost } from "../../core/accounts/hold.ts";
import type { Cost, Policy } from "../../core/policies/policy.ts";
import type { Answer, Lease, Missing, Peeked } from "../../core/protocol/answers.ts";
import type {
  LeaseReport,
  ReserveCall,
  Returned,
  HoldParams,
  AcquireParams,
  LimitParams,
} from "../../core/protocol/messages.ts";
import type { LimiterMethods, MaybePromise } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";

/** The answer when there is no such hold or lease, or no longer. */
export const MISSING: Missing = { missing: true };

/** A `ReserveCall` whose key has been opened. */
export type Reserve = Omit<ReserveCall, "policy" | "key">;
/** The link that the lease must be of, and the one that it is of from then on. Absent: any, and the same. */
export interface LinkChange {
  readonly from?: string | undefined;
  readonly to?: string | undefined;
}
/** How a lease ends. With a link: only if it is still that one's. */
export type Releasing = LeaseReport & { readonly link?: string | undefined };
/** A `LimitCall` whose key has been opened. `signal` is as of an acquire. */
export type Limiting = LimitParams & { readonly signal?: LeaveSignal };
/** An `AcquireCall` whose key has been opened, and how its caller is connected. */
export type Acquiring = AcquireParams & {
  /** The lease will belong to a WebSocket. */
  readonly isSocket?: boolean;
  /** Is aborted when the caller has gone: the call leaves the queue then, and is granted nothing. */
  readonly signal?: LeaveSignal;
};

/**
 * What may be asked of a key that was opened at `nowMs`. `LocalOperations` decide in this object alone. When the policy
 * has a pool, `PooledOperations` decide in this object as one of the pool's regions. An answer that takes I/O is a
 * promise, which rejects when the pool does not answer.
 */
export interface Operations {
  /** Decides on a cost, and takes it if every rule admits it: at once or, with `waitMs`, when the caller's turn comes. */
  limit(keyState: KeyState, call: Limiting, nowMs: number): MaybePromise<Answer>;
  /**
   * Gives units back, at most up to an untouched quota. `charge` is the idempotency key of the `limit` that took them:
   * then at most what it took comes back, once, and nothing that time has given back since.
   */
  refund(
    keyState: KeyState,
    units: Cost,
    idempotencyKey: string,
    charge: string | undefined,
    nowMs: number,
  ): MaybePromise<Answer>;
  /** Settles what a holder used, decides on a cost, and reserves units for the holder. */
  reserve(keyState: KeyState, call: Reserve, nowMs: number): MaybePromise<Answer>;
  /** Ends a holder's reservation with what the holder used. A message that is late or repeated changes nothing. */
  giveBack(keyState: KeyState, returned: Returned, nowMs: number): void;
  /** Holds units if every rule admits them. Only provisional holds make the call wait: see turns.ts. */
  hold(keyState: KeyState, call: HoldParams, nowMs: number): MaybePromise<Answer>;
  /** Ends a hold with the units really used. A settle that is late or repeated is answered, and changes nothing. */
  settle(keyState: KeyState, id: string, used: Cost, nowMs: number): MaybePromise<Answer>;
  /** Ends a hold as unused, and also the lease that was taken with it. */
  cancel(keyState: KeyState, id: string, nowMs: number): MaybePromise<Answer>;
  /** Grants a lease at once or when the caller's turn comes, or denies it. Callers are served in order of arrival. */
  acquire(keyState: KeyState, call: Acquiring, nowMs: number): MaybePromise<Answer>;
  /** Moves a lease's end to `ttlMs` from now; `undefined`: the lifetime that the acquire asked for. */
  renew(
    keyState: KeyState,
    id: string,
    ttlMs: number | undefined,
    nowMs: number,
    link?: LinkChange,
  ): MaybePromise<Lease | Missing>;
  /** Ends a lease as reported, and serves the callers that wait. Returns whether there was such a lease. */
  release(keyState: KeyState, id: string, nowMs: number, releasing?: Releasing): MaybePromise<boolean>;
  /** What a call of cost 1 would be answered, how many units are held, and how many callers wait. Takes nothing. */
  peek(keyState: KeyState, nowMs: number): MaybePromise<Peeked>;
  /** Makes the key untouched, except for units that isolates may still be spending. */
  reset(keyState: KeyState, nowMs: number): MaybePromise<void>;
}

/** Opens a key and runs `ask` with its operations. The result is a promise when the operations must be loaded first. */
export type AskKey = <Result>(
  policy: string,
  key: string,
  ask: (operations: Operations, keyState: KeyState, nowMs: number) => MaybePromise<Result>,
) => MaybePromise<Result>;

interface SentCall<Result> {
  readonly method: keyof LimiterMethods;
  readonly args: readonly unknown[];
  readonly read: (returned: unknown) => Result;
}

/** The same as `AskKey`, wherever the key is: the key of a lease may have moved since it was granted. */
export type AskAnywhere = <Result>(
  policy: string,
  key: string,
  ask: (operations: Operations, keyState: KeyState, nowMs: number) => MaybePromise<Result>,
  sent: SentCall<Result>,
) => MaybePromise<Result>;

/** A caller that waits for units of a key. */
export interface Waiter extends QueuedCost {
  readonly sinceMs: number;
  /** How important its call is: see wait-queue.ts. Absent: as calls that say nothing. */
  readonly priority?: string | undefined;
  /** It only waits for calls on several keys to end (turns.ts): where nothing is leased, others may pass it. */
  readonly isBrief?: boolean | undefined;
  /**
   * Tries to answer the caller. `undefined`: it is answered, and leaves the line. Otherwise the milliseconds until the
   * next try can succeed; `Infinity`: no instant is known.
   */
  attempt(nowMs: number): number | undefined;
  /** Answers the caller for the last time: its wait is over. */
  giveUp(nowMs: number): void;
  /** The caller's promise rejects. */
  fail(error: Error): void;
}

/** A caller that waits until a key has no leases, at most until `untilMs`. */
export interface IdleWatch {
  readonly untilMs: number;
  resolve(): void;
  fail(error: Error): void;
}

/** All that wait for one key. */
export interface Line {
  /** The policy by which the line was served last. */
  policy: Policy;
  readonly waiters: Waiter[];
  readonly idlers: Set<IdleWatch>;
  /** Cancels the timer. */
  cancel: (() => void) | undefined;
  /** Ends the pin that keeps the key in memory while callers wait for it. */
  readonly unpin: () => void;
}

/** The part of an `AbortSignal` by which a waiting caller leaves. */
export type LeaveSignal = Pick<AbortSignal, "aborted" | "addEventListener">;
