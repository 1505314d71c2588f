/**
 * `npm run bench:client`: how fast decisions are in the caller's own process: in Node over HTTP, with the limiter near and
 * 20 ms away, and in a worker around a Hono route, over the service binding and over bound objects, beside an empty route.
 * ROUNDS is the number of rounds of the worker's rows, SECONDS the length of each load. TABLE=hot,denied measures
 * these tables of the worker alone, and WAY=objects,http only these ways.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { createLimiter, type LimitRequest } from "../package/client.ts";
import { BUNDLE, build, installedVersion } from "../scripts/project.ts";
import { makeToken } from "../scripts/tokens.ts";
import { serve } from "../scripts/workerd.ts";
import { printRoutes } from "./limited-routes.ts";

const SECONDS = Number(process.env["SECONDS"] ?? 2);
const AWAY_MS = 20;
/** How many decisions are made before the event loop runs again. */
const AT_ONCE = 1_000;
const FIRST_CALLS = 100;

const PLANNED = {
  algorithm: "token-bucket",
  limit: 1_000_000_000,
  window: "1s",
  deadlineMs: 10_000,
  plans: { pro: { limit: 900_000_000 } },
};
const LEASED = { algorithm: "concurrency", limit: 10_000, ttl: "10s", deadlineMs: 10_000 };
/** Limits that are never reached, and two that always are. */
const POLICIES = {
  hot: { algorithm: "token-bucket", limit: 1_000_000_000, window: "1s", deadlineMs: 10_000 },
  planned: PLANNED,
  grouped: { ...PLANNED, fair: true },
  many: { algorithm: "token-bucket", limit: 10_000, window: "1s", deadlineMs: 10_000, objects: 16 },
  over: { algorithm: "token-bucket", limit: 10, window: "1s", deadlineMs: 10_000 },
  denied: { algorithm: "token-bucket", limit: 2, window: "600s", deadlineMs: 10_000, objects: 16 },
  leased: LEASED,
  "leased-keys": { ...LEASED, objects: 16 },
};

const sleep = (ms: number) => new Promise<void>((done) => setTimeout(done, ms));
const sorted = (numbers: readonly number[]) => numbers.toSorted((a, b) => a - b);
const at = (numbers: readonly number[], share: number) =>
  sorted(numbers)[Math.floor(share * numbers.length)] ?? Number.NaN;

const folder = mkdtempSync(join(tmpdir(), "weir-bench-"));
const { token, entry } = makeToken({ name: "bench", scopes: ["limit", "reserve"] });
const serving = (name: string) =>
  serve({
    stateDir: join(folder, name),
    policies: POLICIES,
    apiTokens: JSON.stringify([entry]),
    main: BUNDLE,
  });

/** What calls name: nothing; a plan; a plan and a group. */
const NAMED = [
  ["", { policy: "hot", key: "user:42" }],
  [", by a plan", { policy: "planned", key: "user:42", plan: "pro" }],
  [", by a plan, of a group", { policy: "grouped", key: "user:42", plan: "pro", group: "customer:7" }],
] as const;

/** Decides on one hot key for a while. Returns decisions a second, nanoseconds of each, and requests per 1,000. */
async function decide(url: string, awayMs: number, call: LimitRequest) {
  let requests = 0;
  const distant = async (address: string, init: RequestInit): Promise<Response> => {
    requests += 1;
    if (awayMs > 0) await sleep(awayMs);
    return await fetch(address, init);
  };
  const limiter = createLimiter({ url, token, fetch: distant });
  const decideFor = async (ms: number) => {
    const untilMs = performance.now() + ms;
    let [decisions, busyMs] = [0, 0];
    while (performance.now() < untilMs) {
      const sinceMs = performance.now();
      for (let made = 0; made < AT_ONCE; made += 1) await limiter.limit(call);
      busyMs += performance.now() - sinceMs;
      decisions += AT_ONCE;
      await new Promise((done) => setImmediate(done));
    }
    return { decisions, busyMs };
  };
  await decideFor(3_000);
  requests = 0;
  const { decisions, busyMs } = await decideFor(SECONDS * 1_000);
  const bytes = await bytesOf(() => limiter.limit(call));
  await limiter.close();
  return {
    perSecond: Math.round(decisions / SECONDS),
    ns: Math.round((busyMs * 1e6) / decisions),
    perThousand: ((1_000 * requests) / decisions).toFixed(3),
    bytes,
  };
}

/** Bytes that a decision allocates: the median of several tries, since a collection may come in between. */
async function bytesOf(work: () => Promise<unknown>): Promise<number> {
  const tries: number[] = [];
  for (let round = 0; round < 21; round += 1) {
    const before = process.memoryUsage().heapUsed;
    for (let call = 0; call < AT_ONCE; call += 1) await work();
    tries.push((process.memoryUsage().heapUsed - before) / AT_ONCE);
    await sleep(1);
  }
  return Math.round(at(tries, 0.5));
}

/** How long the first decision of a new client takes, in milliseconds. */
async function firstCalls(url: string): Promise<number[]> {
  const took: number[] = [];
  for (let each = 0; each < FIRST_CALLS; each += 1) {
    const limiter = createLimiter({ url, token, policy: "hot" });
    const sinceMs = performance.now();
    await limiter.limit({ key: `first ${each}` });
    took.push(performance.now() - sinceMs);
    await limiter.close();
  }
  return took;
}

async function inNode(): Promise<void> {
  const running = await serving("node");
  try {
    console.log(
      "| one process, one hot key | decisions/s | ns | bytes | requests per 1,000 |\n| --- | --- | --- | --- | --- |",
    );
    for (const [named, call] of NAMED)
      for (const awayMs of [0, AWAY_MS]) {
        const { perSecond, ns, bytes, perThousand } = await decide(running.url, awayMs, call);
        console.log(
          `| the limiter ${awayMs} ms away${named} | ${perSecond} | ${ns} | ${bytes} | ${perThousand} |`,
        );
      }
    const first = await firstCalls(running.url);
    console.log(
      `\nThe first call of a new client: ${at(first, 0.5).toFixed(1)} ms in the middle, ${at(first, 0.99).toFixed(1)} ms at p99.\n`,
    );
  } finally {
    await running.stop("SIGKILL");
  }
}

try {
  build();
  const isInNode = process.env["WAY"] === "node";
  if (process.env["TABLE"] === undefined || isInNode) await inNode();
  if (!isInNode) await printRoutes({ folder, token, apiTokens: JSON.stringify([entry]), policies: POLICIES });
  console.log(
    `\n${cpus()[0]?.model}, ${cpus().length} cores, workerd ${installedVersion("workerd")}, Node ${process.versions.node}.`,
  );
} finally {
  rmSync(folder, { recursive: true, force: true });
}
