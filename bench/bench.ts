/**
 * `npm run bench`: measures the built bundle beside the baselines, in one run, on plain workerd.
 *
 * Machines are noisy. So there are several rounds, each target is loaded for a short while in each round, and figures
 * are compared only within a round. Each time, a target is started with nothing stored, warmed up, loaded and ended. So
 * no target pays for what another has left behind (the alarms of 10,000 objects, for example). The environment variable
 * ROUNDS is the number of rounds, SECONDS the length of each load. BESIDE=../another-checkout measures the bundle of
 * that checkout too, in the same rounds, and prints how much faster this one is. TARGETS=algorithms measures a hot key of
 * each algorithm (keys by Zipf's law are warmed up for WARM_UP seconds, by default 10), TARGETS=objects many keys on 1, 4, 16 objects and on an object each, TARGETS=path what the HTTP path costs,
 * TARGETS=claims leases, holds, idempotency keys and credits (a pair counts once), TARGETS=denied what is denied, beside `@upstash/ratelimit` with its cache. CONNECTIONS is 32. With PER_SECOND=500 so many
 * requests are sent in a second, for their latency. With TMPDIR=/dev/shm nothing is synced to a disk.
 */
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { arch, cpus, tmpdir, type } from "node:os";
import { basename, join, relative, resolve } from "node:path";
import { BUNDLE, build, installedVersion, ROOT } from "../scripts/project.ts";
import { startRedis } from "../scripts/redis-server.ts";
import { makeToken } from "../scripts/tokens.ts";
import { serve } from "../scripts/workerd.ts";
import { startDistantBridge } from "./bridge.ts";
import { bundled, bundleUpstash } from "./bundled.ts";
import { CONNECTIONS, load, type Load, type Requests } from "./load.ts";
import { printLogSizes } from "./log-sizes.ts";
import { printSaturation } from "./saturation.ts";
import { makeTargets, POLICIES, type Target } from "./targets.ts";
import { measureWaking } from "./waking.ts";

const ROUNDS = Number(process.env["ROUNDS"] ?? 7);
const SECONDS = Number(process.env["SECONDS"] ?? 3);

const BESIDE = process.env["BESIDE"];

const folder = mkdtempSync(join(tmpdir(), "weir-bench-"));
const { token, entry } = makeToken({ name: "bench", scopes: ["limit"] });
const isDenied = process.env["TARGETS"] === "denied";
const redis = isDenied ? await startRedis() : undefined;
const bridge = redis && (await startDistantBridge(redis.port, "bench", 0));
const upstash = isDenied ? await bundleUpstash(folder) : "";
let servings = 0;

/**
 * Starts a module with nothing stored, passes its address to `use`, and ends the module after that. workerd now and then
 * ends requests of (i), which wait for the message of another one: then a baseline is measured anew.
 */
async function serving<Result>(
  main: string,
  use: (url: string) => Promise<Result>,
  caller?: string,
  tries = basename(main) === "baseline.js" ? 4 : 1,
): Promise<Result> {
  servings += 1;
  const stateDir = join(folder, `state-${servings}`);
  const apiTokens = JSON.stringify([entry]);
  const running = await serve({
    stateDir,
    policies: POLICIES,
    apiTokens,
    main,
    modules: { "weir.js": BUNDLE },
    ...(caller !== undefined && { caller }),
    ...(main === upstash && bridge !== undefined && { pool: bridge }),
  });
  try {
    return await use(running.callerUrl);
  } catch (error) {
    if (tries === 1) throw error;
  } finally {
    await running.stop("SIGKILL");
    rmSync(stateDir, { recursive: true, force: true });
  }
  return await serving(main, use, caller, tries - 1);
}

/** Rows written and object calls per 1,000 decisions, after a warm-up. */
function count(
  counting: string,
  requestsAt: (url: string) => Requests,
  warmUp: number,
): Promise<{ rows: number; calls: number }> {
  return serving(counting, async (url) => {
    const counts = async () =>
      (await (await fetch(`${url}/counts`)).json()) as { objectCalls: number; rowsWritten: number };
    await load(requestsAt(url), warmUp);
    const before = await counts();
    const { count: decisions } = await load(requestsAt(url), SECONDS);
    const after = await counts();
    const perThousand = (from: number, to: number) => (1_000 * (to - from)) / decisions;
    return {
      rows: perThousand(before.rowsWritten, after.rowsWritten),
      calls: perThousand(before.objectCalls, after.objectCalls),
    };
  });
}

function measure({ main, requests, warmUp, isBound }: Target, caller: string): Promise<Load> {
  const use = async (url: string) => {
    await load(requests(url), warmUp);
    return await load(requests(url), SECONDS);
  };
  return serving(main, use, isBound ? caller : undefined);
}

const sorted = (numbers: readonly number[]) => numbers.toSorted((a, b) => a - b);
const median = (numbers: readonly number[]) => sorted(numbers)[numbers.length >> 1] ?? Number.NaN;

/** The ratio to other loads: the median over the rounds, and in brackets the lowest and the highest. */
function ratio({ loads }: Pick<Target, "loads">, to: Pick<Target, "loads">): string {
  const ratios = loads.map(
    (each, round) => each.requestsPerSecond / (to.loads[round]?.requestsPerSecond ?? Number.NaN),
  );
  return `${median(ratios).toFixed(2)} (${sorted(ratios)[0]?.toFixed(2)}–${sorted(ratios).at(-1)?.toFixed(2)})`;
}

/** The letter of a baseline, in brackets. */
function letterOf({ name }: Target): string {
  return name.slice(0, name.indexOf(")") + 1);
}

function print(all: readonly Target[]): void {
  const [first, second] = all as [Target, Target];
  const rows = all.map((target) => {
    const of = (figure: keyof Load) => median(target.loads.map((each) => each[figure]));
    const { rows: written, calls } = target.perThousand;
    const figures = [Math.round(of("requestsPerSecond")), ratio(target, first), ratio(target, second)];
    const counted = [written.toFixed(2), calls.toFixed(2)];
    return [target.name, ...figures, ...counted, of("p50Ms"), of("p99Ms")].join(" | ");
  });
  console.log(`
| | requests/s | ratio to ${letterOf(first)} | ratio to ${letterOf(second)} | rows per 1,000 | object calls per 1,000 | p50 ms | p99 ms |
| --- | --- | --- | --- | --- | --- | --- | --- |
${rows.map((row) => `| ${row} |`).join("\n")}

${cpus()[0]?.model}, ${cpus().length} cores, ${type()} ${arch()}, workerd ${installedVersion("workerd")}, Node ${process.versions.node}, ${CONNECTIONS} connections, ${ROUNDS} rounds of ${SECONDS} s, ${new Date().toISOString().slice(0, 10)}. Ratios are medians over the rounds (least–most).

Wanted, as ratios to (f): one hot key at least 0.95 with at most 1 object call per 1,000; far over its limit 0.9; 10,000
Zipf keys on 16 objects 0.75; mostly denied 0.65.`);
}

/** Builds the bundle of another checkout. */
function buildBeside(checkout: string): string {
  execFileSync("npm", ["run", "build"], { cwd: checkout, stdio: "ignore" });
  return resolve(checkout, relative(ROOT, BUNDLE));
}

function printBeside(pairs: readonly (readonly [here: Target, there: Target])[]): void {
  console.log(`
| | requests/s, this to the other checkout |
| --- | --- |
${pairs.map(([here, there]) => `| ${here.name} | ${ratio(here, there)} |`).join("\n")}`);
}

try {
  build();
  const [baseline, counting, caller] = [
    await bundled(folder, "baseline"),
    await bundled(folder, "counting"),
    await bundled(folder, "caller"),
  ];
  const targets = await makeTargets({
    token,
    baseline,
    main: BUNDLE,
    upstash,
    count: (requests, warmUp, module = counting) => count(module, requests, warmUp),
  });
  const other = BESIDE === undefined ? undefined : buildBeside(BESIDE);
  const pairs = targets.flatMap((here): [Target, Target][] =>
    other === undefined || here.main !== BUNDLE ? [] : [[here, { ...here, main: other, loads: [] }]],
  );
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const target of targets) {
      const there = pairs.find(([here]) => here === target)?.[1];
      // In turn, since whatever runs second may find the machine warmer.
      if (there !== undefined && round % 2 === 1) there.loads.push(await measure(there, caller));
      target.loads.push(await measure(target, caller));
      if (there !== undefined && round % 2 === 0) there.loads.push(await measure(there, caller));
    }
  }
  print(targets);
  if (pairs.length > 0) printBeside(pairs);
  if (process.env["TARGETS"] === undefined) {
    await serving(BUNDLE, (url) => measureWaking(url, token));
    printLogSizes();
    await printSaturation();
  }
} finally {
  await bridge?.stop();
  await redis?.stop();
  rmSync(folder, { recursive: true, force: true });
}
