import type { Answer, Lease, Missing, Peeked } from "../../core/protocol/answers.ts";
import type { GiveBackMessage, SeenBy } from "../../core/protocol/calls.ts";
import type { MaybePromise, KeyCall } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Claim } from "../storage/records.ts";

/** The answer if the hold or lease does not exist, or has ended. */
export const MISSING: Missing = { missing: true };

/** A call whose key is open. */
export type Params<Op extends KeyCall["op"]> = Omit<Extract<KeyCall, { op: Op }>, "op" | "policy" | "key">;
/** `from`: the link that must have the lease; absent: any. `to`: the link or socket that gets it; absent: the same. */
export type Renewing = Params<"renew"> & {
  readonly from?: string | undefined;
  readonly to?: Pick<Claim, "link" | "isSocket" | "graceMs"> | undefined;
};
/** Ends a lease as reported. With a link: only if that link still has it. */
export type Releasing = Omit<Params<"release">, "graceMs">;
/** A `LimitCall` whose key is open. An aborted `signal` removes the call from the queue. */
export type Limiting = Params<"limit"> & { readonly signal?: LeaveSignal };
/** An `AcquireCall` whose key is open, with its caller's connection. */
export type Acquiring = Params<"acquire"> & {
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
  refund(keyState: KeyState, call: Params<"refund">, nowMs: number): MaybePromise<Answer>;
  /** Settles a holder's usage, decides on a cost, and reserves units for the holder. */
  reserve(keyState: KeyState, call: Params<"reserve">, nowMs: number): MaybePromise<Answer>;
  /** Ends a reservation with the holder's usage. A late or repeated message changes nothing. */
  giveBack(keyState: KeyState, returned: GiveBackMessage, nowMs: number): void;
  /** Holds units if every rule admits them. It waits only for provisional holds (turns.ts). */
  hold(keyState: KeyState, call: Params<"hold">, nowMs: number): MaybePromise<Answer>;
  /** Ends a hold with the units used. A late or repeated settle gets an answer and changes nothing; not after a cancel. */
  settle(keyState: KeyState, call: Params<"settle">, nowMs: number): MaybePromise<Answer>;
  /** Ends a hold, and the lease taken with it, as unused. */
  cancel(keyState: KeyState, call: Params<"cancel">, nowMs: number): MaybePromise<Answer>;
  /** Grants a lease at once or in the caller's turn, or denies it. */
  acquire(keyState: KeyState, call: Acquiring, nowMs: number): MaybePromise<Answer>;
  /** Moves a lease's end to `ttlMs` from now; absent: the lifetime in the acquire. */
  renew(keyState: KeyState, call: Renewing, nowMs: number): MaybePromise<Lease | Missing>;
  /** Ends a lease, and serves waiting callers. Returns whether the lease existed. */
  release(keyState: KeyState, call: Releasing, nowMs: number): MaybePromise<boolean>;
  /** The answer to a call of cost 1, without taking it, and the held units and waiting callers. */
  peek(keyState: KeyState, nowMs: number, by?: Pick<SeenBy, "group" | "inForce">): MaybePromise<Peeked>;
  /** Makes the key untouched, but units that isolates may still spend stay held. */
  reset(keyState: KeyState, nowMs: number): MaybePromise<void>;
  /** Ends all waits for the key. */
  endWaits(keyState: KeyState, nowMs: number): MaybePromise<void>;
}

/** Opens a key and runs `ask` with its operations: a promise if they must be loaded first. */
export type AskKey = <Result>(
  policy: string,
  key: string,
  ask: (operations: Operations, keyState: KeyState, nowMs: number) => MaybePromise<Result>,
) => MaybePromise<Result>;

/** The part of an `AbortSignal` by which a waiting caller leaves. */
export type LeaveSignal = Pick<AbortSignal, "aborted" | "addEventListener">;
