/** Leases on plain workerd: who goes, who waits, who is killed. */
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { HttpClient } from "../support/http-client.ts";
import { openSocket, send } from "../support/leaving-client.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const policies = {
  slots: {
    algorithm: "concurrency",
    limit: 2,
    ttl: "60s",
    maxTtl: "10m",
    maxWait: "60s",
    maxWaiters: 1_000,
    deadlineMs: 20_000,
  },
  brief: { algorithm: "concurrency", limit: 1, ttl: "600ms", maxWait: "60s", deadlineMs: 20_000 },
};
// Three of each way to go at the moment of a grant.
const ROUNDS = depth(4, 30);
const WAITERS = depth(40, 200);
const CALLER = join(import.meta.dirname, "..", "support", "caller.mjs");

const state = makeState();
let serving: Serving;
let client: HttpClient;
let keys = 0;

async function start(): Promise<void> {
  serving = await serveBundle(state, policies, { caller: CALLER });
  client = new HttpClient(serving.url, 300);
}
beforeAll(start);
afterAll(async () => {
  client.close();
  await serving.stop();
  removeState(state);
});

const freshKey = () => `key-${(keys += 1)}`;

interface Lease {
  readonly id: string;
  readonly fencingToken: number;
}

async function acquire(key: string, fields: object = {}, policy = "slots") {
  const { body } = await client.call("POST", "/v1/leases", { policy, key, ...fields });
  return body as { success: boolean; reason: string; waitedMs: number; lease?: Lease };
}

async function take(key: string, fields: object = {}, policy = "slots"): Promise<Lease> {
  const { lease } = await acquire(key, fields, policy);
  if (lease === undefined) throw new Error("a slot should be free");
  return lease;
}

const release = async (id: string) => (await client.call("DELETE", `/v1/leases/${id}`)).status;

/** Waits until a key looks like this; what is on its way may take a moment. */
async function untilKey(key: string, expected: object, policy = "slots"): Promise<void> {
  await eventually(async () => expect((await client.peek(policy, key)).body).toMatchObject(expected));
}

/** A caller over the service binding. */
const callOver = (body: object) =>
  fetch(serving.callerUrl, { method: "POST", body: JSON.stringify({ policy: "slots", ...body }) });

test("a waiter who goes leaves the queue at once, over HTTP, and is granted nothing", async () => {
  const key = freshKey();
  const held = [await take(key), await take(key)];
  const gone = send(serving.url, "/v1/leases", { policy: "slots", key, waitMs: 60_000 });
  await untilKey(key, { queueLength: 1 });
  const next = acquire(key, { waitMs: 60_000 });
  await untilKey(key, { queueLength: 2 });
  gone.leave();
  await untilKey(key, { queueLength: 1 });
  await release(held[0]?.id ?? "");
  expect(await next).toMatchObject({ success: true });
  await untilKey(key, { leases: 2, queueLength: 0 });
});

test("a waiter who goes leaves the queue at once, over the service binding", async () => {
  const key = freshKey();
  await take(key, { units: 2 });
  const gone = send(serving.callerUrl, "/", { policy: "slots", key, waitMs: 60_000, ending: "return" });
  await untilKey(key, { queueLength: 1 });
  gone.leave();
  await untilKey(key, { queueLength: 0, leases: 1 });
});

test("who goes at the moment of the grant keeps no slot for longer than a lease", async () => {
  const key = freshKey();
  for (let round = 0; round < ROUNDS; round += 1) {
    const held = await take(key, {}, "brief");
    const gone = send(serving.url, "/v1/leases", { policy: "brief", key, waitMs: 60_000 });
    await untilKey(key, { queueLength: 1 }, "brief");
    const released = release(held.id);
    // Sometimes before, sometimes after the grant is on its way, or in the kernel of a client that never reads it.
    if (round % 3 > 0) await new Promise((done) => setTimeout(done, round % 3));
    gone.leave();
    await released;
    await untilKey(key, { leases: 0, queueLength: 0 }, "brief");
  }
});

test("a renewal may have no body at all, an empty one, or an empty table; nothing else that is no JSON", async () => {
  const { id } = await take(freshKey(), { ttlMs: 9_000 });
  const renew = async (headers: Record<string, string>, body?: string) => {
    const init = { method: "POST", headers: { authorization: `Bearer ${TOKENS.full}`, ...headers } };
    const url = `${serving.url}/v1/leases/${id}/renew`;
    return (await fetch(url, body === undefined ? init : { ...init, body })).status;
  };
  const json = { "content-type": "application/json" };
  expect(await Promise.all([renew({}), renew(json), renew(json, ""), renew(json, "{}")])).toEqual([
    200, 200, 200, 200,
  ]);
  // As curl and others send it: nothing, and no word of a length.
  expect((await client.call("POST", `/v1/leases/${id}/renew`)).status).toBe(200);
  expect(await renew({ "content-type": "text/plain" }, "")).toBe(415);
  expect(await renew({ "content-type": "text/plain" }, "{}")).toBe(415);
  expect(await renew(json, "{")).toBe(400);
});

test(`${WAITERS} waiters are served in the order in which they came`, async () => {
  const key = freshKey();
  const held = [await take(key), await take(key)];
  const order: number[] = [];
  const waiting: Promise<void>[] = [];
  const tokens: number[] = [];
  for (let number = 0; number < WAITERS; number += 1) {
    const units = number % 7 === 0 ? 2 : 1;
    waiting.push(
      acquire(key, { units, waitMs: 60_000 }).then(async ({ lease }) => {
        if (lease === undefined) throw new Error("every waiter is served");
        order[number] = lease.fencingToken;
        tokens.push(lease.fencingToken);
        await release(lease.id);
      }),
    );
    await untilKey(key, { queueLength: number + 1 });
  }
  for (const { id } of held) await release(id);
  await Promise.all(waiting);
  // The token rises with every grant, so it tells their order.
  expect(order).toEqual(order.toSorted((a, b) => a - b));
  expect(new Set(tokens).size).toBe(WAITERS);
  await untilKey(key, { leases: 0, queueLength: 0 });
});

test("an acknowledged lease survives SIGKILL, and so does its end", async () => {
  const [key, released] = [freshKey(), freshKey()];
  const leases = [await take(key, { ttlMs: 600_000 }), await take(key, { ttlMs: 600_000 })];
  const ended = await take(released);
  await release(ended.id);
  await serving.stop("SIGKILL");
  client.close();
  await start();
  expect(await acquire(key)).toMatchObject({ success: false, reason: "quota" });
  expect(await release(ended.id)).toBe(404);
  const renewed = await client.call("POST", `/v1/leases/${leases[0]?.id}/renew`, { ttlMs: 500_000 });
  expect(renewed.status).toBe(200);
  expect(await release(leases[1]?.id ?? "")).toBe(204);
  const next = await take(key);
  expect(next.fencingToken).toBeGreaterThan(leases[1]?.fencingToken ?? Infinity);
});

test.each(["return", "throw", "dispose", "release"])(
  "a caller over the service binding that ends with %s has no slot any more",
  async (ending) => {
    const key = freshKey();
    const ended = send(serving.callerUrl, "/", { policy: "slots", key, units: 2, ending });
    expect(await acquire(key, { units: 2, waitMs: 60_000 })).toMatchObject({ success: true });
    await untilKey(key, { leases: 1, reclaimed: 0 });
    ended.leave();
  },
);

test.each(["waitUntil", "stream"])("a caller keeps its slot until its %s has finished", async (ending) => {
  const key = freshKey();
  const answered = callOver({ key, units: 2, ending });
  await untilKey(key, { leases: 1 });
  expect((await answered).status).toBe(200);
  const { success, waitedMs } = await acquire(key, { units: 2, waitMs: 60_000 });
  expect({ success, waited: waitedMs > 0 }).toEqual({ success: true, waited: true });
});

test("a caller that is cut off while it works frees its slot", async () => {
  const key = freshKey();
  const cut = send(serving.callerUrl, "/", { policy: "slots", key, units: 2, ending: "hang" });
  await untilKey(key, { leases: 1 });
  cut.leave();
  await untilKey(key, { leases: 0, reclaimed: 0 });
});

test("a caller that waited for its lease has it like any other, and it ends with it", async () => {
  const key = freshKey();
  const held = await take(key, { units: 2 });
  const cut = send(serving.callerUrl, "/", { policy: "slots", key, waitMs: 60_000, ending: "hang" });
  await untilKey(key, { queueLength: 1 });
  await release(held.id);
  await untilKey(key, { leases: 1, queueLength: 0 });
  // It was confirmed: the brief life that a waiter is first given is not all it has.
  await eventually(async () => {
    const { resetAfterMs } = (await client.peek("slots", key)).body as { resetAfterMs: number };
    expect(resetAfterMs).toBeGreaterThan(10_000);
  });
  cut.leave();
  await untilKey(key, { leases: 0 });
});

test.each([0, 60_000])("a detached lease outlives its caller (waiting up to %d ms)", async (waitMs) => {
  const key = freshKey();
  const answered = await callOver({ key, waitMs, detached: true, ending: "detached" });
  const { lease } = (await answered.json()) as { lease: Lease };
  await new Promise((done) => setTimeout(done, 200));
  await untilKey(key, { leases: 1 });
  expect(await release(lease.id)).toBe(204);
});

test("a grant renews and releases itself, and says when it is too late", async () => {
  const key = freshKey();
  const released = await (await callOver({ key, ending: "release" })).json();
  expect(released).toEqual({ again: "lease-not-found", renewal: "lease-not-found" });
  const { id, renewed, same, refused } = (await (await callOver({ key, ending: "renew" })).json()) as {
    id: string;
    renewed: object;
    same: object;
    refused: object;
  };
  expect(renewed).toMatchObject({ id, expiresAfterMs: 5_000 });
  expect(same).toMatchObject({ id, expiresAfterMs: 60_000 });
  const errors = [
    {
      pointer: "/ttlMs",
      detail: "ttlMs is 1000000000: must be an integer from 1 to 600000, the policy's maxTtl",
    },
    { pointer: "/a~1b", detail: "a/b is not a field: there are ttlMs" },
  ];
  expect(refused).toEqual({ name: "LimiterError", status: 422, code: "not-allowed", errors });
});

test("a caller that is cut off keeps its slot for its grace, and makes its call again with its key", async () => {
  const key = freshKey();
  const call = { key, units: 2, graceMs: 20_000, idempotencyKey: "once" };
  const cut = send(serving.callerUrl, "/", { policy: "slots", ...call, ending: "hang" });
  await untilKey(key, { leases: 1 });
  cut.leave();
  const left = async () => (await client.peek("slots", key)).body["resetAfterMs"];
  await eventually(async () => expect(await left()).toBeLessThanOrEqual(20_000));
  expect((await acquire(key)).success).toBe(false);
  const { lease } = (await (await callOver({ ...call, ending: "detached" })).json()) as { lease: Lease };
  expect(lease).toMatchObject({ expiresAfterMs: 60_000 });
  await untilKey(key, { leases: 1 });
  // Its link has ended with its request. Another takes the lease again, without a grace, and it ends with that one.
  expect((await callOver({ key, resume: lease.id, ending: "return" })).status).toBe(200);
  await untilKey(key, { leases: 0, reclaimed: 0 });
});

test("a lease over the binding is resumed after the process was killed: the same id and token", async () => {
  const key = freshKey();
  const call = { key, units: 2, graceMs: 60_000 };
  const { lease } = (await (await callOver({ ...call, ending: "detached" })).json()) as { lease: Lease };
  await serving.stop("SIGKILL");
  client.close();
  await start();
  expect((await acquire(key)).success).toBe(false);
  const resumed = await (await callOver({ ...call, resume: lease.id, ending: "detached" })).json();
  expect(resumed).toMatchObject({ lease: { id: lease.id, fencingToken: lease.fencingToken } });
  expect(await release(lease.id)).toBe(204);
  await untilKey(key, { leases: 0 });
});

test("a socket is told the decision, and its lease lives as long as it is open", async () => {
  const key = freshKey();
  const path = `/v1/leases/socket?policy=brief&key=${key}`;
  const socket = openSocket(serving.url, path);
  expect(JSON.parse(await socket.first)).toMatchObject({ success: true, lease: { expiresAfterMs: 600 } });
  const denied = openSocket(serving.url, path);
  expect(JSON.parse(await denied.first)).toMatchObject({ success: false, reason: "quota" });
  denied.leave();
  // Three lives later it is still there, and nobody but the socket renewed it.
  await new Promise((done) => setTimeout(done, 1_800));
  await untilKey(key, { leases: 1, reclaimed: 0 }, "brief");
  const waiting = openSocket(serving.url, `${path}&waitMs=60000`);
  await untilKey(key, { queueLength: 1 }, "brief");
  socket.leave();
  expect(JSON.parse(await waiting.first)).toMatchObject({ success: true });
  expect(await socket.received).toContain('{"renewed":{"expiresAfterMs":600}}');
  waiting.leave();
  await untilKey(key, { leases: 0 }, "brief");
});

test.each(["release", "reset"])("a socket is closed at once when a %s ends its lease", async (how) => {
  const key = freshKey();
  const socket = openSocket(serving.url, `/v1/leases/socket?policy=slots&key=${key}&units=2`);
  const other = openSocket(serving.url, `/v1/leases/socket?policy=slots&key=${key}-other`);
  const { lease } = JSON.parse(await socket.first) as { lease: Lease };
  await other.first;
  if (how === "release") expect(await release(lease.id)).toBe(204);
  else await client.call("DELETE", `/v1/policies/slots/keys/${key}`);
  expect(await acquire(key, { units: 2 })).toMatchObject({ success: true });
  // A close frame (0x88) with 4408 (0x1138).
  await eventually(() => expect(socket.text()).toContain("\u0088\u0015\u0011\u0038the lease has ended"));
  expect(other.text()).not.toContain("the lease has ended");
  socket.leave();
  other.leave();
});

test("a socket that goes while it waits leaves the queue", async () => {
  const key = freshKey();
  await take(key, { units: 2 });
  const socket = openSocket(serving.url, `/v1/leases/socket?policy=slots&key=${key}&waitMs=60000`);
  await eventually(() => expect(socket.text()).toContain("101 Switching Protocols"));
  await untilKey(key, { queueLength: 1 });
  socket.leave();
  await untilKey(key, { queueLength: 0, leases: 1 });
});

/** The lease that a socket was told of. */
async function leaseOf(socket: { readonly first: Promise<string> }): Promise<Lease> {
  const { success, lease } = JSON.parse(await socket.first) as { success: boolean; lease: Lease };
  expect(success).toBe(true);
  return lease;
}

test("a socket whose connection broke keeps its lease for the grace that it asked for, and no longer", async () => {
  const key = freshKey();
  const path = `/v1/leases/socket?policy=slots&key=${key}&units=2`;
  const socket = openSocket(serving.url, `${path}&graceMs=1500`);
  await leaseOf(socket);
  socket.leave();
  await new Promise((done) => setTimeout(done, 300));
  expect((await acquire(key, {})).success).toBe(false);
  // Without being resumed it ends after the grace, long before it would expire.
  expect(await acquire(key, { waitMs: 5_000 })).toMatchObject({ success: true });
});

test("a lease is resumed by another socket: the same id and token, while its slot was taken by nobody", async () => {
  const key = freshKey();
  const path = `/v1/leases/socket?policy=slots&key=${key}&units=2&graceMs=1500`;
  const before = openSocket(serving.url, path);
  const lease = await leaseOf(before);
  before.leave();
  const socket = openSocket(serving.url, `${path}&resume=${encodeURIComponent(lease.id)}`);
  expect(await leaseOf(socket)).toMatchObject({ id: lease.id, fencingToken: lease.fencingToken });
  // The grace is over, and the lease is the new socket's.
  await new Promise((done) => setTimeout(done, 2_000));
  await untilKey(key, { leases: 1 });
  socket.leave();
  await untilKey(key, { leases: 0 });
});

test("a lease is resumed while its old connection still seems open: that one ends without ending it", async () => {
  const key = freshKey();
  const path = `/v1/leases/socket?policy=slots&key=${key}`;
  const before = openSocket(serving.url, path);
  const lease = await leaseOf(before);
  const socket = openSocket(serving.url, `${path}&resume=${encodeURIComponent(lease.id)}`);
  expect((await leaseOf(socket)).id).toBe(lease.id);
  // A close frame with 4409 (0x1139).
  await eventually(() =>
    expect(before.text()).toContain("\u0011\u0039the lease was resumed by another socket"),
  );
  before.leave();
  await new Promise((done) => setTimeout(done, 300));
  await untilKey(key, { leases: 1 });
  socket.leave();
  await untilKey(key, { leases: 0 });
});

test("a lease that has ended is not resumed, nor one of another key", async () => {
  const key = freshKey();
  const path = `/v1/leases/socket?policy=slots&key=${key}`;
  const socket = openSocket(serving.url, path);
  const { id } = await leaseOf(socket);
  expect(await release(id)).toBe(204);
  const late = openSocket(serving.url, `${path}&resume=${encodeURIComponent(id)}`);
  await eventually(() => expect(late.text()).toContain("lease-not-found"));
  late.leave();
  const other = openSocket(serving.url, `${path}-other&resume=${encodeURIComponent(id)}`);
  await eventually(() => expect(other.text()).toContain(" 404 "));
  other.leave();
  await untilKey(key, { leases: 0 });
});

test("a socket's lease is resumed after the process was killed", async () => {
  const key = freshKey();
  const path = `/v1/leases/socket?policy=slots&key=${key}&units=2`;
  const before = openSocket(serving.url, path);
  const { id } = await leaseOf(before);
  await serving.stop("SIGKILL");
  client.close();
  await start();
  const socket = openSocket(serving.url, `${path}&resume=${encodeURIComponent(id)}`);
  expect((await leaseOf(socket)).id).toBe(id);
  expect((await acquire(key, {})).success).toBe(false);
  socket.leave();
  await untilKey(key, { leases: 0 });
});

test("a socket's lease survives SIGKILL until it expires, and then the slot is free", async () => {
  const key = freshKey();
  const socket = openSocket(serving.url, `/v1/leases/socket?policy=brief&key=${key}`);
  await socket.first;
  await serving.stop("SIGKILL");
  client.close();
  await start();
  expect(await acquire(key, { waitMs: 60_000 }, "brief")).toMatchObject({ success: true });
});
