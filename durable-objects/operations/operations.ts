import type { Cost } from "../../core/protocol/cost.ts";
import type {
  AcquireCall,
  Answer,
  HoldCall,
  Lease,
  Missing,
  Peeked,
  ReserveCall,
  Returned,
} from "../../core/protocol/messages.ts";
import type { Maybe } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { LeaveSignal } from "./wait-queue.ts";

export type Reserve = Omit<ReserveCall, "policy" | "key">;
export type Holding = Omit<HoldCall, "policy" | "key">;
/** What an acquire asks for, and who asks. */
export type Acquiring = Omit<AcquireCall, "policy" | "key"> & {
  readonly isSocket?: boolean;
  /** Aborted when the caller has gone: it leaves the queue, and is granted nothing. */
  readonly signal?: LeaveSignal;
};

/**
 * What may be asked of a key that has been opened at `nowMs`. There are two who answer: this object alone
 * (`LocalOperations`), and, when the policy has a pool, this object as one of its regions (`PooledOperations`).
 * An answer that takes I/O is a promise, and rejects when the pool does not answer.
 */
export interface Operations {
  /** Decides on a cost and takes it if every rule admits it. */
  limit(keyState: KeyState, cost: Cost, idempotencyKey: string | undefined, nowMs: number): Maybe<Answer>;
  /** Gives units back, at most up to an untouched quota. */
  refund(keyState: KeyState, units: Cost, idempotencyKey: string, nowMs: number): Maybe<Answer>;
  /** Settles what a holder used, decides on a cost, and reserves units for the holder. */
  reserve(keyState: KeyState, call: Reserve, nowMs: number): Maybe<Answer>;
  /** Ends a holder's reservation with what it used. Late or again, it changes nothing. */
  giveBack(keyState: KeyState, returned: Returned, nowMs: number): void;
  /** Sets units apart if every rule admits them; only a part of a call on several keys may wait. */
  hold(keyState: KeyState, call: Holding, nowMs: number): Maybe<Answer>;
  /** Ends a hold with what was used. Late or again, it is answered and changes nothing. */
  settle(keyState: KeyState, id: string, used: Cost, nowMs: number): Maybe<Answer>;
  /** Ends a hold of which nothing was used, and the lease that was taken with it. */
  cancel(keyState: KeyState, id: string, nowMs: number): Maybe<Answer>;
  /** Grants a lease, now or when its turn comes, or says why not. Nobody who waits is passed. */
  acquire(keyState: KeyState, call: Acquiring, nowMs: number): Maybe<Answer>;
  /** Moves a lease's end to `ttlMs` from now; by default as long as it was asked for at first. */
  renew(keyState: KeyState, id: string, ttlMs: number | undefined, nowMs: number): Maybe<Lease | Missing>;
  /** Ends a lease; whoever waits next gets its units at once. Returns whether there was one. */
  release(keyState: KeyState, id: string, nowMs: number): Maybe<boolean>;
  /** What a call of cost 1 would be answered, and who has and waits for units; nothing is taken. */
  peek(keyState: KeyState, nowMs: number): Maybe<Peeked>;
  /** Makes the key as new, but for units that holders may still be spending. */
  reset(keyState: KeyState, nowMs: number): Maybe<void>;
}

/** Opens a key and asks for one of its operations: at once, unless they have to be loaded first. */
export type AskKey = <Result>(
  policy: string,
  key: string,
  ask: (operations: Operations, keyState: KeyState, nowMs: number) => Maybe<Result>,
) => Maybe<Result>;
