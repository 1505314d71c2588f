import { parsePolicies, removedIn } from "../../core/policies/parse-policies.ts";
import type { Cost, PolicyLookup } from "../../core/policies/policy.ts";
import type { Answer, Decided, Lease, Missing } from "../../core/protocol/answers.ts";
import { Tally } from "../../core/stats/tally.ts";
import { type KeyParts, joinParts } from "../../durable-objects/key-calls.ts";
import { cleaned } from "../../durable-objects/keys/garbage-collection.ts";
import type { KeyState } from "../../durable-objects/keys/key-state.ts";
import { Timers } from "../../durable-objects/keys/key-store.ts";
import type { Deliver } from "../../durable-objects/notices/delivery.ts";
import { Outbox } from "../../durable-objects/notices/outbox.ts";
import type { Acquiring, Operations } from "../../durable-objects/operations/operations.ts";
import { Storage } from "../../durable-objects/storage/storage.ts";
import { Database } from "../simulation/database.ts";

export function known(given: object): PolicyLookup {
  const policies = parsePolicies(given);
  return { get: (name) => policies.get(name), isRemoved: removedIn(given) };
}

/** An object on a real SQLite with a clock of the test's own, at which its alarms come. */
export class AlarmedObject {
  readonly database = new Database();
  readonly tally = new Tally();
  nowMs: number;
  alarmAtMs: number | null = null;
  alarms = 0;
  alarmsSet = 0;
  /** The key that was the only one when the last of them came. */
  onlyAtAlarm: string | undefined;
  storage!: Storage;
  parts!: KeyParts;

  /** What the object does besides its calls. */
  background: Promise<unknown>[] = [];
  readonly #deliverer: (() => Deliver) | undefined;

  /** @param deliverer makes each life's own `Deliver`; absent: nobody is told when limits are reached */
  constructor(policies: PolicyLookup, nowMs: number, deliverer?: () => Deliver) {
    this.nowMs = nowMs;
    this.#deliverer = deliverer;
    this.#begin(policies);
  }

  /** Another version begins with the stored state. */
  async restart(policies: PolicyLookup): Promise<void> {
    await this.#begin(policies).readAlarm(3_600_000);
  }

  #begin(policies: PolicyLookup): Timers {
    this.storage = new Storage(this.database.storage, this.tally);
    const alarm = {
      getAlarm: () => Promise.resolve(this.alarmAtMs),
      setAlarm: (atMs: number | Date) => {
        this.alarmAtMs = Number(atMs);
        this.alarmsSet += 1;
        return Promise.resolve();
      },
    };
    const timers = new Timers(alarm, () => this.nowMs);
    const loadPooled = () => Promise.reject(new Error("there is no pool"));
    const { storage, tally: counter } = this;
    const deliver = this.#deliverer?.();
    const inBackground = (work: Promise<unknown>) => void this.background.push(work);
    this.parts = joinParts({
      storage,
      timers,
      policies,
      loadPooled,
      ...(deliver && {
        makeOutbox: (store) => new Outbox({ store, storage, timers, counter, deliver, inBackground }),
      }),
    });
    return timers;
  }

  ask<Result>(
    key: string,
    ask: (operations: Operations, keyState: KeyState, nowMs: number) => Result,
    policy = "p",
  ): Result {
    return this.parts.ask(policy, key, ask) as Result;
  }

  limit(key: string, cost: Cost, policy = "p"): Decided {
    return this.ask(key, (each, keyState, nowMs) => each.limit(keyState, { cost }, nowMs), policy) as Decided;
  }

  hold(key: string, cost: number, ttlMs: number, policy = "p"): Decided {
    return this.ask(
      key,
      (each, keyState, nowMs) => each.hold(keyState, { cost, ttlMs }, nowMs),
      policy,
    ) as Decided;
  }

  acquire(key: string, call: Partial<Acquiring> & Pick<Acquiring, "id">, policy = "p"): Answer {
    const whole = { cost: 1, ttlMs: 60_000, waitMs: 0, ...call };
    return this.ask(key, (each, keyState, nowMs) => each.acquire(keyState, whole, nowMs), policy) as Answer;
  }

  renew(key: string, id: string, ttlMs?: number, policy = "p"): Lease | Missing {
    return this.ask(
      key,
      (each, keyState, nowMs) => each.renew(keyState, { id, ttlMs }, nowMs),
      policy,
    ) as Lease;
  }

  /** Advances the clock, with the alarms that are due. */
  async pass(ms: number): Promise<void> {
    const untilMs = this.nowMs + ms;
    while (this.alarmAtMs !== null && this.alarmAtMs <= untilMs) {
      this.nowMs = Math.max(this.nowMs, this.alarmAtMs);
      await this.comeAlarm();
    }
    this.nowMs = untilMs;
  }

  /** An alarm as the runtime delivers it. */
  async comeAlarm(isRepeated = false): Promise<void> {
    this.alarmAtMs = null;
    this.alarms += 1;
    this.onlyAtAlarm = this.storage.loneKey;
    await cleaned(this.parts, async () => (await this.parts.outbox?.wake()) ?? Infinity, isRepeated);
    if (this.storage.isEmpty) this.alarmAtMs = null;
  }
}
