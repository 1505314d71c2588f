/** Decisions in Analytics Engine, by the runtime's own binding: it sends each data point, as JSON, to a server of the test. */
import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { text } from "node:stream/consumers";
import { test } from "vitest";
import { freePort } from "../../scripts/free-port.ts";
import { BUNDLE } from "../../scripts/project.ts";
import { depth } from "../support/depth.ts";
import { TOKENS } from "../support/fixtures.ts";
import { announcedSeed, seededRandom } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";
import { type Decisions, metricsWith, STATS_POLICIES, sumOf, traffic } from "../support/stats-traffic.ts";

const SEED = announcedSeed("analytics");

/** A data point as workerd sends it: texts as their bytes. */
type Point = Readonly<Record<"index1" | "blob1" | "blob2" | "blob3" | "blob4", readonly number[]>> & {
  readonly double1: number;
};

/** The server behind the binding, which is Cloudflare's in production. */
class Dataset {
  /** The decisions of all data points. */
  readonly written: Decisions = new Map();
  readonly #server = createServer((request, response) => {
    void text(request).then((body) => {
      this.#note(JSON.parse(body) as Point);
      response.writeHead(this.#status).end();
    });
  });
  readonly #status: number;

  constructor(status = 200) {
    this.#status = status;
  }

  async start(): Promise<string> {
    this.#server.listen(0, "127.0.0.1");
    await once(this.#server, "listening");
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  #note({ index1, blob1, blob2, blob3, blob4, double1 }: Point): void {
    const [index, policy, outcome, reason, source] = [index1, blob1, blob2, blob3, blob4].map((bytes) =>
      Buffer.from(bytes).toString(),
    );
    if (index !== policy) throw new Error(`the index of ${policy} is ${index}`);
    const labels = `policy="${policy}",outcome="${outcome}",reason="${reason}",source="${source}"`;
    this.written.set(labels, (this.written.get(labels) ?? 0) + double1);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    this.#server.close();
    await once(this.#server, "close");
  }
}

/** Serves the bundle with this dataset, until it is disposed of. */
async function limiterWith(analytics: string, options: Parameters<typeof serveBundle>[2] = {}) {
  const state = makeState();
  const serving = await serveBundle(state, STATS_POLICIES, { ...options, analytics });
  return {
    serving,
    [Symbol.asyncDispose]: async () => {
      await serving.stop("SIGKILL");
      removeState(state);
    },
  };
}

const WITHOUT_STATS = { main: BUNDLE, classes: { CATALOG: "CatalogObject" } };

test.concurrent("without the statistics object each isolate writes its decisions, each once", async ({
  expect,
}) => {
  await using dataset = new Dataset();
  const options = { ...WITHOUT_STATS, isolates: 3 };
  await using limiter = await limiterWith(await dataset.start(), options);
  const { urls } = limiter.serving;
  const told: Decisions = new Map();
  for (let round = 0; round < depth(2, 4); round += 1)
    await Promise.all(
      urls.map((url, index) => traffic(url, seededRandom(SEED + 10 * round + index), 30, told)),
    );
  expect(sumOf(dataset.written)).toBeGreaterThan(0);
  await limiter.serving.rest();
  await expect.poll(() => sumOf(dataset.written)).toBeGreaterThanOrEqual(sumOf(told));
  expect(dataset.written).toEqual(told);
});

test.concurrent("the last decisions before a pause are written without a further call", async ({
  expect,
}) => {
  await using dataset = new Dataset();
  await using limiter = await limiterWith(await dataset.start(), WITHOUT_STATS);
  const told = await traffic(limiter.serving.url, seededRandom(SEED), 3);
  await expect.poll(() => sumOf(dataset.written), { timeout: 20_000 }).toBe(sumOf(told));
});

test.concurrent("with the object the isolates write nothing: each decision is written once", async ({
  expect,
}) => {
  await using dataset = new Dataset();
  await using limiter = await limiterWith(await dataset.start(), { isolates: 2 });
  const told: Decisions = new Map();
  for (const [index, url] of limiter.serving.urls.entries())
    await traffic(url, seededRandom(SEED + index), 40, told);
  expect(await metricsWith(limiter.serving.url, sumOf(told))).toEqual(told);
  await limiter.serving.rest();
  await expect.poll(() => sumOf(dataset.written)).toBeGreaterThanOrEqual(sumOf(told));
  expect(dataset.written).toEqual(told);
});

test.concurrent("a dataset that refuses, or is not there, costs no call anything", async ({ expect }) => {
  await using refusing = new Dataset(500);
  for (const analytics of [await refusing.start(), `127.0.0.1:${await freePort()}`]) {
    await using limiter = await limiterWith(analytics, WITHOUT_STATS);
    const told: Decisions = new Map();
    for (let call = 0; call < depth(30, 60); call += 1)
      await traffic(limiter.serving.url, seededRandom(SEED + call), 2, told);
    expect([...told.keys()].filter((labels) => labels.includes("degraded"))).toEqual([]);
  }
  expect(sumOf(refusing.written)).toBeGreaterThan(0);
});

test.concurrent("without the object counts cannot be read, and the catalog goes on", async ({ expect }) => {
  await using dataset = new Dataset();
  await using limiter = await limiterWith(await dataset.start(), WITHOUT_STATS);
  const { url } = limiter.serving;
  const headers = { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" };
  for (const path of ["/metrics", "/v1/stats?policy=hot", "/v1/stats/keys?policy=hot"]) {
    const response = await fetch(url + path, { headers });
    expect(response.status).toBe(503);
    expect(await response.json()).toMatchObject({ type: "urn:weir:problem:not-configured" });
  }
  const override = JSON.stringify({ limit: 7 });
  const written = await fetch(`${url}/v1/policies/hot/overrides/vip`, {
    method: "PUT",
    headers,
    body: override,
  });
  expect(written.ok).toBe(true);
  const body = JSON.stringify({ policy: "hot", key: "vip" });
  const decided = await fetch(`${url}/v1/limit`, { method: "POST", headers, body });
  expect(await decided.json()).toMatchObject({ success: true, limit: 7, remaining: 6 });
});
