/** What /metrics says agrees with what callers were told, whatever fails in between. */
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { expect, test } from "vitest";
import { freePort } from "../../scripts/free-port.ts";
import { BUNDLE } from "../../scripts/project.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { TOKENS } from "../support/fixtures.ts";
import { HttpClient } from "../support/http-client.ts";
import { parsedMetrics } from "../support/metrics.ts";
import { seededRandom, whole, announcedSeed } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";
import {
  metricDecisions,
  metricsWith,
  readMetrics,
  STATS_POLICIES,
  sumOf,
  traffic,
} from "../support/stats-traffic.ts";

const SEED = announcedSeed("traffic");
let limiters = 0;
const FAULTY = join(import.meta.dirname, "..", "support", "faulty-stats.mjs");

/** A limiter of one test, which may be started several times over one state. */
class Limiter {
  readonly random = seededRandom(SEED + (limiters += 1));
  readonly #state = makeState();
  #serving: Serving | undefined;

  async start(options: Parameters<typeof serveBundle>[2] = {}): Promise<string> {
    this.#serving = await serveBundle(this.#state, STATS_POLICIES, options);
    return this.#serving.url;
  }

  /** Until what was counted has been sent. */
  async rest(): Promise<void> {
    await this.#serving?.rest();
  }

  async stop(signal?: NodeJS.Signals): Promise<void> {
    await this.#serving?.stop(signal);
    this.#serving = undefined;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop("SIGKILL");
    removeState(this.#state);
  }
}

test.concurrent("after real traffic the metrics are exactly what was answered, and Prometheus reads them", async () => {
  await using limiter = new Limiter();
  const url = await limiter.start();
  const near = new Map<string, number>();
  const decisions = await traffic(url, limiter.random, depth(100, 300), new Map(), near);
  expect(await metricsWith(url, sumOf(decisions))).toEqual(decisions);

  const { samples } = parsedMetrics(await readMetrics(url));
  const granted = samples.get('weir_leases_granted_total{policy="slots"}') ?? 0;
  expect(granted).toBeLessThanOrEqual(sumOf(decisions));
  const slots = [...decisions].filter(([labels]) => labels.startsWith('policy="slots"'));
  const waited = slots.reduce((sum, [, count]) => sum + count, 0);
  expect(samples.get('weir_waited_seconds_count{policy="slots"}')).toBe(waited);
  expect(near.size).toBeGreaterThanOrEqual(2);
  for (const [policy, count] of near)
    expect(samples.get(`weir_near_limit_total{policy="${policy}"}`)).toBe(count);

  const checked = spawnSync("promtool", ["check", "metrics"], {
    input: await readMetrics(url, "text/plain"),
  });
  expect({ status: checked.status, said: `${String(checked.stdout)}${String(checked.stderr)}` }).toEqual({
    status: 0,
    said: "",
  });
  expect(await scraped(url)).toBe(sumOf(decisions));
});

test.concurrent("each lease that has ended is in the histogram once, with how long it was held", async () => {
  await using limiter = new Limiter();
  const url = await limiter.start();
  const client = new HttpClient(url, 10);
  const ended = 9;
  for (let lease = 0; lease < ended; lease += 1) {
    // The last one ends by itself.
    const fields = lease === ended - 1 ? { ttlMs: 1_000 } : {};
    const { body } = await client.call("POST", "/v1/leases", { policy: "slots", key: "own", ...fields });
    const { id } = body["lease"] as { id: string };
    await sleep(lease === 0 ? 1_100 : 0);
    if (lease < ended - 1) await client.call("DELETE", `/v1/leases/${id}`);
  }
  await sleep(1_100);
  await client.peek("slots", "own");
  await limiter.rest();
  client.close();
  const { samples } = parsedMetrics(await readMetrics(url));
  const of = (name: string) => samples.get(`weir_${name}{policy="slots"}`) ?? 0;
  expect(of("leases_released_total") + of("leases_reclaimed_total")).toBe(ended);
  expect(of("lease_held_seconds_count")).toBe(ended);
  expect(of("lease_held_seconds_sum")).toBeGreaterThanOrEqual(2.1);
});

test.concurrent("an orderly end loses no count, and a start goes on from there", async () => {
  await using limiter = new Limiter();
  const before = await traffic(await limiter.start(), limiter.random, 60);
  await limiter.rest();
  await limiter.stop();
  const url = await limiter.start();
  expect(await metricDecisions(url)).toEqual(before);
  await traffic(url, limiter.random, 40, before);
  await limiter.rest();
  expect(await metricDecisions(url)).toEqual(before);
});

test.concurrent("a server that is killed loses what was not sent at most, and counts nothing twice", async () => {
  await using limiter = new Limiter();
  let told = 0;
  let least = 0;
  for (let kill = 0; kill < depth(2, 3); kill += 1) {
    const url = await limiter.start();
    const atStart = sumOf(await metricDecisions(url));
    expect(atStart).toBeGreaterThanOrEqual(least);
    expect(atStart).toBeLessThanOrEqual(told);
    const first = sumOf(await traffic(url, limiter.random, 40));
    told += first;
    await limiter.rest();
    least = sumOf(await metricDecisions(url));
    expect(least).toBe(atStart + first);
    // Some of this is on its way when the server dies.
    told += sumOf(await traffic(url, limiter.random, 20));
    await sleep(whole(limiter.random, 300));
    await limiter.stop("SIGKILL");
  }
});

test.concurrent("deciding goes on while nobody takes the counts, and in the end each is counted once", async () => {
  await using limiter = new Limiter();
  const url = await limiter.start({ main: FAULTY, hasDeploymentObjects: true });
  const decisions = await traffic(url, limiter.random, 100);
  const [, degraded = 0] = [...decisions].find(([labels]) => labels.includes("degraded")) ?? [];
  expect(degraded).toBe(0);
  // Each message is given up in its time, and calls that come after that send it again: some were counted before.
  const repeated = async () =>
    parsedMetrics(await readMetrics(url)).samples.get('weir_stats_messages_total{result="repeated"}') ?? 0;
  while ((await repeated().catch(() => 0)) < 2) {
    await traffic(url, limiter.random, 1, decisions);
    await sleep(500);
  }
  await traffic(url, limiter.random, 1, decisions);
  await limiter.rest();
  expect(await metricDecisions(url)).toEqual(decisions);
});

test.concurrent("without the object nothing is counted, and all else is as it was", async () => {
  await using limiter = new Limiter();
  const url = await limiter.start({ main: BUNDLE });
  const decisions = await traffic(url, limiter.random, 20);
  expect([...decisions.keys()].some((labels) => labels.includes("degraded"))).toBe(false);
  const headers = { authorization: `Bearer ${TOKENS.full}` };
  for (const path of ["/metrics", "/v1/stats?policy=hot", "/v1/stats/keys?policy=hot"]) {
    const response = await fetch(url + path, { headers });
    expect(response.status).toBe(503);
    expect(await response.json()).toMatchObject({ type: "urn:weir:problem:not-configured" });
  }
});

/** The sum of the decisions as a Prometheus has it that scrapes this server as docs/metrics.md says. */
async function scraped(url: string): Promise<number> {
  const folder = mkdtempSync(join(tmpdir(), "weir-prometheus-"));
  const [port, target] = [await freePort(), new URL(url).host];
  const config = join(folder, "prometheus.yml");
  writeFileSync(
    config,
    `scrape_configs:
  - job_name: weir
    scrape_interval: 1s
    scheme: http
    authorization: { credentials: ${TOKENS.metrics} }
    static_configs: [{ targets: ["${target}"] }]
`,
  );
  const args = [`--config.file=${config}`, `--storage.tsdb.path=${join(folder, "data")}`];
  const prometheus = spawn("prometheus", [...args, `--web.listen-address=127.0.0.1:${port}`], {
    stdio: "ignore",
  });
  const ended = new Promise((done) => prometheus.on("close", done));
  try {
    for (;;) {
      const query = `http://127.0.0.1:${port}/api/v1/query?query=sum(weir_decisions_total)`;
      const answer = await fetch(query).then(
        async (response) => (response.ok ? await response.json<QueryAnswer>() : undefined),
        () => undefined,
      );
      const [sample] = answer?.data.result ?? [];
      if (sample !== undefined) return Number(sample.value[1]);
      await sleep(250);
    }
  } finally {
    prometheus.kill("SIGKILL");
    await ended;
    rmSync(folder, { recursive: true, force: true });
  }
}

interface QueryAnswer {
  readonly data: { readonly result: readonly { readonly value: readonly [number, string] }[] };
}
