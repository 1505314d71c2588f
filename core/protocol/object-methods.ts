import type { Cost, Layout, PolicyRevision } from "../policies/policy.ts";
import type { AnswerText, Lease, Peeked } from "./answers.ts";
import type {
  AcquireCall,
  Batch,
  HoldCall,
  KeysCall,
  LeaseReport,
  LimitCall,
  OfKey,
  RefundCall,
  ReleaseCall,
  ReserveCall,
  Returned,
  SetCall,
  SheddingCall,
  Versioned,
} from "./messages.ts";

/**
 * The methods of an object over Workers RPC. Old and new versions call each other while a deployment is rolled out.
 * So never change a name or an argument: add a field to a message, or add a method.
 */

/** A value that is there at once, or later. */
export type MaybePromise<Value> = Value | Promise<Value>;

/** A lease with a handle for its holder. When the holder ends, the runtime disposes of `slot`: the lease is released. */
export interface Attached {
  readonly answer: AnswerText;
  readonly slot?: Rpc.RpcTargetBranded;
  /** Moves the lease's end to `ttlMs` from now. It throws an error of status 404 when the lease has ended. */
  readonly renew?: (call?: { readonly ttlMs?: number }) => Promise<Lease>;
  /** Ends the lease as reported. It throws an error of status 404 when the lease has ended. */
  readonly release?: (report?: LeaseReport) => Promise<void>;
}

/**
 * A call on a key, as objects decide it: one message, whose `op` says what it is. The values are checked by the caller:
 * costs and units are integers, and keys are normalised.
 */
export type KeyCall =
  | ({ readonly op: "limit" } & LimitCall)
  | ({ readonly op: "set" } & SetCall)
  | ({ readonly op: "reserve" } & ReserveCall)
  | ({ readonly op: "giveBack"; readonly returned: readonly Returned[] } & OfKey)
  | ({ readonly op: "refund"; readonly charge?: string } & Omit<RefundCall, "charge">)
  | ({ readonly op: "hold" } & HoldCall)
  | ({ readonly op: "settle"; readonly id: string; readonly used: Cost } & OfKey)
  | ({ readonly op: "cancel"; readonly id: string } & OfKey)
  | ({ readonly op: "acquire" } & AcquireCall)
  | ({ readonly op: "confirm" } & ConfirmCall)
  | ({ readonly op: "renew"; readonly id: string; readonly ttlMs?: number | undefined } & OfKey)
  | ({ readonly op: "release" } & ReleaseCall)
  | ({ readonly op: "shedding" } & SheddingCall)
  | ({ readonly op: "tell"; readonly inForce: PolicyRevision } & OfKey)
  | ({ readonly op: "peek" } & OfKey)
  | ({ readonly op: "reset" } & OfKey);

/** Makes a lease last that was granted to a caller who might have gone. */
export interface ConfirmCall extends OfKey {
  readonly id: string;
  readonly ttlMs: number;
  /** It also ends with what comes back. */
  readonly isAttached: boolean;
}

/** The object's methods over Workers RPC: durable-objects/wire-methods.ts makes each of them a `KeyCall`. */
export interface LimiterMethods {
  limit(policy: string, key: string, cost: Cost, idempotencyKey?: string): MaybePromise<AnswerText>;
  limitCall(call: LimitCall): MaybePromise<AnswerText>;
  setUsed(call: SetCall): MaybePromise<AnswerText>;
  /** A call that was passed on: returns what its method returns. Objects of lower versions refuse it by value. */
  reserve(call: ForwardedCall): Promise<ForwardedResult | AnswerText>;
  reserve(call: ReserveCall | Batch | HandOver | KeysStored): MaybePromise<AnswerText>;
  giveBack(policy: string, returned: readonly Returned[]): MaybePromise<void>;
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
  shedding(call: SheddingCall): MaybePromise<AnswerText>;
  /** Says what is in force for a key. It comes before a call that has no room for it, over the same stub, in this order. */
  tell(policy: string, key: string, inForce: PolicyRevision): MaybePromise<void>;
  peek(policy: string, key: string): MaybePromise<Peeked>;
  reset(policy: string, key: string): MaybePromise<void>;
}

/** The object's methods as others call them: each call is a message, so each answer is a promise. */
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
 * The messages by which a key moves from one object to another. They go by `reserve`, which objects of lower versions
 * refuse by value.
 *
 * Only durations cross from one clock to another, so an answer says what its sender's clock was (`nowMs`).
 */

/** The version of these messages. */
export const MOVE_PROTOCOL = 4;

/** The most keys that one message asks for. */
export const MAX_MOVED = 256;
/** An answer of this many UTF-16 units has no further key. A message may have 32 MiB. */
export const MAX_MOVED_LENGTH = 2 ** 22;

/** Asks an object for keys that it had before. */
export interface HandOver extends Versioned {
  readonly handOver: {
    readonly policy: string;
    /** By this layout the sender's object has the keys. */
    readonly layout: Layout;
    readonly keys: readonly RequestedKey[];
  };
}

/** A key that is asked for. */
export interface RequestedKey {
  readonly key: string;
  /** The number of the move by which the sender gave the key away itself, if it does not know of a later one; else 0. */
  readonly move: number;
  /** What this object gave to another one never arrived there: that one has said so after it was given. */
  readonly lost?: GivenKey;
}

/** A key was given to an object, and not only once if its answer was lost. */
export interface GivenKey {
  /** The name of the object. */
  readonly to: string;
  readonly times: number;
  /** The number of the move. */
  readonly move: number;
}

/** What became of each key, in the order in which they were asked for. Those at the end may be missing. */
export interface HandedOver {
  readonly nowMs: number;
  /** The layouts of the policy that this object knows: keys may be where the asker does not look. */
  readonly layouts: readonly Layout[];
  readonly keys: readonly HandOverResult[];
}

/**
 * What became of one key. `moved`: all that there is of it. `nothing`: there is nothing of it here. `presumed`: there is
 * nothing of it here but units, by rule, that a memory before this one may have given out. `given`: another object may
 * have it. `kept`: it stays here, and is to be asked here. `busy`: it is on its way here.
 */
export type HandOverResult =
  | { readonly moved: MovedKey }
  | { readonly presumed: PresumedByRule }
  | { readonly given: GivenKey }
  | "nothing"
  | "kept"
  | "busy";

/** By the name of the rule: units that isolates may have. */
export type PresumedByRule = Readonly<Record<string, number>>;

/** All that is stored of a key. Its fields are as storage has them: never rename one. */
export interface MovedKey {
  /** It rises with each move of the key. */
  readonly move: number;
  /** From when on the key is as an untouched one, by the clock of the object that has given it away. */
  readonly wholeAtMs: number;
  /** By the name of the rule; absent: the key has no record. */
  readonly rules?: Readonly<Record<string, unknown>>;
  readonly segments: readonly MovedSegment[];
  /** Holds and leases of callers. */
  readonly claims: readonly unknown[];
  readonly answers: readonly MovedAnswer[];
}

/** A part of a rule's state that is stored apart. */
export interface MovedSegment {
  readonly rule: string;
  readonly log: number;
  readonly start: number;
  readonly toMs: number;
  readonly entries: readonly number[];
}

/** An answer that is remembered. */
export interface MovedAnswer {
  readonly idempotencyKey: string;
  readonly request: string;
  readonly answer: string;
  readonly atMs: number;
}

/** Tells that these keys are stored at the sender now. */
export interface KeysStored extends Versioned {
  readonly taken: {
    readonly policy: string;
    readonly keys: readonly { readonly key: string; readonly move: number }[];
  };
}

/** A call that came to an object which does not have its key. The receiver never passes it on again. */
export interface ForwardedCall extends Versioned {
  readonly passedOn: {
    readonly policy: string;
    readonly key: string;
    /** Of the object's methods (object-methods.ts): what the call is. */
    readonly method: string;
    readonly args: readonly unknown[];
    /** The names of the objects that may have the key. A receiver that does not know them all could not find it. */
    readonly mayBeAt: readonly string[];
  };
}

/** The result of a call that was passed on; `isElsewhere`: it was not made, since the key is not here either. */
export type ForwardedResult = { readonly returned: unknown } | { readonly isElsewhere: true };
