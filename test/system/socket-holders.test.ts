/** Holders of sockets that go where TCP tells nobody: their leases end. */
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Serving } from "../../scripts/workerd.ts";
import { eventually } from "../support/eventually.ts";
import { HttpClient } from "../support/http-client.ts";
import { openSocket } from "../support/leaving-client.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const policies = {
  quick: { algorithm: "concurrency", limit: 2, ttl: "500ms", maxTtl: "10s" },
  long: { algorithm: "concurrency", limit: 1, ttl: "10m" },
};
/** So many ask for a socket and go at once. */
const EARLY = 30;

const state = makeState();
let serving: Serving;
let client: HttpClient;
let keys = 0;

async function start(): Promise<void> {
  serving = await serveBundle(state, policies);
  client = new HttpClient(serving.url, 30);
}
beforeAll(start);
afterAll(async () => {
  client.close();
  // A socket whose 101 could not be written keeps workerd from ending by itself.
  await serving.stop("SIGKILL");
  removeState(state);
});

const freshKey = () => `key-${(keys += 1)}`;

const leasesOf = async (key: string) => ((await client.peek("quick", key)).body as { leases: number }).leases;

async function untilKey(key: string, expected: object, policy = "quick"): Promise<void> {
  await eventually(async () => expect((await client.peek(policy, key)).body).toMatchObject(expected));
}

test("who asks for a socket and is gone before it is opened leaves no lease", async () => {
  const all = Array.from({ length: EARLY }, freshKey);
  for (const key of all) {
    openSocket(serving.url, `/v1/leases/socket?policy=quick&key=${key}`).leave();
    // Each is answered by itself: a server that is busy would not show what it does with one.
    await new Promise((done) => setTimeout(done, 15));
  }
  // The runtime does not tell of a connection that breaks at the moment of its answer: one of them might.
  const leases = async () => (await Promise.all(all.map(leasesOf))).filter((count) => count > 0).length;
  await eventually(async () => expect(await leases()).toBeLessThanOrEqual(1));
});

test.concurrent.each(["", "&graceMs=1000"])(
  "a holder that was to ping and does not has lost its lease%s",
  async (grace) => {
    const key = freshKey();
    const path = `/v1/leases/socket?policy=quick&key=${key}&pingWithinMs=2000${grace}`;
    const [silent, alive] = [openSocket(serving.url, path), openSocket(serving.url, path)];
    await Promise.all([silent.first, alive.first]);
    const pinging = setInterval(() => alive.ping(), 100);
    try {
      await untilKey(key, { leases: 1 });
      // A close frame (0x88) with 4410 (0x113a).
      await eventually(() => expect(silent.text()).toContain("\u0088\u000e\u0011\u003ano ping came"));
      await new Promise((done) => setTimeout(done, 1_200));
      await untilKey(key, { leases: 1, reclaimed: grace === "" ? 0 : 1 });
      expect(alive.text()).toContain("pong");
    } finally {
      clearInterval(pinging);
    }
    await untilKey(key, { leases: 0 });
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
