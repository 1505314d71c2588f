/**
 * The messages that clients (isolates) send to an object, and the object's answers.
 *
 * While a deployment is rolled out, old and new versions talk to each other. So fields are only added, never renamed,
 * and an added field is optional. A change that an older object would misread needs a higher `PROTOCOL`.
 */
import type { DenialReason } from "../algorithms/algorithm.ts";
import type { Cost } from "./cost.ts";

/**
 * The version of these messages. A message says which version its sender speaks. An object that knows only lower
 * versions changes nothing and answers `unsupported`. Methods with plain arguments (`limit` and others, see
 * object-methods.ts) stay at version 1 for ever, so every object can be asked for a decision.
 */
export const PROTOCOL = 1;

/** The version of a message. Absent: version 1, whose first senders knew no version number. */
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
  /** Milliseconds until all units are there again, if no call comes before. */
  readonly resetAfterMs: number;
  /** 0 when admitted; when denied the exact wait for this cost in milliseconds; `null`: the cost never passes. */
  readonly retryAfterMs: number | null;
  readonly reason: "ok" | DenialReason;
}

/** The answer of all rules of a policy. The call was admitted when every rule admitted it. */
export interface Decided {
  readonly rules: readonly RuleDecision[];
  /** Why an acquire ended without a lease, when it was not only denied by a rule. */
  readonly reason?: "wait-timeout" | "queue-full";
  /** How long an acquire waited in the queue, in milliseconds. */
  readonly waitedMs?: number;
  readonly lease?: Lease;
  readonly hold?: Hold;
  readonly reserved?: Reserved;
  /** With a reservation, when a call of cost 1 would be denied now: what the rules say of that call. */
  readonly next?: readonly RuleDecision[];
  /** A hold was denied only because of units that calls on several keys hold for the moment. They end soon. */
  readonly isContended?: boolean;
  /** Who decided. Absent: the object. */
  readonly source?: "pool" | "fallback";
}

/**
 * A lease. Between client and object, `id` is only the random part. A caller gets an id that has policy and key in it
 * too (`claimId`).
 */
export interface Lease {
  readonly id: string;
  /** Rises with every lease of the key, so that a protected resource can refuse a holder whose lease is over. */
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
}

/** Units that are set apart for a caller. Its `id` is made as that of a lease. */
export interface Hold {
  readonly id: string;
  readonly units: Cost;
  readonly expiresAfterMs: number;
}

/** The idempotency key was used for another request before; `request` is that request in words. */
export interface Conflict {
  readonly conflict: { readonly request: string };
}

/** There is no such hold or lease: it has ended, or it never existed. */
export interface Missing {
  readonly missing: true;
}

/** The object only knows the protocol up to this version. The message has changed nothing. */
export interface Unsupported {
  readonly unsupported: { readonly protocol: number };
}

/** What the object of a key may answer. */
export type Answer = Decided | Conflict | Missing;

/** An answer as JSON text. To send a nested object instead costs a tenth of the whole call. */
export type AnswerText = string;

/** The answer to `peek`: what a cost of 1 would be answered, and how many callers hold units or wait for them. */
export interface Peeked extends Decided {
  /** Units that isolates and callers hold, leased units included. */
  readonly outstanding: number;
  /** How many holds and how many leases callers have. */
  readonly holds: number;
  readonly leases: number;
  /** How many leases expired and were not released, since the object last forgot the key. */
  readonly reclaimed: number;
  /** How many callers wait for a lease, and how long the first of them has waited, in milliseconds. */
  readonly queueLength: number;
  readonly longestWaitMs: number;
}

/**
 * Decides on a cost, as `limit` does, and reserves units for a holder (an isolate), which spends them without asking.
 *
 * A message has totals since the holder began, so it does not matter which earlier messages arrived. `turn` rises
 * with each message, and a message that comes late or twice changes nothing.
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
   * How long the units are wanted, in milliseconds. The holder counts from before it asks, so it always stops first.
   */
  readonly ttlMs: number;
  /** Calls have to wait for units, so granted units are used at once. */
  readonly isShort: boolean;
  /** By the name of the rule. */
  readonly rules: Readonly<Record<string, Reserving>>;
}

/** A holder's numbers for one rule. */
export interface Reserving {
  /** Units used since the holder began. */
  readonly used: number;
  /** Units that the holder keeps. All others that it had are free again. */
  readonly kept: number;
  /** Units that the holder wants to have, the kept ones included. */
  readonly wanted: number;
}

/** What the object grants a holder. */
export interface Reserved {
  /** The lifetime of the units in milliseconds: as long as the holder asked for, or less. */
  readonly ttlMs: number;
  /** The object did not know the holder's units (after a crash, say): the kept ones may not be spent any more. */
  readonly isNew: boolean;
  /** By the name of the rule: units granted in addition to the kept ones. */
  readonly units: Readonly<Record<string, number>>;
}

/** The end of a holder's reservation: units that it did not use are free again. */
export interface Returned {
  readonly key: string;
  readonly holder: string;
  readonly turn: number;
  /** By the name of the rule: units used since the holder began. */
  readonly used: Readonly<Record<string, number>>;
}

/** Asks for a lease. Units of rules that lease belong to the lease; units of the other rules are used at once. */
export interface AcquireCall extends Versioned {
  readonly policy: string;
  readonly key: string;
  readonly cost: Cost;
  /** How long the lease lasts unless it is renewed, in milliseconds. */
  readonly ttlMs: number;
  /** The longest wait in the queue, in milliseconds. */
  readonly waitMs: number;
  /** The random id of the lease. The sender makes it, so it can end the lease even if the answer is lost. */
  readonly id: string;
  readonly idempotencyKey?: string;
  /** The lease ends after so many milliseconds unless `confirm` comes: the caller may have gone while it waited. */
  readonly confirmWithinMs?: number;
}

/** Waits until a key has no leases, for `waitMs` milliseconds at most. */
export interface IdleCall extends Versioned {
  readonly policy: string;
  readonly key: string;
  readonly waitMs: number;
}

/** Sets units apart for `ttlMs` milliseconds, until the caller settles them with the units that it used. */
export interface HoldCall extends Versioned {
  readonly policy: string;
  readonly key: string;
  readonly cost: Cost;
  readonly ttlMs: number;
  readonly idempotencyKey?: string;
  /**
   * Present when this is a part of a call on several keys. `waitMs`: how many milliseconds it waits for other such
   * calls to end. `request`: the whole call in words, to tell it from another call with the same idempotency key.
   */
  readonly provisional?: { readonly waitMs: number; readonly request: string };
}

/** What an acquire asks for, and what a hold does: a message without its address. */
export type WantedLease = Omit<AcquireCall, "policy" | "key" | "protocol">;
export type WantedHold = Omit<HoldCall, "policy" | "key" | "protocol">;

/** The answer to a message whose version is not known here; `undefined`: the version is known. */
export function unsupportedOf({ protocol = 1 }: Versioned): Unsupported | undefined {
  return protocol > PROTOCOL ? { unsupported: { protocol: PROTOCOL } } : undefined;
}
