import type { Holds } from "./operations/holds.ts";
import type { KeyState } from "./keys/key-state.ts";
import type { Reservations } from "./operations/reservations.ts";
import type { KeyStore } from "./keys/key-store.ts";
import { TO_NOBODY, type Acquiring, type Leases } from "./operations/leases.ts";
import type { Limits } from "./operations/limits.ts";
import type { PooledOperations } from "./pool/pooled-operations.ts";
import type {
  AnswerText,
  Cost,
  HoldCall,
  Maybe,
  Peeked,
  ReserveCall,
  Returned,
} from "../core/protocol/messages.ts";
import { report } from "./operations/key-report.ts";
import type { WaitQueue } from "./operations/wait-queue.ts";

/** Who does what with a key that has been opened. */
export interface Clerks {
  readonly store: KeyStore;
  readonly queue: WaitQueue;
  readonly limits: Limits;
  readonly reservations: Reservations;
  readonly leases: Leases;
  readonly holds: Holds;
}

/**
 * Hands every call on a key to whoever decides it: this object alone, or, when its policy has a pool, the region's side of
 * that, which is loaded with the first of them.
 */
export class Desk {
  readonly #clerks: Clerks;
  readonly #load: () => Promise<PooledOperations>;
  #regional: Promise<PooledOperations> | undefined;

  constructor(clerks: Clerks, load: () => Promise<PooledOperations>) {
    this.#clerks = clerks;
    this.#load = load;
  }

  limit(
    keyState: KeyState,
    cost: Cost,
    idempotencyKey: string | undefined,
    nowMs: number,
  ): Maybe<AnswerText> {
    return (
      this.#pooled(keyState, (regional) => regional.limit(keyState, cost, idempotencyKey)) ??
      this.#clerks.limits.limit(keyState, cost, idempotencyKey, nowMs)
    );
  }

  reserve(keyState: KeyState, call: Omit<ReserveCall, "policy" | "key">, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(keyState, (regional) => regional.reserve(keyState, call)) ??
      this.#clerks.reservations.reserve(keyState, call, nowMs)
    );
  }

  giveBack(keyState: KeyState, returned: Returned, nowMs: number): void {
    this.#clerks.reservations.giveBack(keyState, returned, nowMs);
    void this.#pooled(keyState, (regional) => regional.gaveBack(keyState));
  }

  refund(keyState: KeyState, units: Cost, idempotencyKey: string, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(keyState, (regional) => regional.refund(keyState, units, idempotencyKey)) ??
      this.#clerks.limits.refund(keyState, units, idempotencyKey, nowMs)
    );
  }

  hold(keyState: KeyState, call: Omit<HoldCall, "policy" | "key">, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(keyState, (regional) => regional.hold(keyState, call)) ??
      this.#clerks.holds.hold(keyState, call, nowMs)
    );
  }

  settle(keyState: KeyState, id: string, used: Cost, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(keyState, (regional) => regional.settle(keyState, id, used)) ??
      this.#clerks.holds.settle(keyState, id, used, nowMs)
    );
  }

  cancel(keyState: KeyState, id: string, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(keyState, (regional) => regional.cancel(keyState, id)) ??
      this.#clerks.holds.cancel(keyState, id, nowMs)
    );
  }

  acquire(keyState: KeyState, call: Acquiring, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(keyState, (regional) => regional.acquire(keyState, call)) ??
      this.#clerks.leases.acquire(keyState, call, nowMs)
    );
  }

  /** The same for a caller who may have gone by then: what it was granted is taken back. */
  async acquireFor(
    keyState: KeyState,
    call: Acquiring & { readonly signal: AbortSignal },
    nowMs: number,
  ): Promise<AnswerText> {
    const { signal, idempotencyKey } = call;
    if (signal.aborted) return TO_NOBODY;
    const answer = await this.acquire(keyState, call, nowMs);
    // A repeated call has its lease from before: it is not this one's to take back.
    if (signal.aborted && idempotencyKey === undefined) await this.release(keyState, call.id, nowMs);
    return answer;
  }

  renew(keyState: KeyState, id: string, ttlMs: number | undefined, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(keyState, (regional) => regional.renew(keyState, id, ttlMs)) ??
      this.#clerks.leases.renew(keyState, id, ttlMs, nowMs)
    );
  }

  release(keyState: KeyState, id: string, nowMs: number): Maybe<boolean> {
    return (
      this.#pooled(keyState, (regional) => regional.release(keyState, id)) ??
      this.#clerks.leases.release(keyState, id, nowMs)
    );
  }

  peek(keyState: KeyState, nowMs: number): Maybe<Peeked> {
    const { leases, queue } = this.#clerks;
    return (
      this.#pooled(keyState, (regional) => regional.peek(keyState)) ??
      report(keyState, leases.look(keyState, 1, nowMs), queue.waitersOf(keyState), nowMs)
    );
  }

  async reset(keyState: KeyState, nowMs: number): Promise<void> {
    const pooled = this.#pooled(keyState, (regional) => regional.reset(keyState));
    if (pooled !== undefined) return await pooled;
    this.#clerks.store.reset(keyState, nowMs);
    this.#clerks.queue.serve(keyState);
  }

  #pooled<Result>(
    { policy }: KeyState,
    ask: (regional: PooledOperations) => Maybe<Result>,
  ): Promise<Awaited<Result>> | undefined {
    if (policy.pool === undefined) return undefined;
    this.#regional ??= this.#load();
    return this.#regional.then(ask) as Promise<Awaited<Result>>;
  }
}
