import type { PolicyRevision } from "../policies/policy-revision.ts";
import type { AnswerText, Lease, Peeked } from "./answers.ts";
/**
 * The methods of an object over Workers RPC. Old and new versions call each other while a deployment is rolled out.
 * So never change a name or an argument: add a field to a message, or add a method.
 */
import type { Cost } from "./cost.ts";
import type {
  AcquireCall,
  Batch,
  HoldCall,
  KeysCall,
  LeaseReport,
  LimitCall,
  RefundCall,
  ReleaseCall,
  ReserveCall,
  Returned,
  SetCall,
  SheddingCall,
  Versioned,
} from "./messages.ts";
import type { HandOver, ForwardedResult, ForwardedCall, KeysStored } from "./moves.ts";

/** A value that is there at once, or later. */
export type MaybePromise<Value> = Value | Promise<Value>;

/**
 * A lease with a handle for its holder. When the holder ends, the runtime disposes of `slot`: the lease is released.
 */
export interface Attached {
  readonly answer: AnswerText;
  readonly slot?: Rpc.RpcTargetBranded;
  /** Moves the lease's end to `ttlMs` from now. It throws an error of status 404 when the lease has ended. */
  readonly renew?: (call?: { readonly ttlMs?: number }) => Promise<Lease>;
  /** Ends the lease as reported. It throws an error of status 404 when the lease has ended. */
  readonly release?: (report?: LeaseReport) => Promise<void>;
}

/** What names the key that a call is about. */
interface OfKey extends Versioned {
  readonly policy: string;
  readonly key: string;
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
  | ({ readonly op: "peek" | "reset" } & OfKey);

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
