/** Holders of sockets that go at any moment, also where TCP tells nobody: their leases end. */
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { depth } from "../support/depth.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { HttpClient } from "../support/http-client.ts";
import { openSocket, type SocketClient } from "../support/leaving-client.ts";
import { announcedSeed, seededRandom } from "../support/random.ts";
import { RawConnection } from "../support/raw-connection.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const policies = {
  quick: { algorithm: "concurrency", limit: 2, ttl: "500ms", maxTtl: "10s" },
  long: { algorithm: "concurrency", limit: 1, ttl: "10m" },
  shared: { algorithm: "concurrency", limit: 20, ttl: "10s" },
  // A busy machine may renew half a second late, and a lease that has to stay must not end by that.
  pinged: { algorithm: "concurrency", limit: 2, ttl: "2s", maxTtl: "10s" },
};
/** So many ask for a socket and go at once. */
const EARLY = 30;
/** And twenty at once so often. */
const BURSTS = depth(5, 15);

const state = makeState();
let serving: Serving;
let client: HttpClient;
let keys = 0;

async function start(): Promise<void> {
  const main = join(import.meta.dirname, "..", "support", "dying-object.mjs");
  serving = await serveBundle(state, policies, { main, hasDeploymentObjects: true });
  client = new HttpClient(serving.url, 30);
}
beforeAll(start);
afterAll(async () => {
  client.close();
  await serving.stop();
  removeState(state);
});

const freshKey = () => `key-${(keys += 1)}`;

const leasesOf = async (key: string) => ((await client.peek("quick", key)).body as { leases: number }).leases;

async function untilKey(key: string, expected: object, policy = "quick"): Promise<void> {
  await eventually(async () => expect((await client.peek(policy, key)).body).toMatchObject(expected));
}

const leftOver = (all: readonly string[]) =>
  eventually(async () => expect(await Promise.all(all.map(leasesOf))).toEqual(all.map(() => 0)));

test("who asks for a socket and is gone before it is opened leaves no lease", async () => {
  const all = Array.from({ length: EARLY }, freshKey);
  for (const key of all) {
    openSocket(serving.url, `/v1/leases/socket?policy=quick&key=${key}`).leave();
    // Each is answered by itself: a server that is busy would not show what it does with one.
    await new Promise((done) => setTimeout(done, 15));
  }
  await leftOver(all);
});

test("nor does who goes at any other moment, while many come and go and wait", async () => {
  const all: string[] = [];
  const random = seededRandom(announcedSeed("leaving"));
  const comeAndGo = async () => {
    const key = freshKey();
    all.push(key);
    const { body } = await client.call("POST", "/v1/leases", { policy: "quick", key, units: 2 });
    const { id } = body["lease"] as { id: string };
    const socket = openSocket(serving.url, `/v1/leases/socket?policy=quick&key=${key}&waitMs=3000`);
    // A busy server writes the 101 about then.
    await new Promise((done) => setTimeout(done, 15 + random() * 30));
    const released = client.call("DELETE", `/v1/leases/${id}`);
    await new Promise((done) => setTimeout(done, random() * 12));
    socket.leave();
    await released;
  };
  for (let burst = 0; burst < BURSTS; burst += 1) await Promise.all(Array.from({ length: 20 }, comeAndGo));
  await leftOver(all);
});

test.each([
  ["its key alone", ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="]],
  ["another version", ["Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Version: 8"]],
  ["its version alone", ["Sec-WebSocket-Version: 13"]],
  ["neither", []],
])("a handshake with %s, which the runtime refuses, leaves no lease", async (_, headers) => {
  const key = freshKey();
  const connection = new RawConnection(Number(new URL(serving.url).port));
  const lines = [
    `GET /v1/leases/socket?policy=quick&key=${key}&waitMs=100 HTTP/1.1`,
    "Host: weir.test",
    `Authorization: Bearer ${TOKENS.full}`,
    "Connection: Upgrade",
    "Upgrade: websocket",
    ...headers,
  ];
  const { status } = await connection.exchange(Buffer.from(`${lines.join("\r\n")}\r\n\r\n`));
  connection.close();
  expect(status).toBeGreaterThanOrEqual(400);
  await leftOver([key]);
});

test("of many pings at once a few are answered: nobody fills the memory with answers that nobody reads", async () => {
  const socket = openSocket(serving.url, `/v1/leases/socket?policy=long&key=${freshKey()}`);
  await socket.first;
  const pongs = () => socket.text().split("pong").length - 1;
  socket.ping(10_000);
  await eventually(() => expect(pongs()).toBeGreaterThan(0));
  await new Promise((done) => setTimeout(done, 200));
  socket.ping();
  await eventually(() => expect(pongs()).toBeGreaterThan(1));
  expect(pongs()).toBeLessThan(100);
  socket.leave();
});

test("whatever code a caller closes with, also one that nobody may say, its lease ends", async () => {
  for (const code of [
    undefined,
    0,
    999,
    1000,
    1001,
    1004,
    1005,
    1006,
    1015,
    2999,
    4400,
    4999,
    5000,
    65_535,
  ]) {
    const key = freshKey();
    const socket = openSocket(serving.url, `/v1/leases/socket?policy=long&key=${key}`);
    await socket.first;
    socket.close(code);
    await untilKey(key, { leases: 0 }, "long");
    socket.leave();
  }
});

test("a holder is told when its object dies, and may take its lease over", async () => {
  const key = freshKey();
  const path = `/v1/leases/socket?policy=long&key=${key}&graceMs=60000`;
  const holder = openSocket(serving.url, path);
  const { lease } = JSON.parse(await holder.first) as { lease: { id: string } };
  await fetch(`${serving.url}/die?name=${encodeURIComponent(`long/key/${key}`)}`);
  // 1011.
  await eventually(() => expect(holder.text()).toContain("\u0003\u00f3the limiter failed"));
  holder.leave();
  const next = openSocket(serving.url, `${path}&resume=${encodeURIComponent(lease.id)}`);
  expect(JSON.parse(await next.first)).toMatchObject({ success: true, lease: { id: lease.id } });
  next.leave();
});

test("a connection that ends without being closed leaves its lease for its grace, and one that is closed does not", async () => {
  for (const [act, leases] of [
    ["end", 1],
    ["leave", 1],
    ["close", 0],
  ] as const) {
    const key = freshKey();
    const socket = openSocket(serving.url, `/v1/leases/socket?policy=long&key=${key}&graceMs=60000`);
    await socket.first;
    socket[act]();
    await eventually(async () => {
      const { body } = await client.peek("long", key);
      expect(body["leases"]).toBe(leases);
      expect(body["resetAfterMs"]).toBeLessThanOrEqual(60_000);
    });
    socket.leave();
  }
});

test.concurrent.each(["", "&graceMs=1000"])(
  "a holder that was to ping and does not has lost its lease%s",
  async (grace) => {
    const key = freshKey();
    const path = `/v1/leases/socket?policy=pinged&key=${key}&pingWithinMs=2000${grace}`;
    const [silent, alive] = [openSocket(serving.url, path), openSocket(serving.url, path)];
    await Promise.all([silent.first, alive.first]);
    const pinging = setInterval(() => alive.ping(), 100);
    try {
      await untilKey(key, { leases: 1 }, "pinged");
      // A close frame (0x88) with 4410 (0x113a).
      await eventually(() => expect(silent.text()).toContain("\u0088\u000e\u0011\u003ano ping came"));
      await new Promise((done) => setTimeout(done, 1_200));
      await untilKey(key, { leases: 1, reclaimed: grace === "" ? 0 : 1 }, "pinged");
      expect(alive.text()).toContain("pong");
    } finally {
      clearInterval(pinging);
    }
    await untilKey(key, { leases: 0 }, "pinged");
  },
);

test("a time that is too short is refused, with what is allowed", async () => {
  const asked = openSocket(serving.url, `/v1/leases/socket?policy=quick&key=k&pingWithinMs=999`);
  await eventually(() =>
    expect(asked.text()).toContain("pingWithinMs is 999: must be an integer from 1000 to 2147483647"),
  );
  expect(asked.text()).toContain(" 422 ");

  asked.leave();
});

test("a server that is asked to end does, though a socket is open, and the lease is there after it", async () => {
  const key = freshKey();
  const socket = openSocket(serving.url, `/v1/leases/socket?policy=long&key=${key}`);
  await socket.first;
  client.close();
  await serving.stop();
  await start();
  await untilKey(key, { leases: 1 }, "long");
}, 60_000);

const socketOf = (policy: string, key: string, more = "") =>
  openSocket(serving.url, `/v1/leases/socket?policy=${policy}&key=${key}${more}`);

/** The id and the token of the lease that a socket was told of. */
async function leaseOf(socket: Pick<SocketClient, "first" | "text">) {
  await eventually(() => expect(socket.text()).toContain('{"success":true'));
  const { lease } = JSON.parse(await socket.first) as Leased;
  return lease === undefined ? undefined : { id: lease.id, fencingToken: lease.fencingToken };
}

interface Leased {
  readonly source: string;
  readonly lease?: { readonly id: string; readonly fencingToken: number };
}

async function leased(policy: string, key: string): Promise<Leased> {
  return (await client.call("POST", "/v1/leases", { policy, key })).body as unknown as Leased;
}

test("a socket for a blocked key is told so, as any other denial", async () => {
  const key = freshKey();
  const put = await client.call("PUT", `/v1/policies/quick/overrides/${key}`, { blocked: true });
  expect(put.status).toBe(200);
  const socket = socketOf("quick", key);
  expect(JSON.parse(await socket.first)).toMatchObject({ success: false, reason: "blocked", override: key });
  // A close frame with 4429 (0x114d).
  await eventually(() => expect(socket.text()).toContain("\u0011\u004dblocked"));
  socket.leave();
});

test.each(["quick", "shared"])(
  "a lease that was acquired over HTTP is a socket's once resumed: %s",
  async (policy) => {
    const key = freshKey();
    let granted = await leased(policy, key);
    // Until an isolate grants it by itself, where it may: the object does not know it yet.
    while (policy === "shared" && granted.source !== "isolate") {
      await client.call("DELETE", `/v1/leases/${granted.lease?.id}`);
      granted = await leased(policy, key);
    }
    const { id = "", fencingToken } = granted.lease ?? {};
    const socket = socketOf(policy, key, `&resume=${id}`);
    expect(await leaseOf(socket)).toEqual({ id, fencingToken });
    if (policy === "quick") await new Promise((done) => setTimeout(done, 1_500));
    await untilKey(key, { leases: 1 }, policy);
    socket.leave();
    await untilKey(key, { leases: 0 }, policy);
  },
);

test("a grace that is longer than the lease outlasts a dead process", async () => {
  const [key, other] = [freshKey(), freshKey()];
  const sockets = [socketOf("quick", key, "&units=2&graceMs=9000"), socketOf("quick", other, "&units=2")];
  const [lease] = await Promise.all(sockets.map(leaseOf));
  // It has been renewed.
  await new Promise((done) => setTimeout(done, 1_000));
  await serving.stop("SIGKILL");
  client.close();
  await start();
  await new Promise((done) => setTimeout(done, 1_000));
  await untilKey(key, { leases: 1 });
  await untilKey(other, { leases: 0 });
  const again = socketOf("quick", key, `&resume=${lease?.id}`);
  expect(await leaseOf(again)).toEqual(lease);
  again.leave();
  await untilKey(key, { leases: 0 });
});
