/** Many requests of one isolate that wait for one message, on plain workerd: also when the request that sent it dies. */
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { eventually } from "../support/eventually.ts";
import { HttpClient } from "../support/http-client.ts";
import { send } from "../support/leaving-client.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

/** Units last for longer than the object takes. */
const BUCKET = {
  algorithm: "token-bucket",
  limit: 10_000,
  window: "30d",
  reservation: { ttl: "20s" },
};
const policies = {
  leased: { algorithm: "concurrency", limit: 5 },
  patient: { ...BUCKET, deadlineMs: 10_000 },
  /** Half of it is for waiting: less than the object takes. */
  hasty: { ...BUCKET, deadlineMs: 2_000 },
};

const state = makeState();
let serving: Serving;
let client: HttpClient;
beforeAll(async () => {
  const main = join(import.meta.dirname, "..", "support", "slow-object.mjs");
  serving = await serveBundle(state, policies, { main });
  client = new HttpClient(serving.url, 32);
});
afterAll(async () => {
  client.close();
  await serving.stop("SIGKILL");
  removeState(state);
});

const reserves = async () => Number(await (await fetch(`${serving.url}/reserves`)).json());
const ask = async (policy: string, key: string) => (await client.limit(policy, key)).body;

/** So many calls have reached the object, and the last of them is under way. */
const reservesAre = (count: number) => eventually(async () => expect(await reserves()).toBe(count));

/** Two calls: with the next the key is hot. */
async function warm(policy: string, key: string): Promise<void> {
  for (let call = 0; call < 2; call += 1) expect((await ask(policy, key))["source"]).toBe("object");
}

test("one message is under way at a time: who fits into it waits, and is decided by the isolate", async () => {
  await warm("patient", "one");
  const before = await reserves();
  const leader = ask("patient", "one");
  await reservesAre(before + 1);
  const followers = await Promise.all(Array.from({ length: 8 }, () => ask("patient", "one")));
  expect((await leader)["source"]).toBe("object");
  expect(followers.map(({ success, source }) => `${String(success)} ${String(source)}`)).toEqual(
    followers.map(() => "true isolate"),
  );
  // And perhaps one more, that asks ahead of need.
  expect((await reserves()) - before).toBeLessThanOrEqual(2);
  expect((await client.peek("patient", "one")).body["remaining"]).toBe(10_000 - 11);
});

test("who does not fit asks for itself", async () => {
  await warm("patient", "many");
  const before = await reserves();
  const leader = ask("patient", "many");
  await reservesAre(before + 1);
  const answers = await Promise.all(Array.from({ length: 28 }, () => ask("patient", "many")));
  expect(answers.filter(({ source }) => source === "object").length).toBeGreaterThan(10);
  expect(answers.every(({ success }) => success === true)).toBe(true);
  expect((await leader)["success"]).toBe(true);
  expect((await client.peek("patient", "many")).body["remaining"]).toBe(10_000 - 31);
});

test("when the client of the message has gone, those who wait for it are answered all the same", async () => {
  await warm("patient", "left");
  const before = await reserves();
  const leader = send(serving.url, "/v1/limit", { policy: "patient", key: "left" });
  await reservesAre(before + 1);
  const followers = Array.from({ length: 6 }, () => ask("patient", "left"));
  await sleep(50);
  leader.leave();
  const answers = await Promise.all(followers);
  expect(answers.map(({ success }) => success)).toEqual(answers.map(() => true));
  // And the key goes on as before.
  expect((await ask("patient", "left"))["success"]).toBe(true);
});

test("who has waited for half its deadline asks for itself, and nobody for longer than the deadline", async () => {
  await warm("hasty", "late");
  const before = await reserves();
  const leader = ask("hasty", "late");
  await reservesAre(before + 1);
  const answers = await Promise.all(Array.from({ length: 6 }, () => ask("hasty", "late")));
  expect(answers.map(({ success }) => success)).toEqual(answers.map(() => true));
  expect(new Set(answers.map(({ source }) => source))).toEqual(new Set(["object"]));
  expect((await leader)["success"]).toBe(true);
});

test("an object that is older than the worker decides all the same, and refuses what it does not know", async () => {
  const olderState = makeState();
  const main = join(import.meta.dirname, "..", "support", "older-object.mjs");
  const older = await serveBundle(olderState, policies, { main });
  const caller = new HttpClient(older.url, 8);
  const waiting = (cost: number) => caller.limit("patient", "key", { cost, waitMs: 20_000 });
  try {
    const answers = await Promise.all(
      Array.from({ length: 40 }, async () => (await caller.limit("patient", "key")).body),
    );
    expect(answers.map(({ success, source }) => `${String(success)} ${String(source)}`)).toEqual(
      answers.map(() => "true object"),
    );
    expect((await caller.peek("patient", "key")).body["remaining"]).toBe(10_000 - 40);
    const hold = await caller.call("POST", "/v1/holds", { policy: "patient", key: "key", units: 5 });
    expect(hold.body).toMatchObject({ success: false, reason: "degraded", source: "fallback" });
    // It cannot let a call wait, and decides it at once.
    const [fits, waits] = [await waiting(1), await waiting(10_000)];
    expect(fits.body).toMatchObject({ success: true, source: "object", remaining: 10_000 - 41 });
    expect(waits.body).toMatchObject({ success: false, source: "object", reason: "quota" });
    const lease = await caller.call("POST", "/v1/leases", { policy: "leased", key: "key" });
    expect(lease.body).toMatchObject({ success: false, reason: "degraded", source: "fallback" });
    expect((await caller.peek("patient", "key")).body).toMatchObject({ holds: 0, remaining: 10_000 - 41 });
    expect((await caller.peek("leased", "key")).body).toMatchObject({ leases: 0 });
  } finally {
    caller.close();
    await older.stop("SIGKILL");
    removeState(olderState);
  }
});
