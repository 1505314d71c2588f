/**
 * `npm run bench:stats`: what counting costs. The built bundle is served twice, with the object of the statistics and
 * without it, when nothing is counted. Both are loaded in turn, ROUNDS times for SECONDS, on plain workerd. What is compared
 * is the processor time that a request takes, as Linux has it: requests a second differ by more than counting costs. Beside
 * it, how long it takes to count one decision, in this process.
 */
import { mkdtempSync, rmSync } from "node:fs";
import { arch, cpus, tmpdir, type } from "node:os";
import { join } from "node:path";
import { Tally } from "../core/stats/tally.ts";
import { BUNDLE, build, installedVersion } from "../scripts/project.ts";
import { makeToken } from "../scripts/tokens.ts";
import { serve } from "../scripts/workerd.ts";
import { CONNECTIONS, load, requestsFor } from "./load.ts";
import { processorSeconds } from "./processor-time.ts";

const ROUNDS = Number(process.env["ROUNDS"] ?? 30);
const SECONDS = Number(process.env["SECONDS"] ?? 1);
const WARM_UP_SECONDS = 4;
const COUNTED = 2_000_000;

const median = (values: readonly number[]) =>
  values.toSorted((a, b) => a - b)[values.length >> 1] ?? Number.NaN;

/** Nanoseconds to count a decision of one of `keys` keys. @param plan absent: by the policy's own figures */
function nanoseconds(keys: number, plan?: string): number {
  const by = plan === undefined ? {} : { plan };
  const decided = {
    policy: "hot",
    success: true,
    reason: "ok",
    source: "isolate",
    rules: [],
    ...by,
  } as const;
  const times = Array.from({ length: 7 }, () => {
    const tally = new Tally();
    const names = Array.from({ length: keys }, (_, index) => `user:${index}`);
    const sinceMs = performance.now();
    for (let call = 0; call < COUNTED; call += 1)
      tally.decided({ ...decided, key: names[(call * 7_919) % keys] ?? "" });
    return ((performance.now() - sinceMs) / COUNTED) * 1e6;
  });
  return median(times);
}

const folder = mkdtempSync(join(tmpdir(), "weir-bench-stats-"));
const { token, entry } = makeToken({ name: "bench", scopes: ["limit"] });
const policies = {
  hot: { algorithm: "token-bucket", limit: 1_000_000, window: "1s", deadlineMs: 10_000 },
  over: { algorithm: "token-bucket", limit: 10, window: "1s", deadlineMs: 10_000 },
};

async function start(name: string, hasDeploymentObjects: boolean) {
  const stateDir = join(folder, name);
  return serve({
    stateDir,
    policies,
    apiTokens: JSON.stringify([entry]),
    main: BUNDLE,
    hasDeploymentObjects,
  });
}

build();
const servings = [await start("counting", true), await start("silent", false)] as const;
try {
  for (const policy of Object.keys(policies)) {
    const body = JSON.stringify({ policy, key: "user:42", cost: 1 });
    const requests = servings.map(({ url }) => requestsFor(`${url}/v1/limit`, token, [body]));
    for (const each of requests) await load(each, WARM_UP_SECONDS);
    /** By serving, a time for each round: other load on the machine only adds to it, so the minimum counts. */
    const used = servings.map((): number[] => []);
    const ratios: number[] = [];
    const least = (which: number) => Math.min(...(used[which] ?? []));
    for (let round = 0; round < ROUNDS; round += 1) {
      const costs = [0, 0];
      for (const which of round % 2 === 0 ? [0, 1] : [1, 0]) {
        const [asked, pid, all] = [requests[which], servings[which]?.process.pid, used[which]];
        if (asked === undefined || pid === undefined || all === undefined) continue;
        const before = processorSeconds(pid);
        const { count } = await load(asked, SECONDS);
        const seconds = processorSeconds(pid) - before;
        all.push(seconds / count);
        costs[which] = seconds / count;
      }
      ratios.push((costs[0] ?? 0) / (costs[1] ?? 0));
    }
    const [counting, silent] = [least(0), least(1)].map((each) => (each * 1e6).toFixed(2));
    const quarter = (part: number) =>
      (ratios.toSorted((x, y) => x - y)[Math.floor(part * ratios.length)] ?? Number.NaN).toFixed(3);
    console.log(
      `${policy}: ${counting} µs of processor time a request at least with counting, ${silent} without; ` +
        `by round ${median(ratios).toFixed(3)} (quarters ${quarter(0.25)}–${quarter(0.75)})`,
    );
  }
  for (const keys of [1, 50, 10_000])
    console.log(
      `a decision is counted in ${nanoseconds(keys).toFixed(0)} ns, of ${keys} keys, ` +
        `and one by a plan in ${nanoseconds(keys, "pro").toFixed(0)} ns`,
    );
  console.log(
    `${cpus()[0]?.model}, ${cpus().length} cores, ${type()} ${arch()}, workerd ${installedVersion("workerd")}, ` +
      `${CONNECTIONS} connections, ${ROUNDS} rounds of ${SECONDS} s`,
  );
} finally {
  for (const serving of servings) await serving.stop("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
}
