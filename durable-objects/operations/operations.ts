import type { Cost } from "../../core/protocol/cost.ts";
import type {
  WantedLease,
  Answer,
  WantedHold,
  Lease,
  Missing,
  Peeked,
  ReserveCall,
  Returned,
} from "../../core/protocol/messages.ts";
import type { Maybe } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { LeaveSignal } from "./wait-queue.ts";

/** A `ReserveCall` whose key has been opened. */
export type Reserve = Omit<ReserveCall, "policy" | "key">;
/** An `AcquireCall` whose key has been opened, and how its caller is connected. */
export type Acquiring = WantedLease & {
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
  /** Decides on a cost, and takes it if every rule admits it. */
  limit(keyState: KeyState, cost: Cost, idempotencyKey: string | undefined, nowMs: number): Maybe<Answer>;
  /** Gives units back, at most up to an untouched quota. */
  refund(keyState: KeyState, units: Cost, idempotencyKey: string, nowMs: number): Maybe<Answer>;
  /** Settles what a holder used, decides on a cost, and reserves units for the holder. */
  reserve(keyState: KeyState, call: Reserve, nowMs: number): Maybe<Answer>;
  /** Ends a holder's reservation with what the holder used. A message that is late or repeated changes nothing. */
  giveBack(keyState: KeyState, returned: Returned, nowMs: number): void;
  /** Holds units if every rule admits them. Only provisional holds make the call wait: see contention.ts. */
  hold(keyState: KeyState, call: WantedHold, nowMs: number): Maybe<Answer>;
  /** Ends a hold with the units really used. A settle that is late or repeated is answered, and changes nothing. */
  settle(keyState: KeyState, id: string, used: Cost, nowMs: number): Maybe<Answer>;
  /** Ends a hold as unused, and also the lease that was taken with it. */
  cancel(keyState: KeyState, id: string, nowMs: number): Maybe<Answer>;
  /** Grants a lease at once or when the caller's turn comes, or denies it. Callers are served in order of arrival. */
  acquire(keyState: KeyState, call: Acquiring, nowMs: number): Maybe<Answer>;
  /** Moves a lease's end to `ttlMs` from now; `undefined`: the lifetime that the acquire asked for. */
  renew(keyState: KeyState, id: string, ttlMs: number | undefined, nowMs: number): Maybe<Lease | Missing>;
  /** Ends a lease, and serves the callers that wait. Returns whether there was such a lease. */
  release(keyState: KeyState, id: string, nowMs: number): Maybe<boolean>;
  /** What a call of cost 1 would be answered, how many units are held, and how many callers wait. Takes nothing. */
  peek(keyState: KeyState, nowMs: number): Maybe<Peeked>;
  /** Makes the key untouched, except for units that isolates may still be spending. */
  reset(keyState: KeyState, nowMs: number): Maybe<void>;
}

/** Opens a key and runs `ask` with its operations. The result is a promise when the operations must be loaded first. */
export type AskKey = <Result>(
  policy: string,
  key: string,
  ask: (operations: Operations, keyState: KeyState, nowMs: number) => Maybe<Result>,
) => Maybe<Result>;
