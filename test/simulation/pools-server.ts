/** The pool of a history: the production script on a real Redis server, in virtual time. */
import type { PoolAnswer, PoolCall } from "../../durable-objects/pool/protocol.ts";
import { readPoolAnswer } from "../../durable-objects/pool/redis/redis-pool.ts";
import { POOL_SCRIPT } from "../../durable-objects/pool/redis/script.ts";
import { POOL_SIZING } from "../../durable-objects/pool/share.ts";
import { PRELUDE, type Pools } from "../support/pools.ts";

export interface Stored {
  readonly fields: Readonly<Record<string, string>>;
  readonly holds: readonly StoredHold[];
  /** By rule: closed runs of units in a log, as the script stores them. */
  readonly logs: readonly (readonly string[])[];
}

export interface StoredHold {
  readonly id: string;
  readonly atMs: number;
  readonly units: Readonly<Record<string, number>>;
}

const NOTHING: Stored = { fields: {}, holds: [], logs: [] };
const SIZING = JSON.stringify(POOL_SIZING);
const SAVED = "~saved";

export type Script = Awaited<ReturnType<typeof loadScript>>;

/** @param change changes the script, to break it on purpose */
export async function loadScript({ client }: Pools, change: (script: string) => string = (same) => same) {
  const digest = await client.scriptLoad(PRELUDE + change(POOL_SCRIPT));
  return { client, digest };
}

/** One pool on the Redis server. `stored` is the server's state after the latest call. */
export class SimulatedPool {
  readonly #script: Script;
  readonly #keys: readonly string[];
  readonly #all = new Set<string>();
  stored = NOTHING;
  calls = 0;

  /** @param keys of every call, without names of answers */
  constructor(script: Script, keys: readonly string[]) {
    this.#script = script;
    this.#keys = keys;
    for (const key of [...keys, `${keys[0]}~deadlines`]) this.#all.add(key);
  }

  /** Executes a call at an instant of the server's clock. */
  async call(keys: readonly string[], call: PoolCall, nowMs: number): Promise<PoolAnswer> {
    for (const key of keys) this.#all.add(key);
    this.calls += 1;
    const [answer] = await Promise.all([this.#evaluate(keys, call, nowMs), this.#read()]);
    return readPoolAnswer(answer);
  }

  async peek(rules: PoolCall["rules"], nowMs: number): Promise<PoolAnswer> {
    const call: PoolCall = { op: "peek", rules, cost: rules.map(() => 0) };
    return readPoolAnswer(await this.#evaluate(this.#keys, call, nowMs));
  }

  /** Deletes all keys, as if the server had started empty. */
  async forget(): Promise<void> {
    await Promise.all([this.#script.client.del([...this.#all]), this.#read()]);
  }

  /** Saves the state for `restore`. */
  async save(): Promise<void> {
    const { client } = this.#script;
    await client.del([...this.#all].map((key) => key + SAVED));
    await Promise.all([...this.#all].map((key) => client.copy(key, key + SAVED)));
  }

  async restore(): Promise<void> {
    const { client } = this.#script;
    const restored = [...this.#all].map((key) => client.copy(key + SAVED, key));
    await Promise.all([client.del([...this.#all]), ...restored, this.#read()]);
  }

  #evaluate(keys: readonly string[], call: PoolCall, nowMs: number): Promise<unknown> {
    const { client, digest } = this.#script;
    return client.evalSha(digest, {
      keys: [...keys],
      arguments: [JSON.stringify(call), SIZING, String(nowMs)],
    });
  }

  async #read(): Promise<void> {
    const { client } = this.#script;
    const [main = "", holds = "", ...logs] = this.#keys;
    const [fields, found, ...runs] = await Promise.all([
      client.hGetAll(main),
      client.zRangeWithScores(holds, 0, -1),
      ...logs.map((key) => client.zRange(key, 0, -1)),
    ]);
    this.stored = {
      fields,
      holds: found.map(({ value: id, score: atMs }) => ({ id, atMs, units: unitsIn(fields[`u:${id}`]) })),
      logs: runs,
    };
  }
}

function unitsIn(text = "{}"): Record<string, number> {
  return JSON.parse(text) as Record<string, number>;
}
