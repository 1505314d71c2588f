import type { Cost, Layout, PolicyRevision } from "../policies/policy.ts";
import type { AnswerText, Peeked } from "./answers.ts";
import type {
  AcquireCall,
  HoldCall,
  LeaseHandle,
  OperationCall,
  RefundCall,
  ReleaseCall,
  KeysCall,
  LimitCall,
  OfKey,
  ReserveCall,
  GiveBackMessage,
  SetCall,
  SheddingCall,
  Versioned,
} from "./calls.ts";
import type { Batch } from "./messages.ts";

/**
 * The methods of an object over Workers RPC. Versions mix during a rollout: never change a name or an argument, add a
 * field to a message, or a method.
 */

export type MaybePromise<Value> = Value | Promise<Value>;

/** A lease with a handle: when the holder ends, the runtime disposes of `slot`, which releases the lease. */
export interface Attached extends LeaseHandle {
  readonly answer: AnswerText;
  readonly slot?: Rpc.RpcTargetBranded;
}

/** A call on a key as one message, with checked values: integer costs and normalised keys. */
export type KeyCall =
  | ({ readonly op: "limit" } & LimitCall)
  | ({ readonly op: "set" } & SetCall)
  | ({ readonly op: "reserve" } & ReserveCall)
  | ({ readonly op: "giveBack"; readonly returned: readonly GiveBackMessage[] } & OfKey)
  | OperationCall
  /** A lease that may end with a handle. */
  | ({ readonly op: "acquire" } & AcquireCall)
  | ({ readonly op: "confirm" } & ConfirmCall)
  | ({ readonly op: "shedding" } & SheddingCall)
  | ({ readonly op: "tell"; readonly inForce: PolicyRevision } & OfKey)
  | ({ readonly op: "peek" } & OfKey)
  | ({ readonly op: "reset" } & OfKey)
  | ({ readonly op: "endWaits" } & OfKey);

export interface ConfirmCall extends OfKey {
  readonly id: string;
  readonly ttlMs: number;
  /** The lease also ends with the returned handle. */
  readonly isAttached: boolean;
}

/** The RPC methods; durable-objects/wire-methods.ts converts each call to a `KeyCall`. */
export interface LimiterMethods {
  limit(policy: string, key: string, cost: Cost, idempotencyKey?: string): MaybePromise<AnswerText>;
  limitCall(call: LimitCall): MaybePromise<AnswerText>;
  setUsed(call: SetCall): MaybePromise<AnswerText>;
  /** A forwarded call: returns the method's result. Objects of lower versions refuse it by value. */
  reserve(call: ForwardedCall): Promise<ForwardedResult | AnswerText>;
  reserve(call: ReserveCall | Batch | HandOver | KeysStored): MaybePromise<AnswerText>;
  giveBack(policy: string, returned: readonly GiveBackMessage[]): MaybePromise<void>;
  refund(policy: string, key: string, units: Cost, idempotencyKey: string): MaybePromise<AnswerText>;
  refundCharge(call: RefundCall): MaybePromise<AnswerText>;
  hold(call: HoldCall): MaybePromise<AnswerText>;
  settle(policy: string, key: string, id: string, used: Cost): MaybePromise<AnswerText>;
  cancel(policy: string, key: string, id: string): MaybePromise<AnswerText>;
  acquire(call: AcquireCall): Promise<Attached>;
  confirm(
    policy: string,
    key: string,
    id: string,
    ttlMs: number,
    isAttached: boolean,
  ): MaybePromise<Attached>;
  renew(policy: string, key: string, id: string, ttlMs?: number): MaybePromise<AnswerText>;
  release(policy: string, key: string, id: string): MaybePromise<boolean>;
  keys(call: KeysCall): MaybePromise<AnswerText>;
  countKeys(call: KeysCall): MaybePromise<AnswerText>;
  releaseCall(call: ReleaseCall): MaybePromise<AnswerText>;
  /** Only as a part of a batch: objects of lower versions refuse that part by value. */
  operate(call: OperationCall): MaybePromise<AnswerText>;
  shedding(call: SheddingCall): MaybePromise<AnswerText>;
  /** Announces the version in force for a key, over the same stub, before a call that has no field for it. */
  tell(policy: string, key: string, inForce: PolicyRevision): MaybePromise<void>;
  /**
   * @param group whose part the decision says, where groups share a rule
   * @param inForce with the plan that decides, which `tell` would make that of the key
   */
  peek(policy: string, key: string, group?: string, inForce?: PolicyRevision): MaybePromise<Peeked>;
  reset(policy: string, key: string): MaybePromise<void>;
  endWaits(policy: string, key: string): MaybePromise<void>;
}

/** The methods as seen by callers: each call is a message, so each answer is a promise. */
export type ObjectStub = {
  [Method in Exclude<keyof LimiterMethods, "reserve">]: (
    ...args: Parameters<LimiterMethods[Method]>
  ) => Promise<Awaited<ReturnType<LimiterMethods[Method]>>>;
} & {
  reserve(call: ForwardedCall): Promise<ForwardedResult | AnswerText>;
  reserve(call: ReserveCall | Batch | HandOver | KeysStored): Promise<AnswerText>;
  fetch(url: string, init: RequestInit): Promise<Response>;
};

/*
 * The messages by which a key moves between objects, sent by `reserve`, which objects of lower versions refuse by
 * value. Clocks differ, so an answer has its sender's time (`nowMs`), and only durations are compared.
 */

export const MOVE_PROTOCOL = 4;

export const MAX_MOVED = 256;
/** An answer of this many UTF-16 units has no further key. A message may have 32 MiB. */
export const MAX_MOVED_LENGTH = 2 ** 22;

/** Requests keys from an object that had them before. */
export interface HandOver extends Versioned {
  readonly handOver: {
    readonly policy: string;
    readonly layout: Layout;
    readonly keys: readonly RequestedKey[];
  };
}

export interface RequestedKey {
  readonly key: string;
  /** The number of the move by which the sender gave the key away, if it knows of no later one; otherwise 0. */
  readonly move: number;
  /** A move of this object that never arrived: its receiver reported the loss. */
  readonly lost?: GivenKey;
}

/** A key was given to an object, repeatedly if an answer was lost. */
export interface GivenKey {
  readonly to: string;
  readonly times: number;
  readonly move: number;
}

/** The results, in the order of the requested keys. Those at the end may be missing. */
export interface HandedOver {
  readonly nowMs: number;
  /** The layouts that this object knows: keys may be where the sender does not search. */
  readonly layouts: readonly Layout[];
  readonly keys: readonly HandOverResult[];
}

/**
 * `moved`: the key's complete state. `nothing`: no state here. `presumed`: no state but units, by rule, that an
 * earlier memory may have given out. `given`: another object may have it. `kept`: it stays here, where calls must go.
 * `busy`: it is moving here.
 */
export type HandOverResult =
  | { readonly moved: MovedKey }
  | { readonly presumed: PresumedByRule }
  | { readonly given: GivenKey }
  | "nothing"
  | "kept"
  | "busy";

export type PresumedByRule = Readonly<Record<string, number>>;

/** All stored state of a key, in the fields of the storage: never rename one. */
export interface MovedKey {
  readonly move: number;
  /** When the key equals an untouched one, by the clock of the object that gave it away. */
  readonly wholeAtMs: number;
  readonly rules?: Readonly<Record<string, unknown>>;
  readonly segments: readonly MovedSegment[];
  readonly claims: readonly unknown[];
  readonly answers: readonly MovedAnswer[];
}

export interface MovedSegment {
  readonly rule: string;
  readonly log: number;
  readonly start: number;
  readonly toMs: number;
  readonly entries: readonly number[];
}

interface MovedAnswer {
  readonly idempotencyKey: string;
  readonly request: string;
  readonly answer: string;
  readonly atMs: number;
}

/** These keys are now stored at the sender. */
export interface KeysStored extends Versioned {
  readonly taken: {
    readonly policy: string;
    readonly keys: readonly { readonly key: string; readonly move: number }[];
  };
}

/** A call at an object that does not have its key. The receiver never forwards it again. */
export interface ForwardedCall extends Versioned {
  readonly passedOn: {
    readonly policy: string;
    readonly key: string;
    readonly method: string;
    readonly args: readonly unknown[];
    /** The names of the objects that may have the key. A receiver must know them all to find it. */
    readonly mayBeAt: readonly string[];
  };
}

/** The result of a forwarded call; `isElsewhere`: it was not executed, since the key is not here either. */
export type ForwardedResult = { readonly returned: unknown } | { readonly isElsewhere: true };
