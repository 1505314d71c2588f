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
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";

/** The answer if the hold or lease does not exist, or has ended. */
export const MISSING: Missing = { missing: true };

export type Reserve = Omit<ReserveCall, "policy" | "key">;
/** The link that must have the lease, and the one that gets it. Absent: any, and the same. */
export interface LinkChange {
  readonly from?: string | undefined;
  readonly to?: string | undefined;
}
/** How a lease ends. With a link: only if that link still has it. */
export type Releasing = LeaseReport & { readonly link?: string | undefined };
/** A `LimitCall` whose key is open. An aborted `signal` removes the call from the queue. */
export type Limiting = LimitParams & { readonly signal?: LeaveSignal };
/** An `AcquireCall` whose key is open, with its caller's connection. */
export type Acquiring = AcquireParams & {
  /** A WebSocket will have the lease. */
  readonly isSocket?: boolean;
  /** Aborted when the caller has gone: the call leaves the queue, and is granted nothing. */
  readonly signal?: LeaveSignal;
};

/** Operations on a key opened at `nowMs`. A promise takes I/O, and rejects if the pool does not answer. */
export interface Operations {
  /** Takes a cost if every rule admits it: at once or, with `waitMs`, in the caller's turn. */
  limit(keyState: KeyState, call: Limiting, nowMs: number): MaybePromise<Answer>;
  /** `charge`: the idempotency key of a `limit`, whose units return once, without any that have refilled. */
  refund(
    keyState: KeyState,
    units: Cost,
    idempotencyKey: string,
    charge: string | undefined,
    nowMs: number,
  ): MaybePromise<Answer>;
  /** Settles a holder's usage, decides on a cost, and reserves units for the holder. */
  reserve(keyState: KeyState, call: Reserve, nowMs: number): MaybePromise<Answer>;
  /** Ends a reservation with the holder's usage. A late or repeated message changes nothing. */
  giveBack(keyState: KeyState, returned: Returned, nowMs: number): void;
  /** Holds units if every rule admits them. It waits only for provisional holds (turns.ts). */
  hold(keyState: KeyState, call: HoldParams, nowMs: number): MaybePromise<Answer>;
  /** Ends a hold with the units used. A late or repeated settle gets an answer and changes nothing. */
  settle(keyState: KeyState, id: string, used: Cost, nowMs: number): MaybePromise<Answer>;
  /** Ends a hold, and the lease taken with it, as unused. */
  cancel(keyState: KeyState, id: string, nowMs: number): MaybePromise<Answer>;
  /** Grants a lease at once or in the caller's turn, or denies it. */
  acquire(keyState: KeyState, call: Acquiring, nowMs: number): MaybePromise<Answer>;
  /** Moves a lease's end to `ttlMs` from now; `undefined`: the lifetime in the acquire. */
  renew(
    keyState: KeyState,
    id: string,
    ttlMs: number | undefined,
    nowMs: number,
    link?: LinkChange,
  ): MaybePromise<Lease | Missing>;
  /** Ends a lease as reported, and serves waiting callers. Returns whether the lease existed. */
  release(keyState: KeyState, id: string, nowMs: number, releasing?: Releasing): MaybePromise<boolean>;
  /** The answer to a call of cost 1, without taking it, and the held units and waiting callers. */
  peek(keyState: KeyState, nowMs: number): MaybePromise<Peeked>;
  /** Makes the key untouched, but units that isolates may still spend stay held. */
  reset(keyState: KeyState, nowMs: number): MaybePromise<void>;
}

/** Opens a key and runs `ask` with its operations: a promise if they must be loaded first. */
export type AskKey = <Result>(
  policy: string,
  key: string,
  ask: (operations: Operations, keyState: KeyState, nowMs: number) => MaybePromise<Result>,
) => MaybePromise<Result>;

/** A caller that waits for units of a key. */
export interface Waiter extends QueuedCost {
  readonly sinceMs: number;
  /** See wait-queue.ts. Absent: the usual priority. */
  readonly priority?: string | undefined;
  /** It waits only for calls on several keys (turns.ts): where nothing is leased, others may pass it. */
  readonly isBrief?: boolean | undefined;
  /** `undefined`: the caller is answered. Otherwise the time to the next try; Infinity: unknown. */
  attempt(nowMs: number): number | undefined;
  giveUp(nowMs: number): void;
  fail(error: Error): void;
}

/** A caller that waits until a key has no leases, at most until `untilMs`. */
export interface IdleWatch {
  readonly untilMs: number;
  resolve(): void;
  fail(error: Error): void;
}

export interface Line {
  policy: Policy;
  readonly waiters: Waiter[];
  readonly idlers: Set<IdleWatch>;
  cancel: (() => void) | undefined;
  /** The key stays in memory while callers wait for it. */
  readonly unpin: () => void;
}

/** The part of an `AbortSignal` by which a waiting caller leaves. */
export type LeaveSignal = Pick<AbortSignal, "aborted" | "addEventListener">;
