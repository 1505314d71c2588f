/** The example that holds a slot over a WebSocket, through a proxy that cuts connections. */
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";
import { afterAll, beforeAll, expect, test } from "vitest";
import { inSlot, type Slot } from "../../examples/socket/index.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { eventually } from "../support/eventually.ts";
import { TOKENS } from "../support/fixtures.ts";
import { HttpClient } from "../support/http-client.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const policies = {
  slots: { algorithm: "concurrency", limit: 1, ttl: "30s", maxWait: "60s", deadlineMs: 20_000 },
};
const state = makeState();
const connections = new Set<Socket>();
let serving: Serving;
let client: HttpClient;
let proxy: Server;
let made = 0;

beforeAll(async () => {
  serving = await serveBundle(state, policies);
  client = new HttpClient(serving.url, 10);
  const { port } = new URL(serving.url);
  proxy = createServer((caller) => {
    made += 1;
    const limiter = connect(Number(port), "127.0.0.1");
    for (const socket of [caller, limiter]) {
      connections.add(socket);
      socket.on("error", () => undefined).on("close", () => connections.delete(socket));
    }
    caller.pipe(limiter);
    limiter.pipe(caller);
  });
  await new Promise<void>((done) => proxy.listen(0, "127.0.0.1", done));
});
afterAll(async () => {
  proxy.close();
  client.close();
  await serving.stop();
  removeState(state);
});

/** All connections break, as when the limiter is deployed. */
function cut(): void {
  for (const socket of connections) socket.resetAndDestroy();
}

const optionsOf = (key: string) => {
  const { port } = proxy.address() as AddressInfo;
  return { url: `http://127.0.0.1:${port}`, token: TOKENS.full, policy: "slots", key, pingMs: 100 };
};

async function leases(key: string): Promise<unknown> {
  const { body } = await client.call("GET", `/v1/policies/slots/keys/${key}`);
  return (body as { leases: unknown }).leases;
}

test("a slot outlives cut connections, is nobody else's meanwhile, and is free when the work is done", async () => {
  const work = async ({ lost }: Slot) => {
    for (let times = 0; times < 3; times += 1) {
      const before = made;
      cut();
      await eventually(() => expect(made).toBeGreaterThan(before));
      expect(await inSlot(optionsOf("a"), () => Promise.resolve("taken twice"))).toBeUndefined();
    }
    // Longer than the grace: the lease is the last connection's.
    await new Promise((done) => setTimeout(done, 5_500));
    expect(lost.aborted).toBe(false);
    expect(await leases("a")).toBe(1);
    return "done";
  };
  expect(await inSlot(optionsOf("a"), work)).toBe("done");
  await eventually(async () => expect(await leases("a")).toBe(0));
});

test("a slot that a reset took away is lost, and the work is told", async () => {
  const result = await inSlot(optionsOf("b"), async ({ lost }) => {
    await client.call("DELETE", "/v1/policies/slots/keys/b");
    await eventually(() => expect(lost.aborted).toBe(true));
    return "told";
  });
  expect(result).toBe("told");
});

test("a slot is free when the work fails", async () => {
  const failing = inSlot(optionsOf("c"), () => Promise.reject(new Error("it failed")));
  await expect(failing).rejects.toThrow("it failed");
  await eventually(async () => expect(await leases("c")).toBe(0));
});

test("a ping is answered", async () => {
  const { url, token } = optionsOf("d");
  const NodeWebSocket = WebSocket as unknown as new (url: string, options: object) => WebSocket;
  const address = `${url.replace("http", "ws")}/v1/leases/socket?policy=slots&key=d`;
  const socket = new NodeWebSocket(address, { headers: { authorization: `Bearer ${token}` } });
  const told: unknown[] = [];
  socket.addEventListener("message", ({ data }) => told.push(data));
  await eventually(() => expect(told).toHaveLength(1));
  socket.send("ping");
  await eventually(() => expect(told[1]).toBe("pong"));
  socket.close();
});
