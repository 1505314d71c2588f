/** One key of a concurrency policy: its object, and calls of it at an instant that a test sets. */
import type { Decided, GivenSlots, Peeked, Slots } from "../../core/protocol/answers.ts";
import type { SlotsCall } from "../../core/protocol/calls.ts";
import { callerIn } from "../../core/protocol/names.ts";
import type { KeyCall } from "../../core/protocol/object-methods.ts";
import { joinParts, KeyCalls } from "../../durable-objects/key-calls.ts";
import { Timers } from "../../durable-objects/keys/key-store.ts";
import { Storage } from "../../durable-objects/storage/storage.ts";
import { Database } from "../simulation/database.ts";
import { parseDeployment } from "./milliseconds.ts";

export const LIMIT = 10;
export const { policies } = parseDeployment({
  policies: {
    slots: { algorithm: "concurrency", limit: LIMIT, ttl: 10_000, maxTtl: 60_000 },
    few: { algorithm: "concurrency", limit: 9, ttl: 10_000, order: "relaxed" },
    many: { algorithm: "concurrency", limit: 1_000, ttl: 10_000 },
    hour: { algorithm: "concurrency", limit: LIMIT, ttl: 3_600_000 },
    brief: { algorithm: "concurrency", limit: LIMIT, ttl: 4_000 },
  },
});

type Name = "slots" | "few" | "many" | "hour" | "brief";

export class LeasedKey {
  nowMs = 1_000_000;
  readonly #policy: Name;
  readonly #database = new Database();
  #timers: { readonly atMs: number; readonly work: () => void }[] = [];
  #calls = this.#start();

  constructor(policy: Name = "slots") {
    this.#policy = policy;
  }

  #start(): KeyCalls {
    const alarm = { getAlarm: () => Promise.resolve(null), setAlarm: () => Promise.resolve() };
    this.#timers = [];
    const after = (ms: number, work: () => void) => {
      this.#timers.push({ atMs: this.nowMs + ms, work });
      return () => undefined;
    };
    const joined = joinParts({
      time: { nowMs: () => this.nowMs, after },
      storage: new Storage(this.#database.storage),
      timers: new Timers(alarm, () => this.nowMs),
      policies,
      loadPooled: () => Promise.reject(new Error("there are no pools")),
    });
    return new KeyCalls({ ...joined, sockets: { closeLost: () => undefined } });
  }

  crash(): void {
    this.#calls = this.#start();
  }

  /** No call comes for so long. */
  rest(ms: number): void {
    const untilMs = this.nowMs + ms;
    for (;;) {
      const [next] = this.#timers.toSorted((one, other) => one.atMs - other.atMs);
      if (next === undefined || next.atMs > untilMs) break;
      this.#timers = this.#timers.filter((each) => each !== next);
      this.nowMs = next.atMs;
      next.work();
    }
    this.nowMs = untilMs;
  }

  /** The rows that were written, and the timers that wait. */
  get traces(): { readonly rows: number; readonly timers: number } {
    return { rows: this.#database.rowsWritten, timers: this.#timers.length };
  }

  call(call: object): unknown {
    return this.#calls.call({ policy: this.#policy, key: "key", ...call } as KeyCall);
  }

  slots(call: Partial<SlotsCall>): Slots["slots"] {
    const none = {
      heard: 0,
      kept: 0,
      leased: 0,
      wanted: 0,
      ttlMs: 10_000,
      handed: [],
      granted: 0,
      released: 0,
    };
    return (this.call({ op: "slots", holder: "holder-a", ...none, ...call }) as Slots).slots;
  }

  /** Gets slots for a holder, which has heard so. */
  take(holder: string, wanted: number): { readonly memory: string; readonly given: GivenSlots } {
    const ttlMs = callerIn(holder) === undefined ? 10_000 : 0;
    const { memory, given } = this.slots({ holder, turn: 1, wanted, ttlMs });
    if (given === undefined) throw new Error("nothing was given");
    return { memory, given };
  }

  lease(id: string, cost = 1): boolean {
    const lease = { op: "lease", id, cost, ttlMs: 60_000, waitMs: 0 };
    return (this.call(lease) as Decided).rules.every(({ success }) => success);
  }

  get peeked(): Peeked {
    return this.call({ op: "peek" }) as Peeked;
  }
}
