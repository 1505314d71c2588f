import type { Queued } from "../../core/accounts/wait-times.ts";
import type { Policy } from "../../core/policies/policy.ts";

/** A caller that waits for units of a key. */
export interface Waiter extends Queued {
  /** When the caller began to wait. */
  readonly sinceMs: number;
  /** How important its call is: see queue-order.ts. Absent: as calls that say nothing. */
  readonly priority?: string | undefined;
  /** It only waits for calls on several keys to end (contention.ts): where nothing is leased, others may pass it. */
  readonly isBrief?: boolean | undefined;
  /**
   * Tries to answer the caller. `undefined`: it is answered, and leaves the line. Otherwise the milliseconds until the
   * next try can succeed; `Infinity`: no instant is known.
   */
  attempt(nowMs: number): number | undefined;
  /** Answers the caller for the last time: its wait is over. */
  giveUp(nowMs: number): void;
  /** The caller's promise rejects: nobody can be answered here any more. */
  fail(error: Error): void;
}

/** A caller that waits until a key has no leases. */
export interface Idler {
  /** When it stops waiting. */
  readonly untilMs: number;
  resolve(): void;
  fail(error: Error): void;
}

/** All that wait for one key. */
export interface Line {
  /** The policy by which the line was served last. */
  policy: Policy;
  readonly waiters: Waiter[];
  readonly idlers: Set<Idler>;
  /** Cancels the timer. */
  cancel: (() => void) | undefined;
  /** Ends the pin that keeps the key in memory while callers wait for it. */
  readonly unpin: () => void;
}

/** The part of an `AbortSignal` by which a waiting caller leaves. */
export type LeaveSignal = Pick<AbortSignal, "aborted" | "addEventListener">;
