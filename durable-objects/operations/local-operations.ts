import type { Cost } from "../../core/protocol/cost.ts";
import type { Returned, WantedHold } from "../../core/protocol/messages.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { Holds } from "./holds.ts";
import { keyReport } from "./key-report.ts";
import { Leases } from "./leases.ts";
import { Limits } from "./limits.ts";
import type { Acquiring, Operations, Reserve } from "./operations.ts";
import { Reservations } from "./reservations.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** The operations of an object that decides alone. None of them waits for I/O. */
export class LocalOperations implements Operations {
  /** `PooledOperations` use it in two halves: they settle what the holder used, ask the pool, and then grant. */
  readonly reservations: Reservations;
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;
  readonly #limits: Limits;
  readonly #holds: Holds;
  readonly #leases: Leases;

  constructor(store: KeyStore, queue: WaitQueue) {
    this.#store = store;
    this.#queue = queue;
    this.#limits = new Limits(store, queue);
    this.reservations = new Reservations(store, this.#limits, queue);
    this.#holds = new Holds(store, queue);
    this.#leases = new Leases(store, queue);
  }

  limit(keyState: KeyState, cost: Cost, idempotencyKey: string | undefined, nowMs: number) {
    return this.#limits.limit(keyState, cost, idempotencyKey, nowMs);
  }

  refund(keyState: KeyState, units: Cost, idempotencyKey: string, nowMs: number) {
    return this.#limits.refund(keyState, units, idempotencyKey, nowMs);
  }

  reserve(keyState: KeyState, call: Reserve, nowMs: number) {
    return this.reservations.reserve(keyState, call, nowMs);
  }

  giveBack(keyState: KeyState, returned: Returned, nowMs: number) {
    this.reservations.giveBack(keyState, returned, nowMs);
  }

  hold(keyState: KeyState, call: WantedHold, nowMs: number) {
    return this.#holds.hold(keyState, call, nowMs);
  }

  settle(keyState: KeyState, id: string, used: Cost, nowMs: number) {
    return this.#holds.settle(keyState, id, used, nowMs);
  }

  cancel(keyState: KeyState, id: string, nowMs: number) {
    return this.#holds.cancel(keyState, id, nowMs);
  }

  acquire(keyState: KeyState, call: Acquiring, nowMs: number) {
    return this.#leases.acquire(keyState, call, nowMs);
  }

  renew(keyState: KeyState, id: string, ttlMs: number | undefined, nowMs: number) {
    return this.#leases.renew(keyState, id, ttlMs, nowMs);
  }

  release(keyState: KeyState, id: string, nowMs: number) {
    return this.#leases.release(keyState, id, nowMs);
  }

  peek(keyState: KeyState, nowMs: number) {
    const rules = this.#leases.look(keyState, 1, nowMs);
    return keyReport(keyState, rules, this.#queue.waitersOf(keyState), nowMs);
  }

  reset(keyState: KeyState, nowMs: number) {
    this.#store.reset(keyState, nowMs);
    this.#queue.serve(keyState);
  }
}
