/**
 * What may be called of an object over Workers RPC. Names and arguments are sent between versions that mix, so they
 * stay as they are; what is new comes as a field of a message or as another method.
 */
import type { Cost } from "./cost.ts";
import type { AcquireCall, AnswerText, HoldCall, Lease, Peeked, ReserveCall, Returned } from "./messages.ts";

/** An answer that is there at once, or later. */
export type Maybe<Value> = Value | Promise<Value>;

/**
 * A lease with what its holder needs: disposing of `slot`, which the runtime does when the holder ends, releases it.
 */
export interface Attached {
  readonly answer: AnswerText;
  readonly slot?: Rpc.RpcTargetBranded;
  /** Moves the lease's end; throws when there is no lease any more. */
  readonly renew?: (call?: { readonly ttlMs?: number }) => Promise<Lease>;
  /** Ends the lease; throws when there is none any more. */
  readonly release?: () => Promise<void>;
}

/** The object's methods. Costs and units are whole numbers, keys normalised: nothing is checked again. */
export interface LimiterMethods {
  limit(policy: string, key: string, cost: Cost, idempotencyKey?: string): Maybe<AnswerText>;
  reserve(call: ReserveCall): Maybe<AnswerText>;
  giveBack(policy: string, returned: readonly Returned[]): void;
  refund(policy: string, key: string, units: Cost, idempotencyKey: string): Maybe<AnswerText>;
  hold(call: HoldCall): Maybe<AnswerText>;
  settle(policy: string, key: string, id: string, used: Cost): Maybe<AnswerText>;
  cancel(policy: string, key: string, id: string): Maybe<AnswerText>;
  acquire(call: AcquireCall): Promise<Attached>;
  confirm(policy: string, key: string, id: string, ttlMs: number, isAttached: boolean): Maybe<Attached>;
  renew(policy: string, key: string, id: string, ttlMs?: number): Maybe<AnswerText>;
  release(policy: string, key: string, id: string): Maybe<boolean>;
  peek(policy: string, key: string): Maybe<Peeked>;
  reset(policy: string, key: string): Maybe<void>;
}
