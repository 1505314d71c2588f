/** The statistics are late, fail, die or are silent: calls are decided, each read has a clear answer, and nothing is lost. */
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { TOKENS } from "../support/fixtures.ts";
import { parsedMetrics } from "../support/metrics.ts";
import { seededRandom } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";
import { metricsWith, readMetrics, STATS_POLICIES, sumOf, traffic } from "../support/stats-traffic.ts";

const state = makeState();
const random = seededRandom(5);
/** All decisions that callers were told. */
const told = new Map<string, number>();
let serving: Serving;
beforeAll(async () => {
  const main = join(import.meta.dirname, "..", "support", "unsteady-stats.mjs");
  serving = await serveBundle(state, STATS_POLICIES, { main, hasDeploymentObjects: true });
});
afterAll(async () => {
  await serving.stop("SIGKILL");
  removeState(state);
});

async function answering(fate: string): Promise<void> {
  await fetch(`${serving.url}/statistics`, { method: "PUT", body: fate });
}

async function read(path: string): Promise<readonly [status: number, body: unknown]> {
  const headers = { authorization: `Bearer ${TOKENS.full}` };
  const response = await fetch(serving.url + path, { headers });
  return [response.status, await response.json()];
}

const AWAY = {
  type: "urn:weir:problem:unavailable",
  detail: expect.stringContaining("statistics") as string,
};
const up = async () => parsedMetrics(await readMetrics(serving.url)).samples.get("weir_stats_up");

test("statistics that take three seconds are waited for", async () => {
  await traffic(serving.url, random, 20, told);
  await answering("slow");
  expect(await up()).toBe(1);
  expect(await read("/v1/stats?policy=hot")).toMatchObject([200, { policy: "hot" }]);
  await answering("well");
});

test.each(["failing", "dead", "silent"])("%s statistics", async (fate) => {
  await traffic(serving.url, random, 10, told);
  await answering(fate);
  const meanwhile = await traffic(serving.url, random, 30, told);
  expect([...meanwhile.keys()].filter((labels) => labels.includes("degraded"))).toEqual([]);
  const text = await readMetrics(serving.url);
  expect([...parsedMetrics(text).samples]).toEqual([["weir_stats_up", 0]]);
  expect(await readMetrics(serving.url, "text/plain")).toContain("\nweir_stats_up 0\n");
  expect(await read("/v1/stats?policy=hot")).toMatchObject([503, AWAY]);
  expect(await read("/v1/stats/keys?policy=hot")).toMatchObject([503, AWAY]);
  await answering("well");
  expect(await up()).toBe(1);
});

test("what was decided meanwhile is counted afterwards, once", async () => {
  await traffic(serving.url, random, 1, told);
  expect(await metricsWith(serving.url, sumOf(told))).toEqual(told);
});
