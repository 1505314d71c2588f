import { Holds } from "../../durable-objects/operations/holds.ts";
import type { Time } from "../../core/clock.ts";
import { Desk } from "../../durable-objects/call-router.ts";
import type { KeyState } from "../../durable-objects/keys/key-state.ts";
import { Reservations } from "../../durable-objects/operations/reservations.ts";
import { KeyCache } from "../../durable-objects/keys/key-cache.ts";
import { Leases } from "../../durable-objects/operations/leases.ts";
import { KeyStore } from "../../durable-objects/keys/key-store.ts";
import { Limits } from "../../durable-objects/operations/limits.ts";
import type { Policies } from "../../core/policies/parse-policies.ts";
import type { Pool } from "../../durable-objects/pool/redis/redis-pool.ts";
import { PooledOperations } from "../../durable-objects/pool/pooled-operations.ts";
import type { HoldCall, AcquireCall, Cost, ReserveCall, Returned } from "../../core/protocol/messages.ts";
import { Storage } from "../../durable-objects/storage/storage.ts";
import { WaitQueue } from "../../durable-objects/operations/wait-queue.ts";
import type { Database } from "./database.ts";
import type { VirtualTime } from "./virtual-time.ts";

/** A call that a region's object is asked, as RPC has it. */
export type Asked =
  | { readonly method: "limit"; readonly cost: Cost; readonly idempotencyKey?: string }
  | { readonly method: "reserve"; readonly call: ReserveCall }
  | { readonly method: "giveBack"; readonly returned: readonly Returned[] }
  | { readonly method: "hold"; readonly call: HoldCall }
  | { readonly method: "settle"; readonly id: string; readonly used: Cost }
  | { readonly method: "cancel"; readonly id: string }
  | { readonly method: "refund"; readonly units: Cost; readonly idempotencyKey: string }
  | { readonly method: "acquire"; readonly call: AcquireCall }
  | { readonly method: "renew"; readonly id: string; readonly ttlMs: number }
  | { readonly method: "release"; readonly id: string }
  | { readonly method: "reset" };

/** What a process has in memory; it ends with it. */
interface Memory {
  readonly life: { isGone: boolean };
  readonly store: KeyStore;
  readonly cache: KeyCache;
  readonly desk: Desk;
  lastNowMs: number;
}

/** What a process does after its end. */
export class Gone extends Error {}

export interface RegionParts {
  readonly database: Database;
  readonly policies: Pick<Policies, "get">;
  readonly time: VirtualTime;
  readonly clock: { ms: number };
  readonly poolFor: (time: Time) => Pool;
  readonly policy: string;
  readonly key: string;
}

/** The object of one region: the production modules on a storage that outlives them. */
export class SimulatedRegion {
  readonly #parts: RegionParts;
  #memory: Memory;
  isVanished = false;
  #latestMs = -Infinity;

  constructor(parts: RegionParts) {
    this.#parts = parts;
    this.#memory = this.#start();
  }

  get nowMs(): number {
    return nowMsOf(this.#memory, this.#parts);
  }

  /** The latest instant that it ever saw. */
  get latestMs(): number {
    this.#latestMs = Math.max(this.#latestMs, this.nowMs);
    return this.#latestMs;
  }

  /** Its memory is gone: a crash, an eviction, a deployment. */
  crash(): void {
    this.#memory.life.isGone = true;
    this.#memory = this.#start();
  }

  vanish(): void {
    this.isVanished = true;
    this.#memory.life.isGone = true;
  }

  open(): KeyState {
    const { policy, key } = this.#parts;
    return this.#memory.store.open(policy, key, this.nowMs);
  }

  writeQuiet(): void {
    this.#memory.cache.writeQuiet(this.nowMs);
  }

  /** Never settles when the process ends before. */
  handle(asked: Asked): Promise<unknown> {
    if (this.isVanished) return new Promise(() => undefined);
    const { life } = this.#memory;
    return new Promise((resolve, reject) => {
      const answered = async () => this.#answer(asked);
      answered().then(
        (answer) => {
          if (!life.isGone) resolve(answer);
        },
        (error: Error) => {
          // The runtime says no more of it than that it failed.
          if (!life.isGone) reject(error);
        },
      );
    });
  }

  #answer(asked: Asked): unknown {
    const { desk } = this.#memory;
    const [entry, nowMs] = [this.open(), this.nowMs];
    switch (asked.method) {
      case "limit":
        return desk.limit(entry, asked.cost, asked.idempotencyKey, nowMs);
      case "reserve":
        return desk.reserve(entry, asked.call, nowMs);
      case "giveBack":
        return asked.returned.forEach((each) => desk.giveBack(entry, each, nowMs));
      case "hold":
        return desk.hold(entry, asked.call, nowMs);
      case "settle":
        return desk.settle(entry, asked.id, asked.used, nowMs);
      case "cancel":
        return desk.cancel(entry, asked.id, nowMs);
      case "refund":
        return desk.refund(entry, asked.units, asked.idempotencyKey, nowMs);
      case "acquire":
        return desk.acquire(entry, asked.call, nowMs);
      case "renew":
        return desk.renew(entry, asked.id, asked.ttlMs, nowMs);
      case "release":
        return desk.release(entry, asked.id, nowMs);
      case "reset":
        break;
    }
    return desk.reset(entry, nowMs);
  }

  #start(): Memory {
    const { database, policies, time, clock } = this.#parts;
    const life = { isGone: false };
    const storage = new Storage(mortal(database.storage, life));
    const cache = new KeyCache(storage);
    const store = new KeyStore(policies, storage, cache, () => undefined);
    const nowMs = () => nowMsOf(memory, this.#parts);
    const toNow = (entry: KeyState) => {
      cache.advance(entry, nowMs());
      return nowMs();
    };
    const queue = new WaitQueue(toNow);
    const limits = new Limits(store, queue);
    const reservations = new Reservations(store, limits, queue);
    const clerks = {
      store,
      queue,
      limits,
      reservations,
      leases: new Leases(store, queue),
      holds: new Holds(store, queue),
    };
    const clocked = { ...time.clock(clock, () => life.isGone), nowMs };
    const openAlone = () => {
      throw new Error("no policy here goes on alone");
    };
    const pool = this.#parts.poolFor(clocked);
    const host = { ...clerks, pool, time: clocked, toNow, openAlone };
    const desk = new Desk(clerks, () => Promise.resolve(new PooledOperations(host)));
    const memory: Memory = { life, store, cache, desk, lastNowMs: 0 };
    return memory;
  }
}

/** A clock that never runs backwards while the process lives. */
function nowMsOf(memory: Memory, { time, clock }: RegionParts): number {
  memory.lastNowMs = Math.max(memory.lastNowMs, Math.floor(time.nowMs) + clock.ms);
  return memory.lastNowMs;
}

/** A storage that a process which has ended cannot reach. */
function mortal(storage: DurableObjectStorage, life: { readonly isGone: boolean }): DurableObjectStorage {
  const alive = () => {
    if (life.isGone) throw new Gone("the process has ended");
  };
  return {
    sql: {
      exec: (...args: Parameters<SqlStorage["exec"]>) => {
        alive();
        return storage.sql.exec(...args);
      },
    },
    transactionSync: (work: () => unknown) => {
      alive();
      return storage.transactionSync(work);
    },
  } as unknown as DurableObjectStorage;
}
