/** While a deployment is rolled out, callers have another version of the policies than the objects they ask. */
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { HttpClient, type TimedAnswer } from "../support/http-client.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const PATIENT = { timeout: 120_000 };
const LOG = { algorithm: "sliding-log", limit: 100, window: "30d" };
const BUCKET = { algorithm: "token-bucket", limit: 1_000, window: "30d" };
const JOBS = { algorithm: "concurrency", limit: 3, ttl: "10m" };
/** What the objects have. */
const BEFORE = { log: LOG, bucket: BUCKET, jobs: JOBS, spare: { ...LOG, limit: 5 }, other: LOG };
/** What callers have that were deployed later. */
const AFTER = {
  log: { ...LOG, limit: 10 },
  bucket: { ...BUCKET, limit: 200 },
  jobs: { ...JOBS, limit: 1 },
  spare: { ...LOG, limit: 50 },
  other: { ...BUCKET, limit: 10 },
};

let state: string;
let serving: Serving;
let before: HttpClient;
let after: HttpClient;
beforeEach(async () => {
  state = makeState();
  serving = await serveBundle(state, BEFORE, { isolates: 2, callersPolicies: AFTER });
  const [first = "", second = ""] = serving.urls;
  [before, after] = [new HttpClient(first, 8), new HttpClient(second, 8)];
});
afterEach(async () => {
  before.close();
  after.close();
  await serving.stop("SIGKILL");
  removeState(state);
});

async function ask(client: HttpClient, path: string, body: object): Promise<TimedAnswer["body"]> {
  const { status, body: answer } = await client.call("POST", `/v1/${path}`, body);
  expect(status, JSON.stringify(answer)).toBe(200);
  return answer;
}

/** How many of so many calls are admitted. */
async function take(client: HttpClient, policy: string, key: string, calls: number): Promise<number> {
  let admitted = 0;
  for (let call = 0; call < calls; call += 1)
    if ((await ask(client, "limit", { policy, key }))["success"] === true) admitted += 1;
  return admitted;
}

test(
  "a lower limit counts from the first call that knows it, for callers that do not know it too",
  PATIENT,
  async () => {
    expect(await take(after, "log", "a", 14)).toBe(10);
    expect(await take(before, "log", "a", 3)).toBe(0);
    expect(await take(before, "log", "b", 6)).toBe(6);
    expect(await take(after, "log", "b", 8)).toBe(4);
  },
);

test("what was used before counts", PATIENT, async () => {
  expect(await take(before, "log", "a", 40)).toBe(40);
  expect(await ask(after, "limit", { policy: "log", key: "a" })).toMatchObject({
    success: false,
    remaining: 0,
  });
});

test("a higher limit counts when the object knows it", PATIENT, async () => {
  expect(await take(after, "spare", "a", 8)).toBe(5);
});

test("of leases, holds and calls on several keys too", PATIENT, async () => {
  const lease = (client: HttpClient) => ask(client, "leases", { policy: "jobs", key: "a" });
  expect(await lease(after)).toMatchObject({ success: true });
  expect(await lease(after)).toMatchObject({ success: false });
  expect(await lease(before)).toMatchObject({ success: false });
  const hold = { policy: "log", key: "h", units: 8 };
  expect(await ask(after, "holds", hold)).toMatchObject({ success: true });
  expect(await ask(after, "holds", hold)).toMatchObject({ success: false });
  const checks = [6, 6].map((cost) => ({ policy: "log", key: `all ${cost}`, cost }));
  expect(await ask(after, "limit/all", { checks })).toMatchObject({ success: false });
  const waiting = { policy: "log", key: "h", cost: 8, waitMs: 0 };
  expect(await ask(after, "limit", waiting)).toMatchObject({ success: false });
});

test("units that isolates reserve keep to the stricter limit as well", PATIENT, async () => {
  const callers = [after, before, after, before].map((client) => take(client, "bucket", "hot", 200));
  const admitted = await Promise.all(callers);
  const sum = admitted.reduce((all, units) => all + units, 0);
  // What was admitted until the first call of the later version came is at most a few.
  expect(sum).toBeLessThanOrEqual(205);
  expect(sum).toBeGreaterThan(150);
});

test("where the algorithm has changed, the object decides by what it knows", PATIENT, async () => {
  expect(await take(after, "other", "a", 20)).toBe(20);
});

test(
  "an object that has the later version decides by its own when no earlier one calls",
  PATIENT,
  async () => {
    await serving.stop("SIGKILL");
    serving = await serveBundle(state, AFTER);
    before.close();
    before = new HttpClient(serving.url, 8);
    expect(await take(before, "spare", "z", 60)).toBe(50);
  },
);

test(
  "an object that knows no grace grants no lease with one, and takes none for another",
  PATIENT,
  async () => {
    await serving.stop("SIGKILL");
    const support = join(import.meta.dirname, "..", "support");
    const main = join(support, "linkless-object.mjs");
    serving = await serveBundle(state, BEFORE, { main, caller: join(support, "caller.mjs") });
    const call = async (fields: object) => {
      const body = JSON.stringify({ policy: "jobs", key: "linked", ending: "detached", ...fields });
      return (await (await fetch(serving.callerUrl, { method: "POST", body })).json()) as Record<
        string,
        unknown
      >;
    };
    const { lease } = (await call({ detached: true })) as { lease: { id: string } };
    const degraded = { success: false, reason: "degraded" };
    expect(await call({ graceMs: 1_000 })).toMatchObject(degraded);
    expect(await call({ graceMs: 1_000, waitMs: 100 })).toMatchObject(degraded);
    expect(await call({ resume: lease.id })).toMatchObject(degraded);
    expect(await call({})).toHaveProperty("lease");
  },
);
