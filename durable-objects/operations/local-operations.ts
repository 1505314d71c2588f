import { outstandingOf } from "../../core/accounts/account.ts";
import type { Cost } from "../../core/policies/policy.ts";
import type { Peeked, RuleDecision } from "../../core/protocol/answers.ts";
import type { Returned, HoldParams } from "../../core/protocol/messages.ts";
import type { Counter } from "../../core/stats/tally.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { Holds, Leases } from "./claims.ts";
import { Limits } from "./limits.ts";
import type {
  Acquiring,
  Limiting,
  LinkChange,
  Operations,
  Releasing,
  Reserve,
  Waiter,
} from "./operations.ts";
import { Reservations } from "./reservations.ts";
import type { Shedders } from "./shedders.ts";
import { Turns } from "./turns.ts";
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
  readonly #turns: Turns;
  readonly #shedders: Shedders;

  /** @param counter absent: nobody counts leases */
  constructor(store: KeyStore, queue: WaitQueue, shedders: Shedders, counter?: Pick<Counter, "add">) {
    this.#store = store;
    this.#queue = queue;
    this.#shedders = shedders;
    this.#turns = new Turns(queue);
    this.#limits = new Limits(store, queue, this.#turns);
    this.reservations = new Reservations(store, this.#limits, queue, this.#turns);
    this.#holds = new Holds(store, queue, this.#turns);
    this.#leases = new Leases(store, queue, this.#turns, counter);
  }

  limit(keyState: KeyState, call: Limiting, nowMs: number) {
    return this.#limits.limit(keyState, call, nowMs);
  }

  refund(keyState: KeyState, units: Cost, idempotencyKey: string, charge: string | undefined, nowMs: number) {
    return this.#limits.refund(keyState, units, idempotencyKey, charge, nowMs);
  }

  reserve(keyState: KeyState, call: Reserve, nowMs: number) {
    return this.reservations.reserve(keyState, call, nowMs);
  }

  giveBack(keyState: KeyState, returned: Returned, nowMs: number) {
    this.reservations.giveBack(keyState, returned, nowMs);
  }

  hold(keyState: KeyState, call: HoldParams, nowMs: number) {
    return this.#holds.hold(keyState, call, nowMs);
  }

  settle(keyState: KeyState, id: string, used: Cost, nowMs: number) {
    return this.#holds.settle(keyState, id, used, nowMs);
  }

  cancel(keyState: KeyState, id: string, nowMs: number) {
    return this.#holds.cancel(keyState, id, nowMs);
  }

  acquire(keyState: KeyState, call: Acquiring, nowMs: number) {
    const answer = this.#leases.acquire(keyState, call, nowMs);
    this.#shedders.note(keyState, nowMs);
    return answer;
  }

  renew(keyState: KeyState, id: string, ttlMs: number | undefined, nowMs: number, link?: LinkChange) {
    return this.#leases.renew(keyState, id, ttlMs, nowMs, link);
  }

  release(keyState: KeyState, id: string, nowMs: number, releasing?: Releasing) {
    const isReleased = this.#leases.release(keyState, id, nowMs, releasing);
    this.#shedders.note(keyState, nowMs);
    return isReleased;
  }

  peek(keyState: KeyState, nowMs: number) {
    const rules = this.#turns.look(keyState, { cost: 1 }, nowMs);
    const shedding = this.#shedders.report(keyState, nowMs);
    return {
      ...keyReport(keyState, rules, this.#queue.waitersOf(keyState), nowMs),
      ...(shedding && { shedding }),
    };
  }

  reset(keyState: KeyState, nowMs: number) {
    this.#store.reset(keyState, nowMs);
    this.#shedders.reset(keyState, nowMs);
    this.#queue.serve(keyState);
  }
}

/** What `peek` answers of a key: what its rules say, how many units are held, and how many callers wait. */
function keyReport(
  keyState: KeyState,
  rules: readonly RuleDecision[],
  waiters: readonly Waiter[],
  nowMs: number,
): Peeked {
  const count = { hold: 0, lease: 0 };
  for (const { kind } of keyState.claims.values()) count[kind] += 1;
  const reclaimed = keyState.ruleStates.map(({ rule, account }) =>
    account.state === undefined ? 0 : (rule.algorithm.leasing?.reclaimed(account.state) ?? 0),
  );
  return {
    rules,
    outstanding: Math.max(...keyState.accounts.map(outstandingOf)),
    holds: count.hold,
    leases: count.lease,
    reclaimed: Math.max(...reclaimed),
    queueLength: waiters.length,
    longestWaitMs: waiters[0] === undefined ? 0 : nowMs - waiters[0].sinceMs,
  };
}
