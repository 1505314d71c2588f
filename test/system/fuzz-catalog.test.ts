/** Random calls on the catalog and on the statistics, over HTTP and over the service binding. */
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { bundledDriver, fuzzBinding, type Outcomes } from "../support/fuzz/binding-fuzz.ts";
import { CATALOG_POLICIES } from "../support/fuzz/catalog-draws.ts";
import { fuzzCatalog } from "../support/fuzz/catalog-fuzz.ts";
import { Operations, type OpenApi } from "../support/fuzz/openapi-operations.ts";
import { HttpClient } from "../support/http-client.ts";
import { announcedSeed } from "../support/random.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const CALLS = depth(200, 4_000);
const BOUND_CALLS = depth(120, 3_000);
const CANARY = { algorithm: "token-bucket", limit: 1_000, window: "30d", deadlineMs: 30_000 };

const state = makeState();
let serving: Serving;
beforeAll(async () => {
  const caller = bundledDriver(state, "catalog-driver");
  const policies = { ...CATALOG_POLICIES, canary: CANARY };
  serving = await serveBundle(state, policies, { caller, onOutput: () => undefined });
});
afterAll(async () => {
  await serving.stop("SIGKILL");
  removeState(state);
});

test(`${CALLS} calls over HTTP: each answer is one that the document promises, and what is refused changes nothing`, async () => {
  const document = (await (await fetch(`${serving.url}/openapi.json`)).json()) as OpenApi;
  const answers = await fuzzCatalog({
    port: Number(new URL(serving.url).port),
    operations: new Operations(document),
    seed: announcedSeed("fuzz of the catalog"),
    calls: CALLS,
  });
  const statuses = new Set([...answers.values()].flatMap((counts) => [...counts.keys()]));
  expect([200, 204, 400, 404, 412, 422].filter((status) => !statuses.has(status))).toEqual([]);
  const client = new HttpClient(serving.url, 1);
  expect((await client.limit("canary", "k")).body).toMatchObject({
    success: true,
    limit: 1_000,
    remaining: 999,
  });
  // What was exported is what can be written back, and then nothing changes.
  const exported = (await client.call("GET", "/v1/catalog")).body;
  expect((await client.call("PUT", "/v1/catalog", exported)).status).toBe(200);
  expect((await client.call("GET", "/v1/catalog")).body).toEqual(exported);
  client.close();
});

/** The methods that were refused every time. */
const neverDone = (outcomes: Outcomes) =>
  [...outcomes].filter(([, counts]) => !counts.has("ok")).map(([method]) => method);

test(`${BOUND_CALLS} calls over the service binding: each refusal is one that says why, and changes nothing`, async () => {
  const outcomes = await fuzzBinding({
    serving,
    seed: announcedSeed("fuzz of the catalog over the binding"),
    calls: BOUND_CALLS,
    isEnough: (met) => neverDone(met).length === 0,
    concurrency: 1,
  });
  expect(neverDone(outcomes)).toEqual([]);
});
