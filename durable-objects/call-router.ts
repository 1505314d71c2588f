import type { CallerHolds } from "./operations/holds.ts";
import type { Entry } from "./keys/key-state.ts";
import type { Grants } from "./operations/reservations.ts";
import type { Ledger } from "./keys/key-store.ts";
import { TO_NOBODY, type Acquiring, type Leases } from "./operations/leases.ts";
import type { Limits } from "./operations/limits.ts";
import type { Regional } from "./pool/pooled-operations.ts";
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
import type { WaitingRoom } from "./operations/wait-queue.ts";

/** Who does what with a key that has been opened. */
export interface Clerks {
  readonly ledger: Ledger;
  readonly room: WaitingRoom;
  readonly limits: Limits;
  readonly grants: Grants;
  readonly leases: Leases;
  readonly holds: CallerHolds;
}

/**
 * Hands every call on a key to whoever decides it: this object alone, or, when its policy has a pool, the region's side of
 * that, which is loaded with the first of them.
 */
export class Desk {
  readonly #clerks: Clerks;
  readonly #load: () => Promise<Regional>;
  #regional: Promise<Regional> | undefined;

  constructor(clerks: Clerks, load: () => Promise<Regional>) {
    this.#clerks = clerks;
    this.#load = load;
  }

  limit(entry: Entry, cost: Cost, idempotencyKey: string | undefined, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(entry, (regional) => regional.limit(entry, cost, idempotencyKey)) ??
      this.#clerks.limits.limit(entry, cost, idempotencyKey, nowMs)
    );
  }

  reserve(entry: Entry, call: Omit<ReserveCall, "policy" | "key">, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(entry, (regional) => regional.reserve(entry, call)) ??
      this.#clerks.grants.reserve(entry, call, nowMs)
    );
  }

  giveBack(entry: Entry, returned: Returned, nowMs: number): void {
    this.#clerks.grants.giveBack(entry, returned, nowMs);
    void this.#pooled(entry, (regional) => regional.gaveBack(entry));
  }

  refund(entry: Entry, units: Cost, idempotencyKey: string, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(entry, (regional) => regional.refund(entry, units, idempotencyKey)) ??
      this.#clerks.limits.refund(entry, units, idempotencyKey, nowMs)
    );
  }

  hold(entry: Entry, call: Omit<HoldCall, "policy" | "key">, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(entry, (regional) => regional.hold(entry, call)) ??
      this.#clerks.holds.hold(entry, call, nowMs)
    );
  }

  settle(entry: Entry, id: string, used: Cost, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(entry, (regional) => regional.settle(entry, id, used)) ??
      this.#clerks.holds.settle(entry, id, used, nowMs)
    );
  }

  cancel(entry: Entry, id: string, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(entry, (regional) => regional.cancel(entry, id)) ??
      this.#clerks.holds.cancel(entry, id, nowMs)
    );
  }

  acquire(entry: Entry, call: Acquiring, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(entry, (regional) => regional.acquire(entry, call)) ??
      this.#clerks.leases.acquire(entry, call, nowMs)
    );
  }

  /** The same for a caller who may have gone by then: what it was granted is taken back. */
  async acquireFor(
    entry: Entry,
    call: Acquiring & { readonly signal: AbortSignal },
    nowMs: number,
  ): Promise<AnswerText> {
    const { signal, idempotencyKey } = call;
    if (signal.aborted) return TO_NOBODY;
    const answer = await this.acquire(entry, call, nowMs);
    // A repeated call has its lease from before: it is not this one's to take back.
    if (signal.aborted && idempotencyKey === undefined) await this.release(entry, call.id, nowMs);
    return answer;
  }

  renew(entry: Entry, id: string, ttlMs: number | undefined, nowMs: number): Maybe<AnswerText> {
    return (
      this.#pooled(entry, (regional) => regional.renew(entry, id, ttlMs)) ??
      this.#clerks.leases.renew(entry, id, ttlMs, nowMs)
    );
  }

  release(entry: Entry, id: string, nowMs: number): Maybe<boolean> {
    return (
      this.#pooled(entry, (regional) => regional.release(entry, id)) ??
      this.#clerks.leases.release(entry, id, nowMs)
    );
  }

  peek(entry: Entry, nowMs: number): Maybe<Peeked> {
    const { leases, room } = this.#clerks;
    return (
      this.#pooled(entry, (regional) => regional.peek(entry)) ??
      report(entry, leases.look(entry, 1, nowMs), room.waitersOf(entry), nowMs)
    );
  }

  async reset(entry: Entry, nowMs: number): Promise<void> {
    const pooled = this.#pooled(entry, (regional) => regional.reset(entry));
    if (pooled !== undefined) return await pooled;
    this.#clerks.ledger.reset(entry, nowMs);
    this.#clerks.room.serve(entry);
  }

  #pooled<Result>(
    { policy }: Entry,
    ask: (regional: Regional) => Maybe<Result>,
  ): Promise<Awaited<Result>> | undefined {
    if (policy.pool === undefined) return undefined;
    this.#regional ??= this.#load();
    return this.#regional.then(ask) as Promise<Awaited<Result>>;
  }
}
