/** The same folder is served again with other policies: what was consumed stays consumed, and leases stay leased. */
import { setTimeout as sleep } from "node:timers/promises";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { inDeepRuns } from "../support/depth.ts";
import { HttpClient, type TimedAnswer } from "../support/http-client.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

/** It takes long, most of it waiting. */

const PATIENT = { timeout: 240_000 };
const OTHER = { other: { algorithm: "token-bucket", limit: 1, window: "1s" } };
const BUCKET = { algorithm: "token-bucket", limit: 10, window: "30d" };
const LOG = { algorithm: "sliding-log", limit: 10, window: "30d" };
const JOBS = { algorithm: "concurrency", limit: 1, ttl: "50m" };
/** Long enough for an alarm that was set for the end of a lease that nobody had confirmed. */
const ALARM_MS = 20_000;

let state: string;
let serving: Serving | undefined;
let client: HttpClient;
beforeEach(() => (state = makeState()));
afterEach(async () => {
  await stop();
  removeState(state);
});

async function serve(policies: object): Promise<void> {
  await stop();
  serving = await serveBundle(state, { ...OTHER, ...policies });
  client = new HttpClient(serving.url, 4);
}

async function stop(): Promise<void> {
  client?.close();
  await serving?.stop("SIGKILL");
  serving = undefined;
}

async function ask(path: string, body: object): Promise<TimedAnswer["body"]> {
  const { status, body: answer } = await client.call("POST", `/v1/${path}`, body);
  expect(status, JSON.stringify(answer)).toBe(200);
  return answer;
}

const remaining = async (policy: string) => (await ask("limit", { policy, key: "a", cost: 0 }))["remaining"];

test("used of one algorithm is used of the next, and one rule may become several", PATIENT, async () => {
  await serve({ p: BUCKET, q: LOG });
  await ask("limit", { policy: "p", key: "a", cost: 3 });
  await ask("limit", { policy: "q", key: "a", cost: 4 });
  await serve({ p: LOG, q: { ...BUCKET, algorithm: "fixed-window", window: "1 month" } });
  expect([await remaining("p"), await remaining("q")]).toEqual([7, 6]);
  await ask("limit", { policy: "p", key: "a", cost: 1 });
  await serve({ p: { rules: { fast: { ...LOG, limit: 5 }, slow: BUCKET } }, q: BUCKET });
  expect([await remaining("p"), await remaining("q")]).toEqual([1, 6]);
  await serve({ p: BUCKET, q: LOG });
  expect([await remaining("p"), await remaining("q")]).toEqual([6, 6]);
});

inDeepRuns("a lease outlasts a deployment that does not know its policy", PATIENT, async () => {
  await serve({ jobs: JOBS });
  const leased = await ask("leases", { policy: "jobs", key: "a" });
  const { id } = leased["lease"] as { id: string };
  await serve({});
  await sleep(ALARM_MS);
  await serve({ jobs: JOBS });
  expect(await ask("leases", { policy: "jobs", key: "a" })).toMatchObject({ success: false });
  expect(await ask(`leases/${id}/renew`, {})).toMatchObject({ id });
  // Its keys are forgotten when it was removed on purpose, and until then they are there.
  await serve({ jobs: { removed: true } });
  await sleep(500);
  await serve({ jobs: { rules: { slots: JOBS } } });
  expect(await ask("leases", { policy: "jobs", key: "a" })).toMatchObject({ success: false });
});
