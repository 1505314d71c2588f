/**
 * `npm run bench`: the built bundle beside three baselines, in one run, on plain workerd.
 *
 * Machines are noisy, so every target is loaded for a short while in turn, several rounds over, and each
 * round's figures are compared only with those of the same round. Each time it is started anew, with nothing
 * stored, warmed up and ended, so that no target pays for what another left behind (10,000 objects' alarms, say).
 * ROUNDS and SECONDS change how many and how long.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { arch, cpus, tmpdir, type } from "node:os";
import { join } from "node:path";
import { build as bundle } from "esbuild";
import { BUNDLE, build, installedVersion } from "../scripts/project.ts";
import { makeToken } from "../scripts/tokens.ts";
import { serve } from "../scripts/workerd.ts";
import { seededRandom } from "../test/support/random.ts";
import { CONNECTIONS, leasesFor, load, requestsFor, zipfKeys, type Load, type Requests } from "./load.ts";
import { printLogSizes } from "./log-sizes.ts";
import { measureWaking } from "./waking.ts";

const ROUNDS = Number(process.env["ROUNDS"] ?? 7);
const SECONDS = Number(process.env["SECONDS"] ?? 3);
const WARM_UP_SECONDS = 2;
const KEYS = 10_000;

const BUCKET = { algorithm: "token-bucket", limit: 1_000_000, window: "1s", deadlineMs: 10_000 };
const POLICIES = {
  hot: BUCKET,
  "per-key": { ...BUCKET, limit: 1_000 },
  shared: { ...BUCKET, limit: 1_000, objects: 16 },
  log: { ...BUCKET, algorithm: "sliding-log" },
  "two-rules": {
    rules: {
      rate: { algorithm: "token-bucket", limit: 1_000_000, window: "1s" },
      total: { algorithm: "sliding-log", limit: 1_000_000, window: "1s" },
    },
    deadlineMs: 10_000,
  },
  slots: { algorithm: "concurrency", limit: 10_000, deadlineMs: 10_000 },
};

/** A module to run, and what to send it at its address. */
interface Target {
  readonly name: string;
  readonly main: string;
  readonly requests: (url: string) => Requests;
  /** Of a baseline, known without counting; of Weir, counted in a pass of its own. */
  readonly perThousand: { readonly rows: number; readonly calls: number };
  readonly loads: Load[];
}

const folder = mkdtempSync(join(tmpdir(), "weir-bench-"));
const { token, entry } = makeToken({ name: "bench", scopes: ["limit"] });
let servings = 0;

/** Starts a module with nothing stored, and ends it when `use` is done with its address. */
async function serving<Result>(main: string, use: (url: string) => Promise<Result>): Promise<Result> {
  servings += 1;
  const stateDir = join(folder, `state-${servings}`);
  const apiTokens = JSON.stringify([entry]);
  const running = await serve({
    stateDir,
    policies: POLICIES,
    apiTokens,
    main,
    modules: { "weir.js": BUNDLE },
  });
  try {
    return await use(running.url);
  } finally {
    await running.stop("SIGKILL");
    rmSync(stateDir, { recursive: true, force: true });
  }
}

/** Bundles one of this folder's modules for workerd. */
async function bundled(name: string): Promise<string> {
  const outfile = join(folder, `${name}.js`);
  const entryPoint = join(import.meta.dirname, `${name}.ts`);
  await bundle({
    entryPoints: [entryPoint],
    outfile,
    bundle: true,
    format: "esm",
    external: ["cloudflare:workers", "weir.js"],
  });
  return outfile;
}

/** Rows written and object calls per 1,000 decisions, after a warm-up. */
function count(
  counting: string,
  requestsAt: (url: string) => Requests,
): Promise<{ rows: number; calls: number }> {
  return serving(counting, async (url) => {
    const counts = async () =>
      (await (await fetch(`${url}/counts`)).json()) as { objectCalls: number; rowsWritten: number };
    const requests = requestsAt(url);
    await load(requests, WARM_UP_SECONDS);
    const before = await counts();
    const { count: decisions } = await load(requests, SECONDS);
    const after = await counts();
    const perThousand = (from: number, to: number) => (1_000 * (to - from)) / decisions;
    return {
      rows: perThousand(before.rowsWritten, after.rowsWritten),
      calls: perThousand(before.objectCalls, after.objectCalls),
    };
  });
}

async function makeTargets(): Promise<Target[]> {
  const keys = zipfKeys(KEYS, 4 * KEYS, seededRandom(1));
  const bodiesOf = (policy: string, of: readonly string[]) =>
    of.map((key) => JSON.stringify({ policy, key, cost: 1 }));
  const one = bodiesOf("hot", ["user:42"]);
  const [baseline, counting] = [await bundled("baseline"), await bundled("counting")];
  const ofBaseline = (name: string, path: string, rows: number, calls: number): Target => ({
    name,
    main: baseline,
    requests: (url) => requestsFor(`${url}${path}`, token, one),
    perThousand: { rows, calls },
    loads: [],
  });
  const ofWeir = async (name: string, requests: Target["requests"]): Promise<Target> => ({
    name,
    main: BUNDLE,
    requests,
    perThousand: await count(counting, requests),
    loads: [],
  });
  const limits = (bodies: readonly string[]) => (url: string) =>
    requestsFor(`${url}/v1/limit`, token, bodies);
  const leases = [JSON.stringify({ policy: "slots", key: "user:42" })];
  return [
    ofBaseline("(a) constant route", "/constant", 0, 0),
    ofBaseline("(b) and one RPC", "/rpc", 0, 1_000),
    ofBaseline("(c) and one row", "/write", 1_000, 1_000),
    await ofWeir("(d) Weir, one hot key", limits(one)),
    await ofWeir("(d) Weir, 10,000 Zipf keys, an object each", limits(bodiesOf("per-key", keys))),
    await ofWeir("(d) Weir, the same keys on 16 objects", limits(bodiesOf("shared", keys))),
    await ofWeir("(d) Weir, one hot key, sliding log", limits(bodiesOf("log", ["user:42"]))),
    await ofWeir("(d) Weir, one hot key, two rules", limits(bodiesOf("two-rules", ["user:42"]))),
    await ofWeir("(d) Weir, acquire and release (a pair counts once)", (url) =>
      leasesFor(url, token, leases),
    ),
  ];
}

function measure({ main, requests }: Target): Promise<Load> {
  return serving(main, async (url) => {
    await load(requests(url), WARM_UP_SECONDS);
    return await load(requests(url), SECONDS);
  });
}

const sorted = (numbers: readonly number[]) => numbers.toSorted((a, b) => a - b);
const median = (numbers: readonly number[]) => sorted(numbers)[numbers.length >> 1] ?? Number.NaN;

/** The ratio to another target, round by round: its median, and in brackets the least and the most. */
function ratio(target: Target, to: Target): { readonly median: number; readonly text: string } {
  const ratios = target.loads.map(
    (each, round) => each.requestsPerSecond / (to.loads[round]?.requestsPerSecond ?? Number.NaN),
  );
  const middle = median(ratios);
  return {
    median: middle,
    text: `${middle.toFixed(2)} (${sorted(ratios)[0]?.toFixed(2)}–${sorted(ratios).at(-1)?.toFixed(2)})`,
  };
}

function print(all: readonly Target[]): void {
  const [constant, rpc, write, hot] = all as [Target, Target, Target, Target];
  const rows = all.map((target) => {
    const of = (figure: keyof Load) => median(target.loads.map((each) => each[figure]));
    const { rows: written, calls } = target.perThousand;
    const figures = [
      Math.round(of("requestsPerSecond")),
      ratio(target, constant).text,
      ratio(target, rpc).text,
    ];
    return [target.name, ...figures, written.toFixed(2), Math.round(calls), of("p50Ms"), of("p99Ms")].join(
      " | ",
    );
  });
  console.log(`
| | requests/s | ratio to (a) | ratio to (b) | rows per 1,000 | object calls per 1,000 | p50 ms | p99 ms |
| --- | --- | --- | --- | --- | --- | --- | --- |
${rows.map((row) => `| ${row} |`).join("\n")}

${cpus()[0]?.model}, ${cpus().length} cores, ${type()} ${arch()}, workerd ${installedVersion("workerd")}, Node ${process.versions.node}, ${CONNECTIONS} connections, ${ROUNDS} rounds of ${SECONDS} s, ${new Date().toISOString().slice(0, 10)}. Ratios are medians over the rounds (least–most).

Wanted, one hot key: at least 0.85 of (b), is ${ratio(hot, rpc).median.toFixed(2)}; at least 3 times (c), is ${ratio(hot, write).median.toFixed(2)};
at most 1 row written per 1,000 decisions, is ${hot.perThousand.rows.toFixed(2)}.`);
}

try {
  build();
  const targets = await makeTargets();
  for (let round = 0; round < ROUNDS; round += 1) {
    for (const target of targets) target.loads.push(await measure(target));
  }
  print(targets);
  await serving(BUNDLE, (url) => measureWaking(url, token));
  printLogSizes();
} finally {
  rmSync(folder, { recursive: true, force: true });
}
