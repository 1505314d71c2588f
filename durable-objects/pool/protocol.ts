/**
 * What is said to a pool in Redis: one call of the script, and its answer. Every program that shares the pool says it in
 * these words, so they only grow. docs/pools.md has the layout of the keys.
 *
 * Only durations go in. Instants of the server's clock come out as marks, which mean nothing but to the server itself.
 * Units stand in the order of `rules`.
 */
import type { RuleDecision } from "../../core/protocol/messages.ts";

/** A pool of units, wherever it is. */
export interface Pool {
  /**
   * One call, one round trip.
   *
   * @param keys all keys of the pool that the call may touch: see `poolKeys`
   * @throws when there is no answer within the deadline, or none that makes sense; the call may still be carried out
   */
  call(keys: readonly string[], call: PoolCall, deadlineMs: number): Promise<PoolAnswer>;
}

export interface PoolCall {
  /**
   * - `limit`: decides on `cost`, and takes it; where units are leased, with `holding` and without `request`, adds it to
   *   what that holder has
   * - `hold`: decides on `cost`, and sets it apart under `id` for `ttlMs`, units that are leased as a lease
   * - `settle`: ends the hold or lease `id`: `used` of it is debited, of a lease nothing
   * - `renew`: moves the end of the hold or lease `id` to `ttlMs` from now
   * - `refund`: gives `cost` back, at most up to an untouched quota
   * - `peek`: looks at what `cost` would be answered; takes nothing
   * - `reset`: forgets consumption and the holds and leases of `hold`; what `holding`s have stays apart
   */
  readonly op: "limit" | "hold" | "settle" | "renew" | "refund" | "peek" | "reset";
  readonly rules: readonly PoolRule[];
  readonly cost: readonly number[];
  readonly id?: string;
  readonly ttlMs?: number;
  /** Of `settle`: units that were used, -1 for as many as were held; absent: none were. */
  readonly used?: readonly number[];
  /** The call is to be charged once, however often it comes: what it is, in words. */
  readonly request?: string;
  readonly holding?: Holding;
}

/** A rule, with the configuration of its algorithm. */
export interface PoolRule {
  readonly name: string;
  /** One of the registry's. */
  readonly algorithm: string;
  readonly limit: number;
  /** Of a rate. */
  readonly windowMs?: number;
  /** Of a token bucket. */
  readonly burst?: number;
  /** Of a sliding log. */
  readonly minIntervalMs?: number;
  readonly countDenied?: boolean;
}

/**
 * What somebody who holds units of the pool (a region) says of itself: all there is to know, so it does not matter which
 * of the earlier messages arrived. It is taken note of before the call is decided.
 */
export interface Holding {
  readonly holder: string;
  /** Rises with each message of the holder. */
  readonly turn: number;
  /** It has begun anew: `used` counts from 0 again, and of rates it does not know what it had. */
  readonly isFresh: boolean;
  /** The mark of the last answer that it had; absent: none. If the pool does not know of it, it has lost writes. */
  readonly seen?: Mark;
  /** Units used since it began; of those that are leased 0. */
  readonly used: readonly number[];
  /** Units that it goes on to have; all others that it had are free again. */
  readonly kept: readonly number[];
  /** Units that it would like to have, those that are kept included; the cost of the call comes on top. */
  readonly wanted: readonly number[];
  /** Calls had to wait: whatever is granted is used at once. */
  readonly isShort: boolean;
  /** How long units are wanted, and how long it is to be when they cannot be spared for so long. */
  readonly lifetime: PoolLifetime;
  readonly shortest: PoolLifetime;
  /** The longest for which anybody may have leased units, after writes were lost. */
  readonly mostHeldMs: number;
  /** How many leases it has given, and how many callers wait there, for whoever looks. */
  readonly leases: number;
  readonly queueLength: number;
}

export interface PoolLifetime {
  readonly ttlMs: number;
  /** How long the pool keeps units apart for it. */
  readonly heldMs: number;
}

/** An answer, as the server remembers it. Opaque: it goes back as it came. */
export interface Mark {
  readonly turn: number;
  readonly atMs: number;
  readonly untilMs: number;
  readonly wholeMs?: number;
}

/** Numbers of the sizing (sizing.ts) that the script computes with. */
export interface PoolSizing {
  readonly mostShare: number;
  readonly spareShare: number;
  readonly mostHolders: number;
  readonly rememberedMs: number;
  /** Fencing tokens that a holder may give out between two messages. */
  readonly fencingTokens: number;
}

export interface PoolAnswer {
  /** Absent with `missing` and `conflict`, and after `renew`. */
  readonly rules?: readonly RuleDecision[];
  /** There is no such hold or lease, or no longer. */
  readonly missing?: true;
  /** The idempotency key was used for another request, which was this. */
  readonly conflict?: { readonly request: string };
  /** What `hold` set apart. */
  readonly hold?: { readonly id: string; readonly expiresAfterMs: number; readonly fencingToken?: string };
  /** How long what was renewed lasts. */
  readonly expiresAfterMs?: number;
  readonly granted?: Granted;
  /** When nothing is left for anybody: what a cost of 1 would be answered. */
  readonly next?: readonly RuleDecision[];
  /** Of `peek`. */
  readonly report?: {
    readonly outstanding: number;
    readonly holds: number;
    readonly leases: number;
    readonly reclaimed: number;
    readonly queueLength: number;
  };
}

/** What a holder has been given. */
export interface Granted {
  /** A later message of the holder was there before; nothing has changed. Its turn. */
  readonly overtakenBy?: number;
  readonly mark: Mark;
  /** The pool did not know its units (they expired, or were lost): of rates, what was kept may not be spent any more. */
  readonly isNew: boolean;
  /** Units granted beside those that are kept and the cost. Below 0: so many of the slots kept are not there any more. */
  readonly units: readonly number[];
  readonly ttlMs: number;
  /** Others want units too: what is not needed should go back at once. */
  readonly isContended: boolean;
  /** The first of the fencing tokens that it may give out now. A decimal number as text. */
  readonly fencingToken?: string;
}
