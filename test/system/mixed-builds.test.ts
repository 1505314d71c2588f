/**
 * Two builds of the worker over the objects of one folder, as in a gradual deployment, and one after the other, as when
 * one is rolled out and rolled back. The older one is test/support/older-build.ts.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import type { Grant } from "../../client/limiter.ts";
import { createLimiter } from "../../package/client.ts";
import { BUNDLE } from "../../scripts/project.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { TOKENS } from "../support/fixtures.ts";
import { HttpClient, type TimedAnswer } from "../support/http-client.ts";
import { buildOlder } from "../support/older-build.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const PATIENT = { deadlineMs: 20_000 };
const LOG = { algorithm: "sliding-log", limit: 30, window: "30d", ...PATIENT };
const POLICIES = {
  log: LOG,
  bucket: { algorithm: "token-bucket", limit: 600, window: "30d", ...PATIENT },
  jobs: { algorithm: "concurrency", limit: 3, ttl: "10m", maxWait: "20s", ...PATIENT },
  llm: {
    rules: {
      requests: { algorithm: "token-bucket", limit: 20, window: "30d" },
      tokens: { algorithm: "sliding-log", limit: 1_000, window: "30d", unit: "tokens" },
    },
    ...PATIENT,
  },
};
const LOWER = { ...POLICIES, log: { ...LOG, limit: 10 } };
const HIGHER = { ...POLICIES, log: { ...LOG, limit: 50 } };

let folder: string;
let older: string;
beforeAll(async () => {
  folder = makeState();
  older = await buildOlder(folder);
});
afterAll(() => removeState(folder));

let state: string | undefined;
let serving: Serving | undefined;
let clients: HttpClient[] = [];
/** Serves the folder anew. Each isolate has a client; the first isolate has the objects. */
async function serve(
  ...args: Parameters<typeof serveBundle> extends [string, ...infer Others] ? Others : never
) {
  await stop();
  state ??= makeState();
  serving = await serveBundle(state, ...args);
  clients = serving.urls.map((url) => new HttpClient(url, 16));
  return clients as [HttpClient, HttpClient];
}
/** A deployment ends objects where they are, so does this. */
async function stop() {
  for (const client of clients) client.close();
  clients = [];
  await serving?.stop("SIGKILL");
  serving = undefined;
}
afterEach(async () => {
  await stop();
  if (state !== undefined) removeState(state);
  state = undefined;
});

/** Makes a call. Nobody is refused because builds are mixed. */
async function ask(client: HttpClient, path: string, body: object): Promise<TimedAnswer["body"]> {
  const { status, body: answer } = await client.call("POST", `/v1/${path}`, body);
  expect([status, answer["reason"]], JSON.stringify(answer)).not.toEqual([200, "degraded"]);
  expect(status, JSON.stringify(answer)).toBe(200);
  return answer;
}

/** How many of so many calls are admitted, so many at once. */
async function take(client: HttpClient, policy: string, key: string, calls: number, atOnce = 1) {
  let [left, admitted] = [calls, 0];
  const asker = async () => {
    while (left-- > 0) if ((await ask(client, "limit", { policy, key }))["success"] === true) admitted += 1;
  };
  await Promise.all(Array.from({ length: atOnce }, asker));
  return admitted;
}

const idOf = (answer: TimedAnswer["body"], claim: "lease" | "hold") => (answer[claim] as { id: string }).id;

const OLDER_OBJECTS = [
  "older objects and newer callers",
  () => ({ main: older, callersMain: BUNDLE }),
] as const;
const NEWER_OBJECTS = [
  "newer objects and older callers",
  () => ({ main: BUNDLE, callersMain: older }),
] as const;

describe.each(depth([NEWER_OBJECTS], [NEWER_OBJECTS, OLDER_OBJECTS]))("%s", (_, builds) => {
  test("a hot key that all ask at once: never over the limit, and next to nothing is lost", async () => {
    const [one, other] = await serve(POLICIES, { isolates: 2, ...builds() });
    const taken = await Promise.all(
      [one, other, one].map((client) => take(client, "bucket", "hot", depth(300, 400), 8)),
    );
    const first = taken.reduce((sum, units) => sum + units, 0);
    expect(first).toBeLessThanOrEqual(600);
    // What an isolate still holds comes back when it is asked for, or at its end.
    let all = first;
    const takeMore = async () => {
      for (const client of [one, other]) all += await take(client, "bucket", "hot", 20);
      return all;
    };
    await expect.poll(takeMore, { timeout: 20_000 }).toBeGreaterThan(570);
    expect(all).toBeLessThanOrEqual(600);
  });

  test("where their limits differ, the object's counts: the other build says or hears nothing of it", async () => {
    for (const [callersPolicies, key] of [
      [LOWER, "lower"],
      [HIGHER, "higher"],
    ] as const) {
      const [one, other] = await serve(POLICIES, { isolates: 2, callersPolicies, ...builds() });
      const taken = await Promise.all([take(one, "log", key, 30, 4), take(other, "log", key, 30, 4)]);
      expect(taken[0] + taken[1]).toBe(30);
    }
  });

  test("leases, holds, several rules and several keys, made by one and ended by the other", async () => {
    const [one, other] = await serve(POLICIES, { isolates: 2, ...builds() });
    for (const [first, second, key] of [
      [one, other, "a"],
      [other, one, "b"],
    ] as const) {
      const lease = idOf(await ask(first, "leases", { policy: "jobs", key, units: 2 }), "lease");
      expect(await ask(second, "leases", { policy: "jobs", key, units: 2 })).toMatchObject({
        success: false,
      });
      const waiting = ask(second, "leases", { policy: "jobs", key, units: 2, waitMs: 15_000 });
      expect(await ask(second, `leases/${lease}/renew`, {})).toMatchObject({ id: lease });
      expect((await second.call("DELETE", `/v1/leases/${lease}`)).status).toBe(204);
      expect(await waiting).toMatchObject({ success: true });
      const units = { requests: 1, tokens: 900 };
      const hold = idOf(await ask(first, "holds", { policy: "llm", key, units }), "hold");
      const more = { policy: "llm", key, cost: { requests: 1, tokens: 200 } };
      expect(await ask(second, "limit", more)).toMatchObject({ success: false, violated: ["tokens"] });
      await ask(second, `holds/${hold}/settle`, { used: { tokens: 100 } });
      expect(await ask(second, "limit", more)).toMatchObject({ success: true });
      const checks = ["x", "y"].map((end) => ({ policy: "log", key: key + end, cost: 20 }));
      expect(await ask(first, "limit/all", { checks })).toMatchObject({ success: true });
      expect(await ask(second, "limit/all", { checks })).toMatchObject({ success: false });
    }
  });
});

test("a process leases slots while both builds answer its messages in turn: it keeps them, and no call fails", async () => {
  await serve(
    { hot: { algorithm: "concurrency", limit: 20, ttl: "1h" } },
    { isolates: 2, callersMain: older },
  );
  const [first = "", second = ""] = serving?.urls ?? [];
  let requests = 0;
  let isMixed = false;
  const inTurn = (at: string, init: RequestInit) => {
    requests += 1;
    return fetch(isMixed && requests % 2 === 0 ? at.replace(first, second) : at, init);
  };
  const limiter = createLimiter({ url: first, token: TOKENS.full, policy: "hot", fetch: inTurn });
  const grants: Grant[] = [];
  while (grants.length < 4) {
    const grant = await limiter.acquire({ key: "k" });
    expect(grant).toMatchObject({ success: true });
    if (grant.lease?.signal === undefined) await grant[Symbol.asyncDispose]();
    else grants.push(grant);
  }
  isMixed = true;
  const areLost = () => grants.some(({ lease }) => lease?.signal?.aborted === true);
  const until = requests + 8;
  // Nothing is asked for: it only keeps its leases.
  while (requests < until && !areLost()) await sleep(20);
  for (let call = 0; call < 100; call += 1) {
    const { success, reason, lease } = await limiter.acquire({ key: "k" });
    expect({ success, reason }).toEqual({ success: true, reason: "ok" });
    await limiter.release({ id: lease?.id ?? "" });
    await sleep(5);
  }
  expect(areLost()).toBe(false);
  expect((await limiter.peek({ key: "k" })).outstanding).toBeGreaterThanOrEqual(4);
  await limiter.close();
  expect(grants.map(({ lease }) => lease?.signal?.aborted)).toEqual([true, true, true, true]);
  const other = createLimiter({ url: first, token: TOKENS.full, policy: "hot" });
  const left = async () => (await other.peek({ key: "k" })).outstanding;
  await expect.poll(left, { timeout: 20_000 }).toBe(0);
  await other.close();
});

test("rolled out and rolled back: what was used, held and leased by one build is so for the next", async () => {
  let used = 0;
  let [lease, hold] = ["", ""];
  for (const main of [older, BUNDLE, older, BUNDLE]) {
    const [client] = await serve(POLICIES, { main });
    if (lease !== "") {
      expect(await ask(client, "leases", { policy: "jobs", key: "k", units: 3 })).toMatchObject({
        success: false,
      });
      expect((await client.call("DELETE", `/v1/leases/${lease}`)).status).toBe(204);
      expect(await ask(client, "limit", { policy: "log", key: "h", cost: 30 })).toMatchObject({
        success: false,
      });
      await ask(client, `holds/${hold}/settle`, { used: 0 });
      expect(await ask(client, "limit", { policy: "log", key: "h", cost: 0 })).toMatchObject({
        remaining: 30,
      });
    }
    used += await take(client, "log", "k", 8);
    const again = { policy: "log", key: "once", cost: 20, idempotencyKey: "the same" };
    expect(await ask(client, "limit", again)).toMatchObject({ success: true, remaining: 10 });
    lease = idOf(await ask(client, "leases", { policy: "jobs", key: "k" }), "lease");
    hold = idOf(await ask(client, "holds", { policy: "log", key: "h", units: 30, ttlMs: 600_000 }), "hold");
  }
  expect(used).toBe(30);
});
