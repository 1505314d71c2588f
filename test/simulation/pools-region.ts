import type { Time } from "../../core/clock.ts";
import type { Cost, Policies } from "../../core/policies/policy.ts";
import type { HoldCall, AcquireCall, ReserveCall, GiveBackMessage } from "../../core/protocol/calls.ts";
import { makeAsk } from "../../durable-objects/key-calls.ts";
import { KeyCache } from "../../durable-objects/keys/key-cache.ts";
import type { KeyState } from "../../durable-objects/keys/key-state.ts";
import { KeyStore } from "../../durable-objects/keys/key-store.ts";
import { localOperations } from "../../durable-objects/operations/local-operations.ts";
import type { AskKey, Operations } from "../../durable-objects/operations/operations.ts";
import { Shedders } from "../../durable-objects/operations/shedders.ts";
import { WaitQueue } from "../../durable-objects/operations/wait-queue.ts";
import { PooledOperations } from "../../durable-objects/pool/pooled-operations.ts";
import type { Pool } from "../../durable-objects/pool/protocol.ts";
import { Storage } from "../../durable-objects/storage/storage.ts";
import type { Database } from "./database.ts";
import type { VirtualTime } from "./virtual-time.ts";

export type Asked =
  | { readonly method: "limit"; readonly cost: Cost; readonly idempotencyKey?: string }
  | { readonly method: "reserve"; readonly call: ReserveCall }
  | { readonly method: "giveBack"; readonly returned: readonly GiveBackMessage[] }
  | { readonly method: "hold"; readonly call: HoldCall }
  | { readonly method: "settle"; readonly id: string; readonly used: Cost }
  | { readonly method: "cancel"; readonly id: string }
  | {
      readonly method: "refund";
      readonly units: Cost;
      readonly idempotencyKey: string;
      readonly charge?: string;
    }
  | { readonly method: "acquire"; readonly call: AcquireCall }
  | { readonly method: "renew"; readonly id: string; readonly ttlMs: number }
  | { readonly method: "release"; readonly id: string }
  | { readonly method: "reset" };

/** The memory of a process, lost at its end. */
interface Memory {
  readonly life: { isGone: boolean };
  readonly store: KeyStore;
  readonly cache: KeyCache;
  readonly ask: AskKey;
  lastNowMs: number;
}

/** Thrown when an ended process uses its storage. */
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

  get latestMs(): number {
    this.#latestMs = Math.max(this.#latestMs, this.nowMs);
    return this.#latestMs;
  }

  /** Loses the memory, by a crash, an eviction or a deployment. */
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

  /** Answers a call. The promise never settles if the process ends before. */
  handle(asked: Asked): Promise<unknown> {
    if (this.isVanished) return new Promise(() => undefined);
    const { life } = this.#memory;
    return new Promise((resolve, reject) => {
      const answered = async () => this.#answer(asked);
      answered().then(
        (answer) => {
          if (!life.isGone) resolve(asSent(asked, answer));
        },
        (error: Error) => {
          // The runtime only reports that it failed.
          if (!life.isGone) reject(error);
        },
      );
    });
  }

  #answer(asked: Asked): unknown {
    const { policy, key } = this.#parts;
    return this.#memory.ask<unknown>(policy, key, (operations, keyState, nowMs) =>
      answerOf(asked, operations, keyState, nowMs),
    );
  }

  #start(): Memory {
    const { database, policies, time, clock } = this.#parts;
    const life = { isGone: false };
    const storage = new Storage(mortal(database.storage, life));
    const cache = new KeyCache(storage);
    const store = new KeyStore(policies, storage, cache, () => undefined);
    const nowMs = () => nowMsOf(memory, this.#parts);
    const toNow = (keyState: KeyState) => {
      keyState.advance(nowMs());
      return nowMs();
    };
    const queue = new WaitQueue(toNow);
    const local = localOperations(store, queue, new Shedders());
    const clocked = { ...time.clock(clock, () => life.isGone), nowMs };
    const openAlone = () => {
      throw new Error("no policy here goes on alone");
    };
    const pool = this.#parts.poolFor(clocked);
    const host = { store, queue, local, pool, time: clocked, toNow, openAlone };
    const ask = makeAsk({
      local,
      loadPooled: () => Promise.resolve(new PooledOperations(host)),
      open: (policy, key) => [store.open(policy, key, nowMs()), nowMs()],
      release: (keyState) => cache.release(keyState),
    });
    const memory: Memory = { life, store, cache, ask, lastNowMs: 0 };
    return memory;
  }
}

function answerOf(asked: Asked, operations: Operations, keyState: KeyState, nowMs: number): unknown {
  switch (asked.method) {
    case "limit":
      return operations.limit(keyState, asked, nowMs);
    case "reserve":
      return operations.reserve(keyState, asked.call, nowMs);
    case "giveBack":
      return asked.returned.forEach((each) => operations.giveBack(keyState, each, nowMs));
    case "hold":
      return operations.hold(keyState, asked.call, nowMs);
    case "settle":
      return operations.settle(keyState, asked, nowMs);
    case "cancel":
      return operations.cancel(keyState, asked, nowMs);
    case "refund":
      return operations.refund(keyState, asked, nowMs);
    case "acquire":
      return operations.acquire(keyState, asked.call, nowMs);
    case "renew":
      return operations.renew(keyState, asked, nowMs);
    case "release":
      return operations.release(keyState, asked, nowMs);
    case "reset":
      break;
  }
  return operations.reset(keyState, nowMs);
}

/** Decisions are sent as text; whether a lease was released is not. */
function asSent({ method }: Asked, answer: unknown): unknown {
  return ["giveBack", "release", "reset"].includes(method) ? answer : JSON.stringify(answer);
}

/** A clock that never runs backwards while the process lives. */
function nowMsOf(memory: Memory, { time, clock }: RegionParts): number {
  memory.lastNowMs = Math.max(memory.lastNowMs, Math.floor(time.nowMs) + clock.ms);
  return memory.lastNowMs;
}

/** The storage of one process. After its end each access throws `Gone`. */
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
    kv: storage.kv,
    transactionSync: (work: () => unknown) => {
      alive();
      return storage.transactionSync(work);
    },
  } as unknown as DurableObjectStorage;
}
