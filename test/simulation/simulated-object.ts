import { andThen, type Time } from "../../core/clock.ts";
import type { Cost, Policies, Policy } from "../../core/policies/policy.ts";
import type { Answer, AnswerText } from "../../core/protocol/answers.ts";
import type {
  LimitCall,
  ReserveCall,
  GiveBackMessage,
  SheddingCall,
  Versioned,
} from "../../core/protocol/calls.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import { makeAsk } from "../../durable-objects/key-calls.ts";
import { collectGarbage } from "../../durable-objects/keys/garbage-collection.ts";
import { KeyCache, MAX_BYTES, MemoryBudget } from "../../durable-objects/keys/key-cache.ts";
import type { KeyState } from "../../durable-objects/keys/key-state.ts";
import { KeyStore, Timers } from "../../durable-objects/keys/key-store.ts";
import { Epochs } from "../../durable-objects/operations/limits.ts";
import { localOperations } from "../../durable-objects/operations/local-operations.ts";
import type { AskKey } from "../../durable-objects/operations/operations.ts";
import { Shedders } from "../../durable-objects/operations/shedders.ts";
import { WaitQueue } from "../../durable-objects/operations/wait-queue.ts";
import { Storage } from "../../durable-objects/storage/storage.ts";
import type { Database } from "./database.ts";
import type { Method } from "./network.ts";

/** The parts of an object in a process's memory. */
export interface Memory {
  readonly storage: Storage;
  readonly cache: KeyCache;
  readonly store: KeyStore;
  readonly queue: WaitQueue;
  readonly ask: AskKey;
  readonly shedders: Shedders;
  readonly epochs: Epochs;
}

const NO_ALARM = { getAlarm: () => Promise.resolve(null), setAlarm: () => Promise.resolve() };

/** One object: the production modules on a storage that outlives them. Their clock never runs backwards. */
export class SimulatedObject {
  readonly database: Database;
  readonly #policies: Policies;
  readonly #readClockMs: () => number;
  readonly #time: Time | undefined;
  readonly #mostKeys: number | undefined;
  #memory: Memory;
  #timers: Timers;

  constructor(
    database: Database,
    policies: Policies,
    readClockMs: () => number,
    time?: Time,
    mostKeys?: number,
  ) {
    this.#time = time;
    this.#mostKeys = mostKeys;
    this.database = database;
    this.#policies = policies;
    this.#readClockMs = readClockMs;
    this.#timers = new Timers(NO_ALARM, readClockMs);
    this.#memory = this.#start();
  }

  get nowMs(): number {
    return this.#timers.nowMs();
  }

  /** Loses the memory, by a crash, an eviction or a deployment. */
  crash(): void {
    this.#timers = new Timers(NO_ALARM, this.#readClockMs);
    this.#memory = this.#start();
  }

  open({ name }: Pick<Policy, "name">, key: string): KeyState {
    return this.#memory.store.open(name, key, this.nowMs);
  }

  /** The alarm: forgets refilled keys. */
  collectGarbage(): void {
    const { cache, storage } = this.#memory;
    storage.sweeps.begin();
    const work = collectGarbage({
      storage,
      cache,
      policies: this.#policies,
      timers: { nowMs: () => this.nowMs },
    });
    let step = work.next();
    while (step.done !== true) step = work.next();
    if (step.value === undefined) void storage.removeAll();
  }

  get memory(): Memory {
    return this.#memory;
  }

  /** Runs a call with the operations of a key: for calls that may wait. */
  get ask(): AskKey {
    return this.#memory.ask;
  }

  handle(method: Method, args: readonly unknown[]): unknown {
    if (method === "reserve") return this.reserve(...(args as Parameters<typeof this.reserve>));
    if (method === "giveBack") return this.giveBack(...(args as Parameters<typeof this.giveBack>));
    if (method === "refund") return this.refund(...(args as Parameters<typeof this.refund>));
    if (method === "reset") return this.reset(...(args as Parameters<typeof this.reset>));
    if (method === "shedding") return this.shedding(...(args as Parameters<typeof this.shedding>));
    if (method === "limitCall") return this.limitCall(...(args as Parameters<typeof this.limitCall>));
    return this.limit(...(args as Parameters<typeof this.limit>));
  }

  limit(policy: string, key: string, cost: Cost): AnswerText {
    return this.limitCall({ policy, key, cost });
  }

  limitCall({ policy, key, ...call }: LimitCall): AnswerText {
    this.#hear(key, call);
    return now(
      this.#memory.ask(policy, key, (operations, keyState, nowMs) =>
        andThen(operations.limit(keyState, call, nowMs), this.#inEpoch(keyState, call)),
      ),
    );
  }

  reserve({ policy, key, ...call }: ReserveCall): AnswerText {
    this.#hear(key, call);
    return now(
      this.#memory.ask(policy, key, (operations, keyState, nowMs) =>
        andThen(operations.reserve(keyState, call, nowMs), this.#inEpoch(keyState, call)),
      ),
    );
  }

  #inEpoch(keyState: KeyState, call: Versioned): (answer: Answer) => Answer {
    return (answer) => this.#memory.epochs.written(keyState, call, answer);
  }

  giveBack(policy: string, returned: readonly GiveBackMessage[]): void {
    for (const each of returned)
      void this.#memory.ask(policy, each.key, (operations, keyState, nowMs) =>
        operations.giveBack(keyState, each, nowMs),
      );
  }

  refund(policy: string, key: string, units: Cost, idempotencyKey: string): AnswerText {
    this.#memory.epochs.lift();
    return now(
      this.#memory.ask(policy, key, (operations, keyState, nowMs) =>
        operations.refund(keyState, { units, idempotencyKey }, nowMs),
      ),
    );
  }

  shedding({ policy, key, ...call }: SheddingCall): AnswerText {
    const { ask, shedders } = this.#memory;
    return JSON.stringify(ask(policy, key, (_, keyState, nowMs) => shedders.tell(keyState, call, nowMs)));
  }

  reset(policy: string, key: string): void {
    this.#memory.epochs.lift();
    void this.#memory.ask(policy, key, (operations, keyState, nowMs) => operations.reset(keyState, nowMs));
  }

  #hear(key: string, { inForce }: Versioned): void {
    this.#memory.epochs.hear(inForce);
    if (inForce !== undefined) this.#memory.cache.versions.note(key, inForce);
  }

  #start(): Memory {
    const storage = new Storage(this.database.storage);
    const most = this.#mostKeys;
    const memory = most === undefined ? undefined : new MemoryBudget(most, MAX_BYTES);
    const cache = new KeyCache(storage, memory);
    const store = new KeyStore(this.#policies, storage, cache, () => undefined);
    const queue = new WaitQueue((keyState) => {
      keyState.advance(this.nowMs);
      return this.nowMs;
    }, this.#time);
    const shedders = new Shedders();
    const ask = makeAsk({
      local: localOperations(store, queue, shedders),
      loadPooled: () => Promise.reject(new Error("there are no pools")),
      open: (policy, key) => {
        const keyState = store.open(policy, key, this.nowMs);
        keyState.holders.noteClock(this.#timers.isBehind);
        queue.follow(keyState);
        return [keyState, this.nowMs];
      },
      release: (keyState) => cache.release(keyState),
    });
    return { storage, cache, store, queue, ask, shedders, epochs: new Epochs() };
  }
}

/** An answer as text. None is a promise here: only calls on several keys make others wait. */
function now(answer: MaybePromise<Answer>): AnswerText {
  if (answer instanceof Promise) throw new Error("nobody is to wait");
  return JSON.stringify(answer);
}
