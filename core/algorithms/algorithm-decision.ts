/** What an algorithm says of a cost. */

/**
 * Why a cost is denied: too few units are left, the last call was too recent, or the cost can never pass. `shed`: the
 * units that are left are kept for more important calls. `blocked`: an earlier denial blocked the key for a while.
 */
export type DenialReason = "quota" | "min-interval" | "cost-over-limit" | "shed" | "blocked";

interface Figures {
  /** The largest cost that would pass right after this decision, 0 or more. */
  readonly remaining: number;
  /** Units that are left of the quota. Present where they may be more than `remaining`: between two calls (`minInterval`). */
  readonly quotaRemaining?: number;
  /** Milliseconds until the quota is whole if no call comes and no outstanding unit is used. */
  readonly resetAfterMs: number;
}

export interface Allowed<State> extends Figures {
  readonly allowed: true;
  /** How long the caller should wait before it goes on, in milliseconds, 1 or more; absent: it goes on at once. */
  readonly delayMs?: number;
  /** The next state; `undefined`: as untouched. */
  readonly state: State | undefined;
}

export interface Denied<State = unknown> extends Denial {
  readonly allowed: false;
  /** Present when this denial counts: the state with it, and the figures of that state. */
  readonly counted?: Denial & { readonly state: State };
}

export interface Denial extends Figures {
  readonly reason: DenialReason;
  /**
   * The exact wait for this cost in milliseconds, while `outstanding` stays as it is: one millisecond earlier is
   * denied. `null`: no wait is long enough.
   */
  readonly retryAfterMs: number | null;
}

export type AlgorithmDecision<State> = Allowed<State> | Denied<State>;
