/**
 * `npm run bench:pools`: measures policies with `pool = "redis"` beside `@upstash/ratelimit`, in one run, on plain
 * workerd, with the same redis-server and the same bridge for all.
 *
 * As in bench.ts, each target is started in each round with nothing stored, warmed up, loaded and ended, and figures
 * are compared only within a round. Here each start also has a key of its own, and each round has another order of the
 * targets. The environment variable ROUNDS is the number of rounds, SECONDS the length of each load, and DISTANCE_MS a
 * delay that is added between the bridge and Redis (there and back; 0 by default).
 */
import { mkdtempSync, rmSync } from "node:fs";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { BUNDLE, build, installedVersion } from "../scripts/project.ts";
import { startRedis } from "../scripts/redis-server.ts";
import { makeToken } from "../scripts/tokens.ts";
import { serve, type Serving } from "../scripts/workerd.ts";
import { seededRandom } from "../test/support/random.ts";
import { startDistantBridge, type DistantBridge } from "./bridge.ts";
import { bundleUpstash } from "./bundled.ts";
import { CONNECTIONS, load, requestsFor } from "./load.ts";

const ROUNDS = Number(process.env["ROUNDS"] ?? 7);
const SECONDS = Number(process.env["SECONDS"] ?? 3);
const DISTANCE_MS = Number(process.env["DISTANCE_MS"] ?? 0);
const WARM_UP_SECONDS = 2;
/** Long enough, in milliseconds, for every message to be answered while the machine is busy with the load. */
const DEADLINE_MS = 10_000;
const ORIGIN = "x-origin";
const CONTINENTS = ["EU", "NA", "AS"] as const;

const BUCKET = { algorithm: "token-bucket", limit: 1_000_000, window: "1s", deadlineMs: DEADLINE_MS };
const POLICIES = {
  alone: BUCKET,
  bucket: { ...BUCKET, pool: "redis" },
  log: { ...BUCKET, algorithm: "sliding-log", pool: "redis" },
  over: { ...BUCKET, limit: 100, pool: "redis" },
};

interface Measured {
  readonly requestsPerSecond: number;
  /** The worst of the processes. */
  readonly p50Ms: number;
  readonly p99Ms: number;
  /** Calls of the script per 1,000 decisions. Each is several commands: docs/costs.md. */
  readonly commands: number;
}

interface Target {
  readonly name: string;
  readonly path: string;
  readonly policy: keyof typeof POLICIES;
  readonly isUpstash: boolean;
  /** Where its callers are. Each continent has a process of its own. */
  readonly continents: readonly string[];
  /** One for each round. */
  readonly measured: Measured[];
}

const folder = mkdtempSync(join(tmpdir(), "weir-bench-"));
const { token, entry } = makeToken({ name: "bench", scopes: ["limit"] });
let servings = 0;

/** Starts the target's processes with nothing stored, loads all at once, and ends them. */
async function measure(target: Target, bridge: DistantBridge, upstash: string): Promise<Measured> {
  servings += 1;
  const key = `user:${servings}`;
  const running: Serving[] = [];
  const stateDirs: string[] = [];
  try {
    for (const continent of target.continents) {
      const stateDir = join(folder, `state-${servings}-${continent}`);
      stateDirs.push(stateDir);
      const pool = { url: bridge.url, token: bridge.token };
      const main = target.isUpstash ? upstash : BUNDLE;
      const apiTokens = JSON.stringify([entry]);
      running.push(
        await serve({ stateDir, policies: POLICIES, apiTokens, pool, main, originHeader: ORIGIN }),
      );
    }
    const body = JSON.stringify({ policy: target.policy, key });
    const requests = running.map(({ url }, index) =>
      requestsFor(`${url}${target.path}`, token, [body], {
        [ORIGIN]: JSON.stringify({ continent: target.continents[index] }),
      }),
    );
    const loadAll = (seconds: number) => Promise.all(requests.map((each) => load(each, seconds)));
    await loadAll(WARM_UP_SECONDS);
    const before = await bridge.commands();
    const loads = await loadAll(SECONDS);
    const after = await bridge.commands();
    const decisions = loads.reduce((sum, { count }) => sum + count, 0);
    const requestsPerSecond = loads.reduce((sum, each) => sum + each.requestsPerSecond, 0);
    const [p50Ms, p99Ms] = [
      Math.max(...loads.map((each) => each.p50Ms)),
      Math.max(...loads.map((each) => each.p99Ms)),
    ];
    return { requestsPerSecond, p50Ms, p99Ms, commands: (1_000 * (after - before)) / decisions };
  } finally {
    await Promise.all(running.map((each) => each.stop("SIGKILL")));
    for (const stateDir of stateDirs) rmSync(stateDir, { recursive: true, force: true });
  }
}

function targetsOf() {
  const weir = (name: string, policy: Target["policy"], continents: readonly string[] = ["EU"]): Target => ({
    name,
    path: "/v1/limit",
    policy,
    isUpstash: false,
    continents,
    measured: [],
  });
  const upstash = (name: string, path: string): Target => ({
    ...weir(name, "bucket"),
    path,
    isUpstash: true,
    measured: [],
  });
  return {
    bucket: weir("Weir, a token bucket", "bucket"),
    upstashBucket: upstash("`@upstash/ratelimit`, `tokenBucket`", "/token-bucket"),
    log: weir("Weir, a sliding log", "log"),
    upstashWindow: upstash("`@upstash/ratelimit`, `slidingWindow`", "/sliding-window"),
    alone: weir("Weir, the token bucket without a pool", "alone"),
    over: weir("Weir, far over its limit (100/s)", "over"),
    regions: weir("Weir, the token bucket in three regions at once", "bucket", CONTINENTS),
    regionsOver: weir("Weir, far over its limit in three regions at once", "over", CONTINENTS),
  };
}

const sorted = (numbers: readonly number[]) => numbers.toSorted((a, b) => a - b);
const median = (numbers: readonly number[]) => sorted(numbers)[numbers.length >> 1] ?? Number.NaN;

/** The ratio to another target: the median over the rounds, and in brackets the lowest and the highest. */
function ratio(target: Target, to: Target): string {
  const ratios = target.measured.map(
    (each, round) => each.requestsPerSecond / (to.measured[round]?.requestsPerSecond ?? Number.NaN),
  );
  return `${median(ratios).toFixed(2)} (${sorted(ratios)[0]?.toFixed(2)}–${sorted(ratios).at(-1)?.toFixed(2)})`;
}

function print(targets: ReturnType<typeof targetsOf>): void {
  const { bucket, upstashBucket, log, upstashWindow } = targets;
  const rows = Object.values(targets).map(({ name, measured }) => {
    const of = (figure: keyof Measured) => median(measured.map((each) => each[figure]));
    const perSecond = Math.round(of("requestsPerSecond"));
    const commands = measured.map((each) => each.commands);
    const spread = `${sorted(commands)[0]?.toFixed(2)}–${sorted(commands).at(-1)?.toFixed(2)}`;
    return `| ${name} | ${perSecond} | ${median(commands).toFixed(2)} (${spread}) | ${of("p50Ms")} | ${of("p99Ms")} |`;
  });
  console.log(`
| | requests/s | script calls per 1,000 decisions | p50 ms | p99 ms |
| --- | --- | --- | --- | --- |
${rows.join("\n")}

Weir to \`@upstash/ratelimit\`: ${ratio(bucket, upstashBucket)} the token bucket to \`tokenBucket\`, ${ratio(log, upstashWindow)} the
sliding log to \`slidingWindow\`; a pool to none: ${ratio(bucket, targets.alone)}. Wanted: at least 3, with at most 1 command.

${cpus()[0]?.model}, ${cpus().length} cores, workerd ${installedVersion("workerd")}, @upstash/ratelimit ${installedVersion("@upstash/ratelimit")}, Node ${process.versions.node}, ${CONNECTIONS} connections to each process, Redis ${DISTANCE_MS} ms away, ${ROUNDS} rounds of ${SECONDS} s, ${new Date().toISOString().slice(0, 10)}. Medians over the rounds (least–most).`);
}

const redis = await startRedis();
try {
  const bridge = await startDistantBridge(redis.port, "bench", DISTANCE_MS);
  try {
    build();
    const [upstash, targets, random] = [await bundleUpstash(folder), targetsOf(), seededRandom(Date.now())];
    for (let round = 0; round < ROUNDS; round += 1) {
      const turns = Object.values(targets).map((target) => ({ target, turn: random() }));
      for (const { target } of turns.toSorted((a, b) => a.turn - b.turn))
        target.measured.push(await measure(target, bridge, upstash));
    }
    print(targets);
  } finally {
    await bridge.stop();
  }
} finally {
  await redis.stop();
  rmSync(folder, { recursive: true, force: true });
}
