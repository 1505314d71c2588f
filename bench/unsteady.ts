/**
 * `npm run bench:unsteady`: how long a request on a hot key takes while the catalog or the statistics are slow (3 s), fail,
 * are dead or silent, beside the same while they answer. ROUNDS is 5, SECONDS 4, PER_SECOND 500.
 */
import { join } from "node:path";
import { build } from "../scripts/project.ts";
import { TOKENS } from "../test/support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../test/support/served.ts";

process.env["PER_SECOND"] ??= "500";
const { load, requestsFor } = await import("./load.ts");
const ROUNDS = Number(process.env["ROUNDS"] ?? 5);
const SECONDS = Number(process.env["SECONDS"] ?? 4);

const POLICIES = { hot: { algorithm: "token-bucket", limit: 1_000_000, window: "1s" } };
const FATES = ["well", "slow", "failing", "dead", "silent"] as const;
const SUPPORT = join(import.meta.dirname, "..", "test", "support");

const median = (numbers: readonly number[]) => numbers.toSorted((a, b) => a - b)[numbers.length >> 1] ?? 0;

/** Prints the latencies under each fate of one object. */
async function measure(what: string, module: string, path: string): Promise<void> {
  const state = makeState();
  const serving = await serveBundle(state, POLICIES, {
    main: join(SUPPORT, module),
    hasDeploymentObjects: true,
  });
  try {
    const body = JSON.stringify({ policy: "hot", key: "user:42", cost: 1 });
    const requests = requestsFor(`${serving.url}/v1/limit`, TOKENS.full, [body]);
    await load(requests, SECONDS);
    const found = new Map(FATES.map((fate) => [fate, { p50: [] as number[], p99: [] as number[] }]));
    for (let round = 0; round < ROUNDS; round += 1)
      for (const [fate, { p50, p99 }] of found) {
        await fetch(`${serving.url}${path}`, { method: "PUT", body: fate });
        const { p50Ms, p99Ms } = await load(requests, SECONDS);
        p50.push(p50Ms);
        p99.push(p99Ms);
      }
    for (const [fate, { p50, p99 }] of found)
      console.log(`| ${what} | ${fate} | ${median(p50)} | ${median(p99)} |`);
  } finally {
    await serving.stop("SIGKILL");
    removeState(state);
  }
}

build();
console.log("| object | it is | p50 ms | p99 ms |\n| --- | --- | --- | --- |");
await measure("catalog", "unsteady-catalog.mjs", "/catalog");
await measure("statistics", "unsteady-stats.mjs", "/statistics");
