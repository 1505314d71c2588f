/** Pools on a real Redis server with a clock of the test's own. */
import { createClient } from "redis";
import type { Rule } from "../../core/policies/policy.ts";
import type {
  PoolGrant,
  HolderMessage,
  PoolMark,
  PoolAnswer,
  PoolCall,
  PoolRule,
  PoolSizing,
} from "../../durable-objects/pool/protocol.ts";
import { POOL_SCRIPT } from "../../durable-objects/pool/redis/script.ts";
import { poolKeys } from "../../durable-objects/pool/session.ts";
import { startRedis } from "../../scripts/redis-server.ts";

/**
 * Lua before the unchanged script, for the test's clock. It replaces `redis` by a table in which `TIME` is
 * the last argument. The expiry of keys is kept in a hash, and executed here at the beginning of each call.
 */
export const PRELUDE = `
local server, now = redis, tonumber(ARGV[#ARGV])
local DEADLINES = KEYS[1] .. '~deadlines'
local deadlines = server.call('HGETALL', DEADLINES)
for index = 1, #deadlines, 2 do
  if tonumber(deadlines[index + 1]) <= now then
    server.call('DEL', deadlines[index])
    server.call('HDEL', DEADLINES, deadlines[index])
  end
end
local redis = { call = function(command, key, ...)
  if command == 'TIME' then
    return { string.format('%.0f', math.floor(now / 1000)), string.format('%.0f', now % 1000 * 1000) }
  elseif command == 'PEXPIRE' then
    if server.call('EXISTS', key) == 1 then
      server.call('HSET', DEADLINES, key, string.format('%.0f', now + tonumber((...))))
    end
    return 1
  elseif command == 'SET' then
    local value, px, lifetime = ...
    if px == 'KEEPTTL' then return server.call('SET', key, value) end
    if px ~= 'PX' then error('a value without an expiry') end
    server.call('HSET', DEADLINES, key, string.format('%.0f', now + tonumber(lifetime)))
    return server.call('SET', key, value)
  elseif command == 'DEL' then
    server.call('HDEL', DEADLINES, key)
  end
  return server.call(command, key, ...)
end }
`;

/** The sizing of these tests. Production has `POOL_SIZING`. */
export const SIZING: PoolSizing = {
  mostShare: 1 / 16,
  spareShare: 1 / 32,
  mostHolders: 1_000,
  rememberedMs: 5_000,
  fencingTokens: 1_000,
};

/** Starts a Redis server and loads the script behind `prelude`. */
export async function startPools(options: readonly string[] = [], prelude = PRELUDE) {
  const server = await startRedis({ args: options });
  const client = createClient({ url: `redis://127.0.0.1:${server.port}` });
  await client.connect();
  const script = prelude + POOL_SCRIPT;
  const digest = await client.scriptLoad(script);
  let pools = 0;
  return {
    port: server.port,
    client,
    /** Makes an unused pool. */
    create(rules: readonly PoolRule[], sizing = SIZING): Pool {
      pools += 1;
      const run = (keys: string[], args: string[]) => client.evalSha(digest, { keys, arguments: args });
      return new Pool(client, run, `key ${pools}`, rules, sizing);
    },
    async stop() {
      client.destroy();
      await server.stop();
    },
  };
}

export type Pools = Awaited<ReturnType<typeof startPools>>;
type Client = Pools["client"];
/** A part of a call. `answerName` is the idempotency key, `chargeName` that of a charge. */
export type PartOfCall = Omit<PoolCall, "rules" | "cost"> &
  Partial<PoolCall> & { readonly answerName?: string; readonly chargeName?: string };

export class Pool {
  readonly client: Client;
  readonly #run: (keys: string[], args: string[]) => Promise<unknown>;
  readonly key: string;
  rules: readonly PoolRule[];
  readonly sizing: PoolSizing;

  constructor(
    client: Client,
    run: (keys: string[], args: string[]) => Promise<unknown>,
    key: string,
    rules: readonly PoolRule[],
    sizing: PoolSizing,
  ) {
    this.client = client;
    this.#run = run;
    this.key = key;
    this.rules = rules;
    this.sizing = sizing;
  }

  get name(): string {
    return `weir:{test/${this.key}}`;
  }

  async call({ answerName = "once", chargeName, ...part }: PartOfCall, nowMs: number): Promise<PoolAnswer> {
    const call: PoolCall = { rules: this.rules, cost: this.rules.map(() => 0), ...part };
    const byId = call.op === "hold" || call.op === "settle" || call.op === "renew";
    const named = [...(byId ? [call.id] : []), ...(call.isNamed === true ? [chargeName] : [])];
    const names = [...named, ...(call.request === undefined ? [] : [answerName])].map((name) => name ?? "");
    const ruleNames = call.rules.map(({ name }) => name);
    const keys = poolKeys("test", this.key, ruleNames, names);
    const answer = await this.#run(keys, [JSON.stringify(call), JSON.stringify(this.sizing), String(nowMs)]);
    return JSON.parse(String(answer)) as PoolAnswer;
  }

  limit(cost: readonly number[], nowMs: number): Promise<PoolAnswer> {
    return this.call({ op: "limit", cost }, nowMs);
  }

  peek(nowMs: number, cost?: readonly number[]): Promise<PoolAnswer> {
    return this.call({ op: "peek", ...(cost && { cost }) }, nowMs);
  }

  async keys(): Promise<string[]> {
    const found = await this.client.keys(`${this.name.replaceAll(/[[\]*?]/g, "\\$&")}*`);
    return found.filter((key) => !key.endsWith("~deadlines")).toSorted();
  }

  /** Everything that is stored, in the order of the keys. */
  async dump(): Promise<Map<string, string>> {
    const dumps = new Map<string, string>();
    for (const key of await this.keys()) {
      const type = await this.client.type(key);
      const value =
        type === "hash"
          ? Object.entries(await this.client.hGetAll(key)).toSorted(([a], [b]) => (a < b ? -1 : 1))
          : type === "zset"
            ? await this.client.zRangeWithScores(key, 0, -1)
            : await this.client.get(key);
      dumps.set(key, JSON.stringify(value));
    }
    return dumps;
  }

  /** When each key would be forgotten. */
  async deadlines(): Promise<Record<string, number>> {
    const stored = await this.client.hGetAll(`${this.name}~deadlines`);
    return Object.fromEntries(Object.entries(stored).map(([key, value]) => [key, Number(value)]));
  }

  /** Deletes all keys, as if the server had started empty. */
  async forget(): Promise<void> {
    const keys = [...(await this.keys()), `${this.name}~deadlines`];
    await this.client.del(keys);
  }
}

/** A rule of a policy in the pool's protocol. */
export function poolRule({ name, algorithm, config }: Rule): PoolRule {
  const fields = config as Record<string, number | boolean>;
  const known = ["limit", "windowMs", "burst", "minIntervalMs", "countDenied"];
  const given = Object.fromEntries(Object.entries(fields).filter(([field]) => known.includes(field)));
  return { name, algorithm: algorithm.name, ...given } as unknown as PoolRule;
}

/** A holder's message, with defaults. */
export function holdingOf(
  part: Partial<HolderMessage> & Pick<HolderMessage, "holder" | "turn">,
): HolderMessage {
  const lifetime = { ttlMs: 1_000, heldMs: 2_000 };
  return {
    isFresh: false,
    used: [0],
    kept: [0],
    wanted: [0],
    isShort: false,
    lifetime,
    shortest: lifetime,
    mostHeldMs: 5_000,
    leases: 0,
    queueLength: 0,
    ...part,
  };
}

/** @throws Error when the answer has no grant */
export function grantedIn({ granted }: PoolAnswer): PoolGrant & { readonly mark: PoolMark } {
  if (granted === undefined) throw new Error("nothing was said of what is granted");
  return granted;
}

/** Whether these units are a complete charge: then its call is decided anew. */
export function isAllOf(charge: Record<string, number> = {}, units: Record<string, number>): boolean {
  return Object.entries(charge).every(([name, taken]) => (units[name] ?? 0) >= taken);
}
