/** Callers that wait for units of rates, on plain workerd: over HTTP and over the service binding. */
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { createLimiter } from "../../package/client.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { BoundClient } from "../support/bound-client.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { HttpClient } from "../support/http-client.ts";
import { send } from "../support/leaving-client.ts";
import { RawConnection } from "../support/raw-connection.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const deadlineMs = 20_000;
const WAIT = { maxWait: "5m", deadlineMs };
const policies = {
  paced: { algorithm: "token-bucket", limit: 10, window: "1s", burst: 1, ...WAIT },
  /** What is used comes back long after the test: only a hold that ends makes room. */
  still: { algorithm: "sliding-log", limit: 20, window: "30d", ...WAIT },
  shared: { algorithm: "token-bucket", limit: 40, window: "30d", fair: true, maxWaiters: 3, ...WAIT },
  sharedPace: { algorithm: "token-bucket", limit: 40, window: "8s", fair: true, ...WAIT },
  hot: { algorithm: "token-bucket", limit: 100_000, window: "30d", reservation: { ttl: "8s" }, ...WAIT },
  slots: { algorithm: "concurrency", limit: 20, ttl: "8s", maxWait: "60s", deadlineMs },
  slot: { algorithm: "concurrency", limit: 1, ttl: "60s", maxWait: "60s", deadlineMs },
};
const BOUND = join(import.meta.dirname, "..", "support", "bound-caller.mjs");

const state = makeState();
let serving: Serving;
let clients: HttpClient[];
let client: HttpClient;
let bound: BoundClient;
let keys = 0;

beforeAll(async () => {
  serving = await serveBundle(state, policies, { caller: BOUND, isolates: 2 });
  clients = serving.urls.map((url) => new HttpClient(url, 100));
  [client] = clients as [HttpClient];
  bound = new BoundClient(serving.callerUrl, "LIMITER");
});
afterAll(async () => {
  for (const each of clients) each.close();
  await serving.stop();
  removeState(state);
});

const freshKey = () => `key-${(keys += 1)}`;

/** Holds units, and returns what gives them back. */
async function hold(policy: string, key: string, units: number): Promise<() => Promise<unknown>> {
  const { body } = await client.call("POST", "/v1/holds", { policy, key, units });
  const { id } = body["hold"] as { id: string };
  return () => client.call("DELETE", `/v1/holds/${id}`);
}

/** Waits until a key looks like this; what is on its way may take a moment. */
async function untilKey(policy: string, key: string, expected: object): Promise<void> {
  await eventually(async () => expect((await client.peek(policy, key)).body).toMatchObject(expected));
}

test("twenty callers at once are all admitted, and at no more than the rate", async () => {
  const key = freshKey();
  const sinceMs = performance.now();
  const calls = Array.from({ length: 20 }, () => client.limit("paced", key, { waitMs: 60_000 }));
  const answers = await Promise.all(calls);
  expect(answers.map(({ body }) => body["success"])).toEqual(answers.map(() => true));
  // Nineteen intervals of 100 ms; the object's clock has whole milliseconds.
  expect(performance.now() - sinceMs).toBeGreaterThanOrEqual(1_899);
});

test("callers are served in the order in which they came, whichever isolate they asked", async () => {
  const key = freshKey();
  const giveBack = await hold("still", key, 20);
  const waiting: Promise<unknown>[] = [];
  for (let number = 0; number < 19; number += 1) {
    const asked = clients[number % 2]?.limit("still", key, { waitMs: 60_000 });
    waiting.push((asked ?? Promise.reject(new Error("no client"))).then(({ body }) => body["remaining"]));
    await untilKey("still", key, { queueLength: number + 1, remaining: 0 });
  }
  // Nobody passes them, waiting or not.
  expect((await client.limit("still", key)).body).toMatchObject({ success: false, reason: "quota" });
  await giveBack();
  // What is left falls with every call, so it tells their order.
  expect(await Promise.all(waiting)).toEqual(Array.from({ length: 19 }, (_, index) => 19 - index));
});

test("a caller that goes frees its place, and is not charged", async () => {
  const key = freshKey();
  const giveBack = await hold("still", key, 20);
  const gone = send(serving.url, "/v1/limit", { policy: "still", key, cost: 15, waitMs: 60_000 });
  await untilKey("still", key, { queueLength: 1 });
  const next = client.limit("still", key, { cost: 5, waitMs: 60_000 });
  await untilKey("still", key, { queueLength: 2 });
  gone.leave();
  await untilKey("still", key, { queueLength: 1 });
  await giveBack();
  expect((await next).body).toMatchObject({ success: true, remaining: 15 });
});

test("a wait that cannot end in time is refused at once, with the exact wait", async () => {
  const key = freshKey();
  await client.limit("still", key, { cost: 20 });
  const refused = await client.limit("still", key, { waitMs: 300_000 });
  expect(refused.body).toMatchObject({ success: false, reason: "quota", waitedMs: 0 });
  expect(refused.body["retryAfterMs"]).toBeGreaterThan(300_000);
  const denied = await client.call("POST", "/v1/limit?deny=429", { policy: "still", key, waitMs: 5 });
  expect(denied).toMatchObject({ status: 429, body: { decision: { reason: "quota", waitedMs: 0 } } });
});

test("a wait that ends in vain says so, and took nothing", async () => {
  const key = freshKey();
  const giveBack = await hold("still", key, 20);
  const denied = await client.call("POST", "/v1/limit?deny=429", { policy: "still", key, waitMs: 30 });
  expect(denied).toMatchObject({ status: 429, body: { decision: { reason: "wait-timeout" } } });
  expect((denied.body["decision"] as { waitedMs: number }).waitedMs).toBeGreaterThanOrEqual(30);
  await giveBack();
  await untilKey("still", key, { remaining: 20, queueLength: 0 });
});

test("a call that is made twice is charged once, also while both wait", async () => {
  const key = freshKey();
  const giveBack = await hold("still", key, 20);
  const call = { idempotencyKey: "order", waitMs: 60_000, refundable: true, cost: 3 };
  const twice = clients.map((each) => each.limit("still", key, call));
  await untilKey("still", key, { queueLength: 2 });
  await giveBack();
  const [first, second] = await Promise.all(twice);
  expect(first?.body).toMatchObject({ success: true, remaining: 17, charge: "order" });
  expect(second?.body).toEqual(first?.body);
  expect((await client.limit("still", key, call)).body).toEqual(first?.body);
  const refund = { policy: "still", key, units: 3, charge: "order", idempotencyKey: "refund" };
  expect((await client.call("POST", "/v1/refund", refund)).body).toMatchObject({ remaining: 20 });
});

test("an isolate's units serve its own waiting calls at once, and come home for those of others", async () => {
  const key = freshKey();
  const [here, there] = clients as [HttpClient, HttpClient];
  let source: unknown;
  while (source !== "isolate") ({ source } = (await here.limit("hot", key)).body);
  expect((await here.limit("hot", key, { waitMs: 60_000 })).body).toMatchObject({
    source: "isolate",
    waitedMs: 0,
  });
  const { remaining } = (await there.limit("hot", key, { cost: 0 })).body as { remaining: number };
  await there.limit("hot", key, { cost: remaining });
  // Only what the first isolate still holds is left. It gives that back in time.
  const waited = await there.limit("hot", key, { waitMs: 60_000 });
  expect(waited.body).toMatchObject({ success: true, source: "object" });
  expect(waited.body["waitedMs"]).toBeGreaterThan(0);
});

test("waits that are ended are denied, at the object and in the isolate of the call", async () => {
  const key = freshKey();
  const lease = async (fields: object = {}) =>
    (await client.call("POST", "/v1/leases", { policy: "slots", key, ...fields })).body;
  const release = ({ lease: { id = "" } = {} }: { lease?: { id?: string } }) =>
    client.call("DELETE", `/v1/leases/${id}`);
  let source: unknown;
  while (source !== "isolate") {
    const body = await lease();
    ({ source } = body);
    await release(body);
  }
  const all = (await Promise.all(Array.from({ length: 25 }, () => lease()))).filter(
    ({ success }) => success === true,
  );
  const waiting = Array.from({ length: 5 }, () => lease({ waitMs: 60_000 }));
  let answered = 0;
  for (const each of waiting) void each.then(() => (answered += 1));
  // Some may arrive after it.
  await eventually(async () => {
    const { status } = await client.call("DELETE", `/v1/policies/slots/keys/${key}/waiters`);
    expect([status, answered]).toEqual([204, 5]);
  });
  const answers = await Promise.all(waiting);
  for (const { success, reason, retryAfterMs } of answers) {
    expect([success, reason]).toEqual([false, "wait-timeout"]);
    expect(retryAfterMs).toBeGreaterThan(0);
    expect(retryAfterMs).toBeLessThanOrEqual(8_000);
  }
  for (const body of all) expect((await release(body)).status).toBe(204);
  await untilKey("slots", key, { leases: 0, queueLength: 0, outstanding: 0 });
});

test("waits that are ended through one isolate end in another one, which leases the slots itself", async () => {
  const [here, there] = clients as [HttpClient, HttpClient];
  const isDenied = ({ success }: Record<string, unknown>) => success === false;
  // Slots of old leases go home, and then calls wait at the object alone: the round is made again.
  await eventually(async () => {
    const key = freshKey();
    const lease = async (fields: object = {}) =>
      (await there.call("POST", "/v1/leases", { policy: "slots", key, ttlMs: 2_000, ...fields })).body;
    const release = ({ lease: { id = "" } = {} }: { lease?: { id?: string } }) =>
      there.call("DELETE", `/v1/leases/${id}`);
    let source: unknown;
    while (source !== "isolate") {
      const body = await lease();
      ({ source } = body);
      await release(body);
    }
    const all = await Promise.all(Array.from({ length: 25 }, () => lease()));
    const waiting = Array.from({ length: 3 }, () => lease({ waitMs: 60_000 }));
    let answered = 0;
    for (const each of waiting) void each.then(() => (answered += 1));
    while (answered < 3) await here.call("DELETE", `/v1/policies/slots/keys/${key}/waiters`);
    for (const body of all) if (!isDenied(body)) await release(body);
    const answers = await Promise.all(waiting);
    for (const each of answers.filter(isDenied)) expect(each["reason"]).toBe("wait-timeout");
    expect(answers.filter((each) => isDenied(each) && each["source"] === "isolate")).not.toEqual([]);
  });
});

test("a waiting call of a group keeps its own group in line, and no other group", async () => {
  const key = freshKey();
  const ask = (group: string, fields: object) => client.limit("shared", key, { group, ...fields });
  await ask("small", {});
  const held = await client.call("POST", "/v1/holds", { policy: "shared", key, group: "flood", units: 20 });
  const { id } = held.body["hold"] as { id: string };
  // Half of the 40 is common room, and a quarter its part.
  const first = ask("flood", { cost: 10, waitMs: 60_000 });
  await untilKey("shared", key, { queueLength: 1 });
  expect((await ask("flood", { cost: 1 })).body).toMatchObject({
    success: false,
    reason: "quota",
    remaining: 0,
  });
  expect((await ask("small", { cost: 4, waitMs: 60_000 })).body).toMatchObject({
    success: true,
    waitedMs: 0,
  });
  expect((await ask("small", { cost: 5 })).body).toMatchObject({ success: true, group: "small" });
  const second = ask("flood", { waitMs: 60_000 });
  await untilKey("shared", key, { queueLength: 2 });
  const last = ask("flood", { waitMs: 60_000 });
  await untilKey("shared", key, { queueLength: 3 });
  const vain = await ask("flood", { waitMs: 60_000 });
  expect(vain.body).toMatchObject({ success: false, reason: "queue-full" });
  await client.call("DELETE", `/v1/holds/${id}`);
  for (const { body } of await Promise.all([first, second, last]))
    expect(body).toMatchObject({ success: true, group: "flood" });
  await untilKey("shared", key, { queueLength: 0, remaining: 40 - 1 - 4 - 5 - 12 });
});

test("a flood in line delays no group within its part, and is served in the end", async () => {
  const key = freshKey();
  const ask = (group: string) => client.limit("sharedPace", key, { group, waitMs: 60_000 });
  await ask("small");
  const flood = Array.from({ length: 40 }, () => ask("flood"));
  await eventually(async () =>
    expect((await client.peek("sharedPace", key)).body["queueLength"]).toBeGreaterThan(0),
  );
  for (let call = 0; call < 4; call += 1)
    expect((await ask("small")).body).toMatchObject({ success: true, waitedMs: 0 });
  for (const { body } of await Promise.all(flood)) expect(body).toMatchObject({ success: true });
});

test("over the service binding the same holds", async () => {
  const key = freshKey();
  const giveBack = await hold("still", key, 20);
  const waiting = bound.call("limit", { policy: "still", key, cost: 2, waitMs: 60_000 });
  await untilKey("still", key, { queueLength: 1 });
  const gone = send(serving.callerUrl, "/", {
    binding: "LIMITER",
    method: "limit",
    argument: { policy: "still", key, cost: 9, waitMs: 60_000 },
  });
  await untilKey("still", key, { queueLength: 2 });
  gone.leave();
  await untilKey("still", key, { queueLength: 1 });
  await giveBack();
  expect((await waiting).body).toMatchObject({ success: true, remaining: 18 });
  expect(await bound.call("limit", { policy: "still", key, waitMs: 300_001 })).toMatchObject({ status: 422 });
});

/** `POST /v1/leases` as bytes. */
function acquireBytes(body: object): Buffer {
  const text = JSON.stringify(body);
  const head = [
    "POST /v1/leases HTTP/1.1",
    "Host: weir.test",
    `Authorization: Bearer ${TOKENS.full}`,
    "Content-Type: application/json",
    `Content-Length: ${Buffer.byteLength(text)}`,
  ];
  return Buffer.from([...head, "", text].join("\r\n"));
}

test("a lease that is to be confirmed is brief until it is renewed", async () => {
  const key = freshKey();
  const acquire = { policy: "slot", key, confirm: true };
  const { lease } = (await client.call("POST", "/v1/leases", acquire)).body as { lease: { id: string } };
  expect(lease).toMatchObject({ expiresAfterMs: 5_000, confirmWithinMs: 5_000 });
  const renewed = await client.call("POST", `/v1/leases/${lease.id}/renew`);
  expect(renewed.body).toMatchObject({ id: lease.id, expiresAfterMs: 60_000 });
  expect(renewed.body).not.toHaveProperty("confirmWithinMs");
  expect((await client.call("DELETE", `/v1/leases/${lease.id}`)).status).toBe(204);
  const plain = await client.call("POST", "/v1/leases", { policy: "slot", key });
  expect(plain.body["lease"]).not.toHaveProperty("confirmWithinMs");
});

test("a caller whose connection was closed in an orderly way while it waited keeps its slot only briefly", async () => {
  const key = freshKey();
  const { lease } = (await client.call("POST", "/v1/leases", { policy: "slot", key })).body as {
    lease: { id: string };
  };
  const closing = new RawConnection(Number(new URL(serving.url).port));
  const acquire = { policy: "slot", key, waitMs: 60_000, confirm: true };
  const closed = closing.breakOff(acquireBytes(acquire), { afterMs: 500 });
  await untilKey("slot", key, { queueLength: 1 });
  await closed;
  // Plain workerd does not notice: the caller stands in the queue, and is granted the slot.
  await untilKey("slot", key, { queueLength: 1 });
  expect((await client.call("DELETE", `/v1/leases/${lease.id}`)).status).toBe(204);
  await untilKey("slot", key, { leases: 1, queueLength: 0 });
  // Its lease would last a minute, and this one waits for less.
  const next = await client.call("POST", "/v1/leases", { policy: "slot", key, waitMs: 30_000 });
  expect(next.body).toMatchObject({ success: true });
  await untilKey("slot", key, { leases: 1, reclaimed: 1 });
});

test("of a client whose caller has left, the request goes on, and its slot is free as soon as it is granted", async () => {
  const key = freshKey();
  const { lease } = (await client.call("POST", "/v1/leases", { policy: "slot", key })).body as {
    lease: { id: string };
  };
  await using limiter = createLimiter({ url: serving.url, token: TOKENS.full, policy: "slot" });
  const caller = new AbortController();
  const left = limiter.acquire({ key, waitMs: 60_000, signal: caller.signal }).catch(String);
  await untilKey("slot", key, { queueLength: 1 });
  caller.abort("gone");
  expect(await left).toBe("gone");
  // For longer than any other call's late answer is waited for.
  await new Promise((done) => setTimeout(done, 3_000));
  expect((await client.call("DELETE", `/v1/leases/${lease.id}`)).status).toBe(204);
  const next = await client.call("POST", "/v1/leases", { policy: "slot", key, waitMs: 30_000 });
  expect(next.body).toMatchObject({ success: true });
  expect((await client.peek("slot", key)).body).toMatchObject({ leases: 1, reclaimed: 0 });
});
