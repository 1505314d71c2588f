/** Another number of objects: the same folder is served again, by a deployment that says where the keys were. */
import { afterEach, beforeEach, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { HttpClient, type TimedAnswer } from "../support/http-client.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const PATIENT = { timeout: 240_000 };
const DAYS = "30d";
const KEYS = Array.from({ length: depth(8, 24) }, (_, index) => `key ${index}`);
const RULES = {
  bucket: { algorithm: "token-bucket", limit: 100, window: DAYS },
  log: { algorithm: "sliding-log", limit: 100, window: DAYS },
  balance: { algorithm: "credits", limit: 100 },
  jobs: { algorithm: "concurrency", limit: 3, ttl: "10m", maxTtl: "10m" },
};
type Name = keyof typeof RULES;
const RATES = ["bucket", "log", "balance"] as const;

let state: string;
let serving: Serving | undefined;
let client: HttpClient;
beforeEach(() => (state = makeState()));
afterEach(async () => {
  await stop();
  removeState(state);
});

/** Serves the folder with so many objects. */
async function serve(objects: number | "per-key", objectsBefore?: unknown, isolates = 1): Promise<void> {
  const moved = objectsBefore === undefined ? {} : { objectsBefore };
  const policies = Object.fromEntries(
    Object.entries(RULES).map(([name, rule]) => [name, { ...rule, objects, ...moved, deadlineMs: 10_000 }]),
  );
  serving = await serveBundle(state, policies, { isolates });
  client = new HttpClient(serving.url, 8);
}

async function stop(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
  client?.close();
  if (signal === "SIGTERM") await serving?.rest();
  await serving?.stop(signal);
  serving = undefined;
}

async function ok(call: Promise<TimedAnswer>): Promise<TimedAnswer["body"]> {
  const { status, body } = await call;
  expect(status, JSON.stringify(body)).toBeLessThan(300);
  return body;
}

const limit = (policy: Name, key: string, cost: number, fields: object = {}) =>
  ok(client.call("POST", "/v1/limit", { policy, key, cost, ...fields }));
const remaining = async (policy: Name, key: string) => (await limit(policy, key, 0))["remaining"];
/** Calls with an idempotency key are decided by the object, and written before they are answered. */
let calls = 0;
const take = (policy: Name, key: string, cost: number) =>
  limit(policy, key, cost, { idempotencyKey: `call ${(calls += 1)}` });
const idIn = (body: TimedAnswer["body"], field: "lease" | "hold") => (body[field] as { id: string }).id;

async function keysOf(policy: Name): Promise<readonly string[]> {
  const keys: string[] = [];
  for (let cursor = ""; ;) {
    const query = cursor === "" ? "" : `?cursor=${cursor}`;
    const page = await ok(client.call("GET", `/v1/policies/${policy}/keys${query}`));
    keys.push(...(page["keys"] as { key: string }[]).map(({ key }) => key));
    if (page["cursor"] === undefined) return keys.toSorted();
    cursor = page["cursor"] as string;
  }
}

test(
  "what keys have consumed goes with them from 4 objects to 32, and back, though the process is killed",
  PATIENT,
  async () => {
    const used = new Map<string, number>();
    const spend = async (cost: number) => {
      for (const policy of RATES)
        for (const [index, key] of KEYS.entries()) {
          if (index % 5 === 4) continue;
          const place = `${policy} ${key}`;
          used.set(place, (used.get(place) ?? 0) + cost);
          const { remaining: left } = await take(policy, key, cost);
          expect(left).toBe(100 - (used.get(place) ?? 0));
        }
    };
    const check = async () => {
      for (const policy of RATES)
        for (const key of KEYS)
          expect(await remaining(policy, key)).toBe(100 - (used.get(`${policy} ${key}`) ?? 0));
    };
    await serve(4);
    await spend(7);
    await stop("SIGTERM");
    await serve(32, 4);
    // Half of the keys move, and the others have not moved when the process is killed and everything goes back.
    for (const key of KEYS.slice(0, KEYS.length / 2))
      expect(await remaining("log", key)).toBe(100 - (used.get(`log ${key}`) ?? 0));
    await spend(3);
    await stop();
    await serve(4, 32);
    await check();
    await spend(2);
    await stop();
    await serve("per-key", [4, 32]);
    await check();
    await spend(1);
    await stop();
    await serve(8, ["per-key", 4, 32]);
    await check();
  },
);

test("leases, holds, answers and lists of keys are found where their keys have gone", PATIENT, async () => {
  await serve(4);
  const leases: string[] = [];
  for (let count = 0; count < 3; count += 1)
    leases.push(
      idIn(
        await ok(client.call("POST", "/v1/leases", { policy: "jobs", key: "a", ttlMs: 600_000 })),
        "lease",
      ),
    );
  const held = { policy: "log", key: "a", units: 40, ttlMs: 600_000 };
  const hold = idIn(await ok(client.call("POST", "/v1/holds", held)), "hold");
  const once = { policy: "bucket", key: "a", cost: 11, idempotencyKey: "once" };
  const answer = await ok(client.call("POST", "/v1/limit", once));
  for (const key of KEYS) await take("bucket", key, 1);
  const before = await keysOf("bucket");
  await stop("SIGTERM");
  await serve(32, 4);
  expect(await keysOf("bucket")).toEqual(before);
  expect(await ok(client.call("POST", "/v1/limit", once))).toEqual(answer);
  expect(await remaining("log", "a")).toBe(60);
  await stop();
  await serve(32, 4);
  const refused = await ok(client.call("POST", "/v1/leases", { policy: "jobs", key: "a" }));
  expect(refused["success"]).toBe(false);
  for (const id of leases) {
    expect((await ok(client.call("POST", `/v1/leases/${id}/renew`, {})))["id"]).toBe(id);
    expect((await client.call("DELETE", `/v1/leases/${id}`)).status).toBe(204);
  }
  expect((await ok(client.call("POST", "/v1/leases", { policy: "jobs", key: "a" })))["success"]).toBe(true);
  const settled = await ok(client.call("POST", `/v1/holds/${hold}/settle`, { used: 5 }));
  expect(settled["remaining"]).toBe(95);
  for (const key of KEYS) await remaining("bucket", key);
  expect(await keysOf("bucket")).toEqual(before);
  const { count } = await ok(client.call("GET", "/v1/policies/bucket/key-count"));
  expect(count).toBe(before.length);
});

test(
  "killed again and again while its keys move, the limiter admits no more than there is",
  PATIENT,
  async () => {
    const admitted = new Map<string, number>();
    const layouts: readonly (readonly [objects: number | "per-key", before?: unknown])[] = [
      [4],
      [32, 4],
      [4, 32],
      [32, 4],
      ["per-key", [32, 4]],
    ];
    for (const [objects, before] of layouts) {
      await serve(objects, before);
      // Each key is called until the process is killed, in the middle of its calls.
      let answers = 0;
      const callers = KEYS.slice(0, 8).map(async (key) => {
        for (;;) {
          const call = client.call("POST", "/v1/limit", { policy: "log", key, cost: 3 });
          const answer = await call.catch(() => undefined);
          if (answer === undefined) return;
          if (answer.body["success"] === true) admitted.set(key, (admitted.get(key) ?? 0) + 3);
          answers += 1;
          if (answers === 120) void serving?.stop("SIGKILL");
        }
      });
      await Promise.all(callers);
      await stop();
    }
    for (const units of admitted.values()) expect(units).toBeLessThanOrEqual(100);
    const sum = [...admitted.values()].reduce((all, units) => all + units, 0);
    expect(sum).toBeGreaterThan(300);
  },
);
