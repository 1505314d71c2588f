/**
 * What worker and object say to each other. During a rollout versions mix, so these shapes only grow.
 */
import type { DenialReason } from "../algorithms/algorithm.ts";

/** Units to take: of every rule, or by the unit that a rule counts; a unit that is left out counts once. */
export type Cost = number | Readonly<Record<string, number>>;

/** What one rule said. */
export interface RuleDecision {
  readonly name: string;
  readonly success: boolean;
  /** The most that can be admitted at once. */
  readonly limit: number;
  /** The largest cost that would pass now. */
  readonly remaining: number;
  /** Milliseconds until the quota is whole again if nobody comes. */
  readonly resetAfterMs: number;
  /** 0 when admitted; when denied the exact wait for this cost; `null`: never. */
  readonly retryAfterMs: number | null;
  readonly reason: "ok" | DenialReason;
}

/** All rules of one decision. It was admitted when every one of them says so. */
export interface Decided {
  readonly rules: readonly RuleDecision[];
  /** Why an acquire ended without a lease, if not because of a rule alone. */
  readonly reason?: "wait-timeout" | "queue-full";
  /** How long an acquire stood in the queue. */
  readonly waitedMs?: number;
  readonly lease?: Leased;
  readonly hold?: Held;
  readonly reserved?: Reserved;
  /** With a reservation, when nothing is left for anybody: what a call of cost 1 would be answered. */
  readonly next?: readonly RuleDecision[];
  /** A call on several keys was denied only for what others of its kind have apart for the moment. */
  readonly isContended?: boolean;
  /** Who decided, if it was not the object. */
  readonly source?: "pool" | "fallback";
}

/**
 * Decides on a cost, as `limit` does, and reserves units for a holder (an isolate), who spends them without asking.
 *
 * A message says all there is to know of the holder so far, so it does not matter which of the earlier ones arrived:
 * `turn` rises with each, and what comes late or twice changes nothing.
 */
export interface ReserveCall {
  readonly policy: string;
  readonly key: string;
  /** 0: no caller waits for a decision. */
  readonly cost: Cost;
  /** The holder's id. Unguessable. */
  readonly holder: string;
  readonly turn: number;
  /** How long the units are wanted. The holder has counted from before it asked, so it always stops first. */
  readonly ttlMs: number;
  /** Calls had to wait for units: whatever is granted is used at once. */
  readonly isShort: boolean;
  /** By the name of the rule. */
  readonly rules: Readonly<Record<string, Reserving>>;
}

export interface Reserving {
  /** Units used since the holder began. */
  readonly used: number;
  /** Units that it goes on to have; all others that it had are free again. */
  readonly kept: number;
  /** Units that it would like to have, those that are kept included. */
  readonly wanted: number;
}

export interface Reserved {
  /** How long the units may be spent: as long as was asked for, or less. */
  readonly ttlMs: number;
  /** The object did not know the holder's units (it crashed, say): what was kept may not be spent any more. */
  readonly isNew: boolean;
  /** Units granted beside those that are kept, by the name of the rule. */
  readonly units: Readonly<Record<string, number>>;
}

/** The end of a holder's reservation: what it did not use is free again. */
export interface Returned {
  readonly key: string;
  readonly holder: string;
  readonly turn: number;
  readonly used: Readonly<Record<string, number>>;
}

/** Ids are those of the object: the caller's say where to go as well (see claim-ids.ts). */
export interface Leased {
  readonly id: string;
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
}

export interface Held {
  readonly id: string;
  readonly units: Cost;
  readonly expiresAfterMs: number;
}

/** The idempotency key was used for another request; `request` is that one, in words. */
export interface Conflict {
  readonly conflict: { readonly request: string };
}

/** There is no such hold or lease, or no longer. */
export interface Missing {
  readonly missing: true;
}

export interface Peeked extends Decided {
  /** Units held by somebody who may still use them, leased ones included. */
  readonly outstanding: number;
  /** How many holds and leases callers have. */
  readonly holds: number;
  readonly leases: number;
  /** How many leases expired instead of being released, since the key was last idle for long. */
  readonly reclaimed: number;
  /** How many callers wait for a lease, and how long the one that waits longest has. */
  readonly queueLength: number;
  readonly longestWaitMs: number;
}

/** A decision or a conflict as JSON text: a nested object would cost a tenth of the whole call to send. */
export type AnswerText = string;

/** A call that takes units and gives them back: of leased rules a lease, of the others they are used. */
export interface AcquireCall {
  readonly policy: string;
  readonly key: string;
  readonly cost: Cost;
  readonly ttlMs: number;
  readonly waitMs: number;
  /** The id of the lease if it is granted: who asks can end it without having heard the answer. Unguessable. */
  readonly id: string;
  readonly idempotencyKey?: string;
  /** The lease ends this soon unless `confirm` comes: for callers who may have gone when it is granted. */
  readonly confirmWithinMs?: number;
}

/** A call that waits until a key has no leases. */
export interface IdleCall {
  readonly policy: string;
  readonly key: string;
  readonly waitMs: number;
}

/** A call that sets units apart, to be settled with what was used. */
export interface HoldCall {
  readonly policy: string;
  readonly key: string;
  readonly cost: Cost;
  readonly ttlMs: number;
  readonly idempotencyKey?: string;
  /**
   * Part of a call that decides on several keys: so long it waits for others like it to end (0: not at all), and the
   * call in words, to tell another one under the same idempotency key.
   */
  readonly provisional?: { readonly waitMs: number; readonly request: string };
}

/** A lease with what its holder needs: disposing of `slot`, which the runtime does when the holder ends, releases it. */
export interface Attached {
  readonly answer: AnswerText;
  readonly slot?: Rpc.RpcTargetBranded;
  /** Moves the lease's end; throws when there is no lease any more. */
  readonly renew?: (call?: { readonly ttlMs?: number }) => Promise<Leased>;
  /** Ends the lease; throws when there is none any more. */
  readonly release?: () => Promise<void>;
}

export type Maybe<Value> = Value | Promise<Value>;

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

/** Reads what `limit` and the like answer. */
export function readAnswer(text: AnswerText): Decided | Conflict | Missing {
  return JSON.parse(text) as Decided | Conflict | Missing;
}
