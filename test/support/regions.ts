/** Regions as in production: each has its own workerd, and all share one Redis behind a bridge. */
import { startRedis, type RedisServer } from "../../scripts/redis-server.ts";
import { startBridge, type Bridge } from "../../scripts/upstash-bridge.ts";
import { serve, type Serving } from "../../scripts/workerd.ts";
import { TEST_TOKENS } from "./fixtures.ts";
import { HttpClient } from "./http-client.ts";
import { inMilliseconds } from "./milliseconds.ts";
import { makeState, removeState } from "./served.ts";
import { startUnreliable, type Unreliable } from "./unreliable-http.ts";

const TOKEN = "local";
const ORIGIN_HEADER = "x-origin";

export interface RegionRunning {
  readonly continent: string;
  readonly client: HttpClient;
  readonly serving: Serving;
  printed: string;
}

export interface World {
  readonly regions: readonly RegionRunning[];
  readonly redis: RedisServer;
  readonly bridge: Bridge;
  /** The proxy between the regions and the bridge. */
  readonly network: Unreliable;
  /** Kills a region's process, and starts another one over the same storage. */
  restartRegion(index: number): Promise<void>;
  /** Kills Redis and starts it again, empty, after what is to happen without it. */
  restartRedis(whileAway?: () => Promise<void>): Promise<void>;
  stop(): Promise<void>;
}

interface Options {
  readonly connections?: number;
  readonly isolates?: number;
  readonly isOneProcess?: boolean;
  readonly backgroundMs?: number;
  readonly toRedis?: number;
  /** The worker that has the service binding in each region. */
  readonly caller?: string;
}

/**
 * Starts one region for each continent. With `isOneProcess` all share one process, and reach each other's
 * objects as in production. Otherwise each has its own process and objects, and can be killed alone.
 * `toRedis` is the most simultaneous calls of all regions to the bridge.
 */
export async function startWorld(
  policies: object,
  continents: readonly string[],
  { connections = 32, isolates = 1, isOneProcess = false, toRedis = Infinity, ...served }: Options = {},
): Promise<World> {
  let redis = await startRedis();
  const { port } = redis;
  const bridge = await startBridge({ redisUrl: `redis://127.0.0.1:${port}`, token: TOKEN });
  const network = await startUnreliable(bridge.url, 1, toRedis);
  const states = continents.map(() => makeState());
  const start = async (index: number, known?: Serving): Promise<RegionRunning> => {
    const continent = continents[index] ?? "";
    const running = { printed: "" };
    const begin = async () =>
      await serve({
        stateDir: states[index] ?? "",
        policies: inMilliseconds(policies),
        apiTokens: JSON.stringify(TEST_TOKENS),
        pool: { url: network.url, token: TOKEN },
        originHeader: ORIGIN_HEADER,
        isolates,
        ...served,
        onOutput: (text) => (running.printed += text),
      });
    const serving = known ?? (await begin());
    const headers = { [ORIGIN_HEADER]: JSON.stringify({ continent }) };
    return Object.assign(running, {
      continent,
      serving,
      client: new HttpClient(
        serving.urls[known === undefined ? 0 : index] ?? serving.url,
        connections,
        headers,
      ),
    });
  };
  const regions: RegionRunning[] = [];
  for (const index of continents.keys())
    regions.push(await start(index, isOneProcess ? regions[0]?.serving : undefined));
  return {
    regions,
    get redis() {
      return redis;
    },
    bridge,
    network,
    async restartRegion(index) {
      const region = regions[index];
      region?.client.close();
      await region?.serving.stop("SIGKILL");
      regions[index] = await start(index);
    },
    async restartRedis(whileAway) {
      await redis.stop("SIGKILL");
      await whileAway?.();
      redis = await startRedis({ port });
    },
    async stop() {
      for (const { client, serving } of regions) {
        client.close();
        await serving.stop("SIGKILL");
      }
      await network.stop();
      await bridge.stop();
      await redis.stop();
      for (const state of states) removeState(state);
    },
  };
}
