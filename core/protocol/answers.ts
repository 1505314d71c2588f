/**
 * What an object answers to the messages of clients (isolates). As with messages, fields are only added, never renamed,
 * and an added field is optional.
 */
import type { DenialReason } from "../algorithms/algorithm.ts";
import type { Cost } from "../policies/policy.ts";
import type { Full } from "./problems.ts";

/** What one rule said of a cost. */
export interface RuleDecision {
  readonly name: string;
  readonly success: boolean;
  /** The most units that can be admitted at once; where the limit adapts: today. */
  readonly limit: number;
  /** The largest cost that would pass now. */
  readonly remaining: number;
  /** Under `minInterval`: the units that are left of the quota, though it may be too soon for a call. */
  readonly quotaRemaining?: number;
  /** Milliseconds until all units are there again, if no call comes before. */
  readonly resetAfterMs: number;
  /** 0 when admitted; when denied the exact wait for this cost in milliseconds; `null`: the cost never passes. */
  readonly retryAfterMs: number | null;
  readonly reason: "ok" | DenialReason;
  /** When admitted: how long the caller should wait before it goes on, in milliseconds. Absent: it goes on at once. */
  readonly delayMs?: number;
}

/** The answer of all rules of a policy. The call was admitted when every rule admitted it. */
export interface Decided {
  readonly rules: readonly RuleDecision[];
  /** Why a call that would wait was denied, when it was not only denied by a rule. */
  readonly reason?: "wait-timeout" | "queue-full";
  /** How long an acquire, or a `limit` that may wait, stood in the queue, in milliseconds. */
  readonly waitedMs?: number;
  readonly lease?: Lease;
  readonly hold?: Hold;
  readonly reserved?: Reserved;
  /** When a call of cost 1 would be denied now: what the rules say of that call. Older objects say it with a reservation. */
  readonly next?: readonly RuleDecision[];
  /**
   * For how many milliseconds a denial stands before its wait is over, here and in `next`, unless a refund, a reset or
   * another policy lifts it. Absent: units that others hold may come back at any time.
   */
  readonly firmForMs?: number;
  /** A hold was denied only because of units that calls on several keys hold for the moment. They end soon. */
  readonly isContended?: boolean;
  /** Who decided. Absent: the object. */
  readonly source?: "pool" | "fallback";
}

/** A lease. Between client and object, `id` is only the random part. A caller gets another one (`claimId`). */
export interface Lease {
  readonly id: string;
  /** Rises with every lease of the key, so that a protected resource can refuse a holder whose lease is over. */
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
  /** Callers only: the lease ends after so many milliseconds unless it is renewed. Present when that was asked for. */
  readonly confirmWithinMs?: number;
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

/** The call was shed, since the machines behind the policy are too busy. */
export interface Shed {
  /** How long until calls like it are not shed any more if the trouble ends now, in milliseconds. */
  readonly restoredInMs: number;
}

/** What is shed of a key's calls: see core/shedding/load-shedder.ts. */
export interface SheddingLevel {
  readonly level: number;
  readonly troubleMs: number;
  /** The mean of what was reported, and how long ago the last report came, in milliseconds; `null`: there is none. */
  readonly utilization: number | null;
  readonly reportedAgoMs: number;
  /** When the object began to count, by its own clock: what it has told since, nobody need tell it. */
  readonly sinceMs: number;
}

/** A lease has been ended. */
export interface Released {
  readonly released: true;
}

/** There is no such hold, lease or charge: it has ended, or it never existed. */
export interface Missing {
  readonly missing: true;
}

/** The object only knows the protocol up to this version. The message has changed nothing. */
export interface UnsupportedProtocol {
  readonly unsupported: { readonly protocol: number };
}

/** What the object grants a holder. */
export interface Reserved {
  /** The lifetime of the units in milliseconds: as long as the holder asked for, or less. */
  readonly ttlMs: number;
  /** The object did not know the holder's units (after a crash, say): the kept ones may not be spent any more. */
  readonly isNew: boolean;
  /** By the name of the rule: units granted in addition to the kept ones. */
  readonly units: Readonly<Record<string, number>>;
  /** By the name of the rule: what the holder may say of it until the next message. Older objects do not tell. */
  readonly prospects?: Readonly<Record<string, Prospect>>;
}

/** What will become of one rule while a holder has its units. */
export interface Prospect {
  /** Milliseconds until all units are there again if nobody comes, though all that holders have be used. */
  readonly resetAfterMs: number;
  /**
   * By how many units `remaining` will have grown after each part of `ttlMs` if nobody takes any, the parts being
   * equal. Absent: it does not grow.
   */
  readonly gains?: readonly number[];
}

/** What the object of a key may answer. */
export type Answer = Decided | Conflict | Missing | Full | { readonly shed: Shed };

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
  /** How many callers wait for units, and how long the first of them has waited, in milliseconds. */
  readonly queueLength: number;
  readonly longestWaitMs: number;
  /** Present when the policy sheds calls. */
  readonly shedding?: SheddingReport;
}

/** What is shed of a key's calls, as callers see it. */
export interface SheddingReport {
  /** How busy the machines are, from 0 to 1; `null`: nobody has reported lately. */
  readonly utilization: number | null;
  /** By priority: the chance, from 0 to 1, with which a call is shed. */
  readonly chances: Readonly<Record<string, number>>;
}

/** One key in a list: what a look at it says. Figures are those of the rule that binds, as in a decision. */
export interface ListedKey {
  readonly key: string;
  readonly limit: number;
  readonly remaining: number;
  readonly resetAfterMs: number;
  readonly outstanding: number;
  readonly holds: number;
  readonly leases: number;
}

/** The next keys of one object, and whether it has more. */
export interface KeyList {
  readonly keys: readonly ListedKey[];
  readonly hasMore: boolean;
}

/** How many keys of one object there are. */
export interface KeyCount {
  readonly count: number;
}
