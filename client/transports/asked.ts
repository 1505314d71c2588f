/** What calls say. They are the arguments of the service binding. */
import type { Cost } from "../../core/protocol/cost.ts";

/** Names a key. `policy` may be left out where the limiter has one of its own. */
export interface KeyAsked {
  readonly policy?: string;
  readonly key: string;
}

/** What several calls may say. */
interface Asked extends KeyAsked {
  /** How important the call is: one of the policy's priorities. */
  readonly priority?: string;
  readonly idempotencyKey?: string;
}

/** Asks for a decision on a cost. */
export interface LimitAsked extends Asked {
  /** Units to take if they all fit; 0 looks. Absent: 1. */
  readonly cost?: Cost;
  /** The decision is to carry a `charge`, which a refund names. */
  readonly refundable?: boolean;
  /** The longest wait for its turn, in milliseconds. */
  readonly waitMs?: number;
  /** The units are taken whatever is there. */
  readonly force?: boolean;
  /** How busy the caller's machine is, from 0 to 1. */
  readonly utilization?: number;
}

/** Asks for decisions on several keys: all or nothing, unless `atomic` is false. */
export interface LimitAllAsked {
  readonly checks: readonly (KeyAsked & { readonly cost?: Cost })[];
  readonly atomic?: boolean;
  readonly priority?: string;
  readonly idempotencyKey?: string;
}

/** Gives back units of one charge. */
export interface RefundAsked extends KeyAsked {
  readonly units: Cost;
  readonly idempotencyKey: string;
  readonly charge?: string;
}

/** Asks for a hold. */
export interface HoldAsked extends Asked {
  readonly units: Cost;
  readonly ttlMs?: number;
}

/** Asks for a lease. */
export interface AcquireAsked extends Asked {
  /** Absent: 1. */
  readonly units?: Cost;
  readonly ttlMs?: number;
  /** The longest wait in the queue, in milliseconds. */
  readonly waitMs?: number;
  readonly utilization?: number;
  /**
   * Over a service binding: the lease ends so many milliseconds after the request that acquired it, or after its link
   * breaks, unless it is released or resumed. Elsewhere it is refused.
   */
  readonly graceMs?: number;
  /** Over a service binding: the id of a lease of this policy and key, which is taken over. Elsewhere it is refused. */
  readonly resume?: string;
}

/** Asks what is left of a key. */
export interface PeekAsked extends KeyAsked {
  /** The answer comes when the key has no leases, or after `waitMs` milliseconds. */
  readonly waitFor?: "idle";
  readonly waitMs?: number;
}

/** An `AbortSignal`. The platforms have types of their own for it, or none. */
export interface Signal {
  readonly aborted: boolean;
  readonly reason: unknown;
  throwIfAborted(): void;
  addEventListener(type: "abort", listener: () => void, options?: { readonly once?: boolean }): void;
  removeEventListener(type: "abort", listener: () => void): void;
}

/** What ends a call before it is answered: then it throws the signal's reason. */
export interface Abortable {
  readonly signal?: Signal | undefined;
}
