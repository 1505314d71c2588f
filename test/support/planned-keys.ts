import type { Policy } from "../../core/policies/policy.ts";
import { versionOf } from "../../core/policies/policy.ts";
/** A key whose calls name plans, at an object with a database of its own. */
import { planOf } from "../../core/policies/seen-policy.ts";
import type { Decided, Peeked } from "../../core/protocol/answers.ts";
import type { KeyCall } from "../../core/protocol/object-methods.ts";
import { joinParts, KeyCalls } from "../../durable-objects/key-calls.ts";
import { Timers } from "../../durable-objects/keys/key-store.ts";
import { Storage } from "../../durable-objects/storage/storage.ts";
import { Database } from "../simulation/database.ts";
import { parseDeployment } from "./milliseconds.ts";

export const [LOW, HIGH] = [10, 40];
export const window = 60_000;
const plans = { pro: { limit: HIGH }, off: { limit: 0 } };
export const TABLES = {
  "token-bucket": { algorithm: "token-bucket", limit: LOW, window, plans },
  gcra: { algorithm: "gcra", limit: LOW, window, plans },
  "sliding-log": { algorithm: "sliding-log", limit: LOW, window, plans },
  "fixed-window": { algorithm: "fixed-window", limit: LOW, window, plans },
  "sliding-window-counter": { algorithm: "sliding-window-counter", limit: LOW, window, plans },
  "leaky-bucket": {
    algorithm: "leaky-bucket",
    limit: LOW,
    window,
    burst: LOW,
    nodelay: true,
    plans: { ...plans, pro: { limit: HIGH, burst: HIGH } },
  },
  credits: { algorithm: "credits", limit: LOW, plans },
  "a shorter window": {
    algorithm: "sliding-log",
    limit: LOW,
    window,
    plans: { ...plans, pro: { limit: HIGH, window: 30_000 } },
  },
} as const;

/** Parsed once for each table, as a law makes hundreds of keys. */
const deployments = new WeakMap<object, ReturnType<typeof parseDeployment>>();

function deploymentOf(table: object): ReturnType<typeof parseDeployment> {
  const deployment = deployments.get(table) ?? parseDeployment({ policies: { api: table } });
  deployments.set(table, deployment);
  return deployment;
}

export class Key {
  nowMs = 1_700_000_000_000;
  readonly #database = new Database();
  #deployment: ReturnType<typeof parseDeployment>;
  #calls: KeyCalls;

  constructor(table: object) {
    this.#deployment = deploymentOf(table);
    this.#calls = this.#start();
  }

  get policy(): Policy {
    return this.#deployment.policies.get("api") as Policy;
  }

  get rowsWritten(): number {
    return this.#database.rowsWritten;
  }

  /** Another file is deployed. */
  replace(table: object): void {
    this.#deployment = deploymentOf(table);
    this.crash();
  }

  #start(): KeyCalls {
    const alarm = { getAlarm: () => Promise.resolve(null), setAlarm: () => Promise.resolve() };
    const joined = joinParts({
      storage: new Storage(this.#database.storage),
      timers: new Timers(alarm, () => this.nowMs),
      policies: this.#deployment.policies,
      loadPooled: () => Promise.reject(new Error("there are no pools")),
    });
    return new KeyCalls({ ...joined, sockets: { closeLost: () => undefined } });
  }

  crash(): void {
    this.#calls = this.#start();
  }

  /** @param plan `undefined`: the call names none */
  call(plan: string | undefined, call: object): unknown {
    const version = versionOf(planOf(this.policy, plan));
    return this.#calls.call({ policy: "api", key: "key", ...version, ...call } as KeyCall);
  }

  takes(plan: string, cost: number): boolean {
    const { rules } = this.call(plan, { op: "limit", cost }) as Decided;
    return rules.every(({ success }) => success);
  }

  peek(plan?: string): Peeked {
    return this.call(plan, { op: "peek" }) as Peeked;
  }

  remaining(plan?: string): number {
    return this.peek(plan).rules[0]?.remaining ?? Number.NaN;
  }
}
