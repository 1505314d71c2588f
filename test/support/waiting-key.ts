/** A key whose calls wait and name plans, in an object whose timers are faked: call `vi.useFakeTimers` first. */
import { vi } from "vitest";
import { type Policy, versionOf } from "../../core/policies/policy.ts";
import { planOf } from "../../core/policies/seen-policy.ts";
import type { Decided, Peeked } from "../../core/protocol/answers.ts";
import type { KeyCall } from "../../core/protocol/object-methods.ts";
import { joinParts, KeyCalls } from "../../durable-objects/key-calls.ts";
import { Timers } from "../../durable-objects/keys/key-store.ts";
import { Storage } from "../../durable-objects/storage/storage.ts";
import { Database } from "../simulation/database.ts";
import { parseDeployment } from "./milliseconds.ts";

export interface Waiting {
  atMs: number;
  answer: Decided | undefined;
}

export class WaitingKey {
  readonly policy: Policy;
  readonly #database = new Database();
  readonly #deployment: ReturnType<typeof parseDeployment>;
  #calls: KeyCalls;
  #ids = 0;

  constructor(table: object) {
    this.#deployment = parseDeployment({ policies: { api: table } });
    this.policy = this.#deployment.policies.get("api") as Policy;
    this.#calls = this.#start();
  }

  #start(): KeyCalls {
    const alarm = { getAlarm: () => Promise.resolve(null), setAlarm: () => Promise.resolve() };
    const joined = joinParts({
      storage: new Storage(this.#database.storage),
      timers: new Timers(alarm, () => Date.now()),
      policies: this.#deployment.policies,
      loadPooled: () => Promise.reject(new Error("there are no pools")),
    });
    return new KeyCalls({ ...joined, sockets: { closeLost: () => undefined } });
  }

  crash(): void {
    vi.clearAllTimers();
    this.#calls = this.#start();
  }

  /** @param plan `undefined`: the call names none */
  ask(plan: string | undefined, call: object): unknown {
    const version = versionOf(planOf(this.policy, plan));
    return this.#calls.call({ policy: "api", key: "key", ...version, ...call } as KeyCall);
  }

  limit(plan: string, cost: number, more: object = {}): Decided {
    return this.ask(plan, { op: "limit", cost, ...more }) as Decided;
  }

  peek(plan?: string): Peeked {
    return this.ask(plan, { op: "peek" }) as Peeked;
  }

  /** A call that is to wait. */
  wait(plan: string, cost: number, waitMs = 30_000, more: object = {}): Waiting {
    return this.#waiting(this.ask(plan, { op: "limit", cost, waitMs, ...more }));
  }

  lease(plan: string, waitMs = 30_000, more: object = {}): Waiting & { readonly id: string } {
    const id = `lease ${(this.#ids += 1)}`;
    const call = { op: "lease", id, cost: 1, ttlMs: 600_000, waitMs, ...more };
    return Object.assign(this.#waiting(this.ask(plan, call)), { id });
  }

  release(id: string): void {
    this.ask(undefined, { op: "release", id });
  }

  #waiting(answer: unknown): Waiting {
    const waiting: Waiting = { atMs: Number.NaN, answer: undefined };
    const tell = (answered: Decided) => Object.assign(waiting, { atMs: Date.now(), answer: answered });
    if (answer instanceof Promise) void (answer as Promise<Decided>).then(tell);
    else tell(answer as Decided);
    return waiting;
  }
}

export const passMs = async (ms: number) => void (await vi.advanceTimersByTimeAsync(ms));
export const isAdmitted = ({ answer }: Waiting) => answer?.rules.every(({ success }) => success);
export const limitOf = ({ answer }: Waiting) => answer?.rules[0]?.limit;
