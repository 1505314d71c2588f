/**
 * What callers of an object say to it, and what it answers.
 *
 * Versions mix while a deployment is rolled out, so these shapes only grow: a field may be added, and is optional
 * then. A change that an older object would misread raises `PROTOCOL`.
 */
import type { DenialReason } from "../algorithms/algorithm.ts";
import type { Cost } from "./cost.ts";

/**
 * The version of these messages. A message says which version its sender speaks; an object that knows only lower
 * ones changes nothing and answers `unsupported`. Methods with plain arguments (`limit` and the like, see
 * object-methods.ts) are of version 1 for ever, so any object can be asked for a decision.
 */
export const PROTOCOL = 1;

/** Goes with each message. Absent: version 1, which was sent without a number before there was one. */
export interface Versioned {
  readonly protocol?: number;
}

/** What one rule said of a cost. */
export interface RuleDecision {
  readonly name: string;
  readonly success: boolean;
  /** The most units that can be admitted at once. */
  readonly limit: number;
  /** The largest cost that would pass now. */
  readonly remaining: number;
  /** Milliseconds until the quota is whole again if nobody comes. */
  readonly resetAfterMs: number;
  /** Milliseconds. 0 when admitted; when denied the exact wait for this cost; `null`: it never passes. */
  readonly retryAfterMs: number | null;
  readonly reason: "ok" | DenialReason;
}

/** What all rules of a policy said. The call was admitted when every one of them says so. */
export interface Decided {
  readonly rules: readonly RuleDecision[];
  /** Why an acquire ended without a lease, if not because of a rule alone. */
  readonly reason?: "wait-timeout" | "queue-full";
  /** How long an acquire stood in the queue, in milliseconds. */
  readonly waitedMs?: number;
  readonly lease?: Lease;
  readonly hold?: Hold;
  readonly reserved?: Reserved;
  /** With a reservation, when nothing is left for anybody: what a call of cost 1 would be answered. */
  readonly next?: readonly RuleDecision[];
  /**
   * The call decides on several keys, and was denied only for units that another such call has apart for the moment.
   */
  readonly isContended?: boolean;
  /** Who decided, if it was not the object. */
  readonly source?: "pool" | "fallback";
}

/**
 * A lease. The object knows it by an `id` that is random and nothing else; the caller's id says where to go as well
 * (`claimId`).
 */
export interface Lease {
  readonly id: string;
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
}

/** Units that are set apart for a caller. Its `id` is as a lease's is. */
export interface Hold {
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

/** The object knows the protocol up to this version only. Nothing has changed. */
export interface Unsupported {
  readonly unsupported: { readonly protocol: number };
}

/** What a key's object may answer. */
export type Answer = Decided | Conflict | Missing;

/** An answer as JSON text. Sending a nested object instead costs a tenth of the whole call. */
export type AnswerText = string;

/**
 * What the object says of a key that is looked at: what a cost of 1 would be answered, and who has and wants units of
 * it.
 */
export interface Peeked extends Decided {
  /** Units held by somebody who may still use them, leased ones included. */
  readonly outstanding: number;
  /** How many holds and leases callers have. */
  readonly holds: number;
  readonly leases: number;
  /** How many leases expired instead of being released, since the key was last forgotten. */
  readonly reclaimed: number;
  /** How many callers wait for a lease, and how long the one that waits longest has, in milliseconds. */
  readonly queueLength: number;
  readonly longestWaitMs: number;
}

/**
 * Decides on a cost, as `limit` does, and reserves units for a holder (an isolate), who spends them without asking.
 *
 * A message says all there is to know of the holder so far, so it does not matter which of the earlier ones arrived:
 * `turn` rises with each, and what comes late or twice changes nothing.
 */
export interface ReserveCall extends Versioned {
  readonly policy: string;
  readonly key: string;
  /** 0: no caller waits for a decision. */
  readonly cost: Cost;
  /** The holder's id, which nobody can guess. */
  readonly holder: string;
  readonly turn: number;
  /**
   * How long the units are wanted, in milliseconds. The holder has counted from before it asked, so it always stops
   * first.
   */
  readonly ttlMs: number;
  /** Calls had to wait for units: whatever is granted is used at once. */
  readonly isShort: boolean;
  /** By the name of the rule. */
  readonly rules: Readonly<Record<string, Reserving>>;
}

/** What a holder says of one rule. */
export interface Reserving {
  /** Units used since the holder began. */
  readonly used: number;
  /** Units that it goes on to have; all others that it had are free again. */
  readonly kept: number;
  /** Units that it would like to have, those that are kept included. */
  readonly wanted: number;
}

/** What a holder is granted. */
export interface Reserved {
  /** How long the units may be spent, in milliseconds: as long as was asked for, or less. */
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

/** Asks for units that are given back: of rules that lease, a lease; of the other rules they are used. */
export interface AcquireCall extends Versioned {
  readonly policy: string;
  readonly key: string;
  readonly cost: Cost;
  readonly ttlMs: number;
  readonly waitMs: number;
  /**
   * The id of the lease if it is granted, which nobody can guess. The caller draws it, so it can end the lease
   * without having heard the answer.
   */
  readonly id: string;
  readonly idempotencyKey?: string;
  /** The lease ends this soon unless `confirm` comes: for callers who may have gone when it is granted. */
  readonly confirmWithinMs?: number;
}

/** Waits until a key has no leases. */
export interface IdleCall extends Versioned {
  readonly policy: string;
  readonly key: string;
  readonly waitMs: number;
}

/** Sets units apart, to be settled with what was used. */
export interface HoldCall extends Versioned {
  readonly policy: string;
  readonly key: string;
  readonly cost: Cost;
  readonly ttlMs: number;
  readonly idempotencyKey?: string;
  /**
   * Present when this is part of a call on several keys: how long it waits for other such calls to end (0: not at
   * all), and that call in words, to tell another one under the same idempotency key.
   */
  readonly provisional?: { readonly waitMs: number; readonly request: string };
}

/** What to answer a message of a version that is not known here; `undefined`: it is. */
export function unsupportedOf({ protocol = 1 }: Versioned): Unsupported | undefined {
  return protocol > PROTOCOL ? { unsupported: { protocol: PROTOCOL } } : undefined;
}
