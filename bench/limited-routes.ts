/** How much slower a Hono route in a worker is behind a limit of each limiter: see limited-route.ts. */
import { join } from "node:path";
import { freePort } from "../scripts/free-port.ts";
import { BUNDLE } from "../scripts/project.ts";
import { startRedis } from "../scripts/redis-server.ts";
import { serve, type Serving } from "../scripts/workerd.ts";
import { seededRandom } from "../test/support/random.ts";
import { startDistantBridge, type DistantBridge } from "./bridge.ts";
import { bundled, forRedis, IN_WORKER } from "./bundled.ts";
import { load, requestsFor, zipfKeys, type Requests } from "./load.ts";
import { processorSeconds } from "./processor-time.ts";

const ROUNDS = Number(process.env["ROUNDS"] ?? 5);
const SECONDS = Number(process.env["SECONDS"] ?? 2);
const KEYS = 10_000;
const FIRST_CALLS = 200;
const NEIGHBOURS = ["hono-rate-limiter", "upstash-ratelimit"];
const ALL_WAYS = ["service", "objects", "http", "memory", ...NEIGHBOURS];
/** WAY=objects,http measures only these, beside the empty route. */
const LIMITED_BY = ALL_WAYS.filter((way) => (process.env["WAY"] ?? way).split(",").includes(way));
const ALL_TABLES = {
  hot: "one hot key",
  planned: "one hot key with a plan",
  grouped: "one hot key with a plan and a group",
  many: "10,000 Zipf keys",
  over: "one key, far over its limit",
  denied: "10,000 Zipf keys, 2 per 600 s each, mostly denied",
  leased: "a concurrency limit, one hot key",
  "leased-keys": "a concurrency limit, 1,000 keys",
};
/** Those that limiters of rates cannot do. */
const OF_LEASES = ["leased", "leased-keys"];
const LEASED_KEYS = Array.from({ length: 1_000 }, (_, index) => `user:${index}`);
/** TABLE=hot,grouped measures only those. */
const TABLES = Object.fromEntries(
  Object.entries(ALL_TABLES).filter(([name]) => (process.env["TABLE"] ?? name).split(",").includes(name)),
);
/** Thousands of keys use up what they have first. */
const WARM_UP_SECONDS: Readonly<Record<string, number>> = { denied: 10, "leased-keys": 10 };

/** Who calls, and what the routes count. */
export interface Routed {
  readonly folder: string;
  readonly token: string;
  readonly apiTokens: string;
  readonly policies: object;
}

/** Measures all routes, and prints a table for each kind of load. */
export async function printRoutes({ folder, token, apiTokens, policies }: Routed): Promise<void> {
  const redis = await startRedis();
  const bridge = await startDistantBridge(redis.port, "bench", 0);
  const port = await freePort();
  const caller = await bundled(folder, "limited-route", {
    conditions: IN_WORKER,
    plugins: [forRedis],
    define: definesOf(port, token, bridge),
  });
  const perSecond = new Map<string, number[]>();
  const processor = new Map<string, number[]>();
  const first: number[] = [];
  try {
    for (let round = 0; round < ROUNDS; round += 1) {
      const stateDir = join(folder, `worker-${round}`);
      const options = { stateDir, port, policies, apiTokens, main: BUNDLE, pool: bridge, caller };
      const running = await serve({ ...options, callerHasObjects: true });
      const { pid = 0 } = running.process;
      console.error(`round ${round + 1} of ${ROUNDS}: the tables follow the last one`);
      try {
        first.push(...(await firstCalls(running)));
        const routes = routesOf(running.callerUrl, token);
        for (const [route, requests] of round % 2 === 0 ? routes : routes.toReversed()) {
          await load(requests, WARM_UP_SECONDS[route.slice(route.lastIndexOf("/") + 1)] ?? SECONDS);
          const before = processorSeconds(pid);
          const { requestsPerSecond, count } = await load(requests, SECONDS);
          perSecond.set(route, [...(perSecond.get(route) ?? []), requestsPerSecond]);
          const microseconds = (1e6 * (processorSeconds(pid) - before)) / count;
          processor.set(route, [...(processor.get(route) ?? []), microseconds]);
        }
      } finally {
        await running.stop("SIGKILL");
      }
    }
  } finally {
    await bridge.stop();
    await redis.stop();
  }
  for (const [policy, title] of Object.entries(TABLES)) printTable(policy, title, perSecond, processor);
  const [middle, late] = [at(first, 0.5), at(first, 0.99)].map((ms) => ms.toFixed(1));
  console.log(`The first call of a new client in a worker: ${middle} ms in the middle, ${late} ms at p99.\n`);
}

function definesOf(port: number, token: string, { url, token: redisToken }: DistantBridge) {
  const given = { ADDRESS: `http://127.0.0.1:${port}`, TOKEN: token, REDIS: { url, token: redisToken } };
  return Object.fromEntries(Object.entries(given).map(([name, value]) => [name, JSON.stringify(value)]));
}

/** The routes by their names, each with the requests to send. */
function routesOf(url: string, token: string): [string, Requests][] {
  const keys = zipfKeys(KEYS, 4 * KEYS, seededRandom(1));
  const withKeys = (path: string, prefix = "", of = keys): Requests => {
    const all = of.map((key) =>
      requestsFor(`${url}${path}?key=${encodeURIComponent(prefix + key)}`, token, [""]),
    );
    return { port: all[0]?.port ?? 0, bytes: all.flatMap(({ bytes }) => bytes) };
  };
  const requestsOf = (path: string, policy: string): Requests => {
    if (policy === "many") return withKeys(path);
    if (policy === "leased-keys") return withKeys(path, "", LEASED_KEYS);
    // Each way has keys of its own, which another one has not used up.
    return policy === "denied" ? withKeys(path, path) : requestsFor(`${url}${path}`, token, [""]);
  };
  const of = (path: string, policy: string): [string, Requests] => [
    `${path}/${policy}`,
    requestsOf(path, policy),
  ];
  return Object.keys(TABLES).flatMap((policy): [string, Requests][] => [
    of("/empty", policy),
    of("/headers", policy),
    ...waysOf(policy).map((way): [string, Requests] => [
      `/${way}/${policy}`,
      requestsOf(`/${way}/${policy}`, policy),
    ]),
  ]);
}

/** How long the first decision of a new client takes, in milliseconds, with the way to the worker. */
async function firstCalls({ callerUrl }: Serving): Promise<number[]> {
  const took: number[] = [];
  for (let call = 0; call < FIRST_CALLS; call += 1) {
    const sinceMs = performance.now();
    const response = await fetch(`${callerUrl}/first`, { method: "POST" });
    await response.text();
    if (!response.ok) throw new Error(`the first call of a client: ${response.status}`);
    // The first of all opens the connection, and starts the worker.
    if (call > 0) took.push(performance.now() - sinceMs);
  }
  return took;
}

type Figures = ReadonlyMap<string, readonly number[]>;

/** @param processor what a request costs all of workerd, in microseconds: other processes change it little */
function printTable(policy: string, title: string, perSecond: Figures, processor: Figures): void {
  console.log(`| ${title} | requests/s | to the empty route | processor µs |\n| --- | --- | --- | --- |`);
  const empty = perSecond.get(`/empty/${policy}`) ?? [];
  for (const name of ["empty", "headers", ...waysOf(policy)]) {
    const figures = perSecond.get(`/${name}/${policy}`) ?? [];
    const ratios = figures.map((figure, round) => figure / (empty[round] ?? Number.NaN));
    const [least, most] = [at(ratios, 0).toFixed(2), Math.max(...ratios).toFixed(2)];
    const used = Math.round(at(processor.get(`/${name}/${policy}`) ?? [], 0.5));
    const ratio = `${at(ratios, 0.5).toFixed(2)} (${least}–${most})`;
    console.log(`| ${name} | ${Math.round(at(figures, 0.5))} | ${ratio} | ${used} |`);
  }
  console.log("");
}

function waysOf(policy: string): readonly string[] {
  return LIMITED_BY.filter((way) => !OF_LEASES.includes(policy) || !NEIGHBOURS.includes(way));
}

function at(numbers: readonly number[], share: number): number {
  return numbers.toSorted((a, b) => a - b)[Math.floor(share * numbers.length)] ?? Number.NaN;
}
