/** examples/redis-pool beside Weir: the built bundle and a plain Redis client on the same pools. */
import { execFile } from "node:child_process";
import { join } from "node:path";
import { promisify } from "node:util";
import { createClient } from "redis";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { POOL_SCRIPT } from "../../durable-objects/pool/redis/script.ts";
import { RedisPool, type Answer } from "../../examples/redis-pool/pool.ts";
import { freePort } from "../../scripts/free-port.ts";
import { startRedis, type RedisServer } from "../../scripts/redis-server.ts";
import { startBridge, type Bridge } from "../../scripts/upstash-bridge.ts";
import { serve, type Serving } from "../../scripts/workerd.ts";
import { TEST_TOKENS, TOKENS } from "../support/fixtures.ts";
import { makeState, removeState } from "../support/served.ts";

const MONTH_MS = 30 * 24 * 60 * 60 * 1_000;
const PATIENT = { pool: "redis", deadlineMs: 20_000 };
/** Nothing is refilled that a test would see. */
const POLICIES = {
  bucket: { algorithm: "token-bucket", limit: 100, window: "30d", ...PATIENT },
  log: { algorithm: "sliding-log", limit: 100, window: "30d", ...PATIENT },
  slots: { algorithm: "concurrency", limit: 2, ...PATIENT },
};
const EXAMPLES = join(import.meta.dirname, "..", "..", "examples", "redis-pool");

type Client = ReturnType<typeof connectTo>;

let redis: RedisServer;
let bridge: Bridge;
let weir: Serving;
let client: Client;
let pools: Record<keyof typeof POLICIES, RedisPool>;
const state = makeState();

beforeAll(async () => {
  redis = await startRedis();
  bridge = await startBridge({ redisUrl: urlOf(redis), token: "a-token" });
  weir = await serve({
    stateDir: state,
    policies: POLICIES,
    apiTokens: JSON.stringify(TEST_TOKENS),
    pool: bridge,
    onOutput: () => undefined,
  });
  client = connectTo(urlOf(redis));
  await client.connect();
  const rate = { limit: 100, windowMs: MONTH_MS };
  pools = {
    bucket: new RedisPool(client, POOL_SCRIPT, "bucket", [
      { ...rate, name: "bucket", algorithm: "token-bucket", burst: 100 },
    ]),
    log: new RedisPool(client, POOL_SCRIPT, "log", [{ ...rate, name: "log", algorithm: "sliding-log" }]),
    slots: new RedisPool(client, POOL_SCRIPT, "slots", [
      { name: "slots", algorithm: "concurrency", limit: 2 },
    ]),
  };
});
afterAll(async () => {
  client.destroy();
  await weir.stop();
  await bridge.stop();
  await redis.stop();
  removeState(state);
});

const urlOf = ({ port }: RedisServer) => `redis://127.0.0.1:${port}`;

function connectTo(url: string) {
  return createClient({ url });
}

interface Said {
  readonly success: boolean;
  readonly remaining: number;
  readonly outstanding: number;
  readonly holds: number;
  readonly leases: number;
  readonly lease?: { readonly id: string; readonly fencingToken: number };
}

async function ask(method: string, path: string, body?: object): Promise<Said> {
  const headers = { authorization: `Bearer ${TOKENS.full}`, "content-type": "application/json" };
  const answer = await fetch(weir.url + path, { method, headers, body: body ? JSON.stringify(body) : null });
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return (answer.status === 204 ? {} : await answer.json()) as Said;
}

const look = (policy: string, key: string) => ask("GET", `/v1/policies/${policy}/keys/${key}`);
const remainingIn = ({ rules: [rule] = [] }: Answer) => rule?.remaining;

test.each(["bucket", "log"] as const)(
  "a key of a %s that both use at once never exceeds the limit",
  async (policy) => {
    const key = "both";
    const admitted = { weir: 0, program: 0 };
    const once = {
      weir: async () => (await ask("POST", "/v1/limit", { policy, key })).success,
      program: async () => (await pools[policy].limit(key)).success,
    };
    const until = async (who: keyof typeof once) => {
      while (await once[who]()) admitted[who] += 1;
    };
    const [byWeir, byProgram] = [() => until("weir"), () => until("program")];
    // One each first: whoever starts a moment sooner could take everything.
    for (const who of ["weir", "program"] as const) if (await once[who]()) admitted[who] += 1;
    expect(admitted).toEqual({ weir: 1, program: 1 });
    await Promise.all([...Array.from({ length: 4 }, byWeir), byProgram()]);
    // What Weir's region still had comes back, and then the last of it is admitted too.
    await vi.waitFor(async () => expect((await look(policy, key)).outstanding).toBe(0), {
      timeout: 60_000,
      interval: 200,
    });
    await byProgram();
    const total = admitted.weir + admitted.program;
    expect(total).toBeLessThanOrEqual(100);
    // On a machine that stalls a region's units may expire, which counts them as used: a quarter of the limit at most.
    expect(total).toBeGreaterThanOrEqual(75);
  },
);

test("a hold of the program is seen by Weir, and what it did not use is free again", async () => {
  const key = "held";
  const { success, hold } = await pools.bucket.hold(key, [60], 60_000);
  expect([success, hold?.expiresAfterMs]).toEqual([true, 60_000]);
  expect(await look("bucket", key)).toMatchObject({ remaining: 40, outstanding: 60, holds: 1 });
  const cost = 41;
  expect(await ask("POST", "/v1/limit", { policy: "bucket", key, cost })).toMatchObject({ success: false });
  expect(remainingIn(await pools.bucket.settle(key, hold?.id ?? "", [10]))).toBe(90);
  expect(await look("bucket", key)).toMatchObject({ remaining: 90, outstanding: 0, holds: 0 });
  // Again it changes nothing.
  expect(remainingIn(await pools.bucket.settle(key, hold?.id ?? "", [10]))).toBe(90);
  expect(await pools.bucket.renew(key, hold?.id ?? "", 1_000)).toMatchObject({
    success: false,
    missing: true,
  });
});

test("a hold of Weir's is held for the program too", async () => {
  const key = "held by weir";
  await ask("POST", "/v1/holds", { policy: "bucket", key, units: 70 });
  expect(await pools.bucket.limit(key, [31])).toMatchObject({ success: false });
  expect(await pools.bucket.limit(key, [30])).toMatchObject({ success: true });
});

test("leases of both occupy the same slots", async () => {
  const key = "leased";
  const acquire = (waitMs = 0) => ask("POST", "/v1/leases", { policy: "slots", key, waitMs });
  const program = await pools.slots.hold(key, [1], 60_000);
  const first = await acquire();
  expect([program.success, first.success, (await acquire()).success]).toEqual([true, true, false]);
  expect(await pools.slots.hold(key, [1], 60_000)).toMatchObject({ success: false });
  expect(await look("slots", key)).toMatchObject({ leases: 2 });
  // A slot that the program releases is Weir's next waiter's.
  const waiting = acquire(30_000);
  await pools.slots.settle(key, program.hold?.id ?? "");
  const second = await waiting;
  expect(second.success).toBe(true);
  expect(second.lease?.fencingToken).toBeGreaterThan(Number(program.hold?.fencingToken));
  expect(await pools.slots.hold(key, [1], 60_000)).toMatchObject({ success: false });
  // And one that Weir's caller releases is the program's as soon as the region has given it back.
  await ask("DELETE", `/v1/leases/${second.lease?.id ?? ""}`);
  const next = await vi.waitFor(
    async () => {
      const again = await pools.slots.hold(key, [1], 60_000);
      expect(again.success).toBe(true);
      return again;
    },
    { timeout: 60_000, interval: 100 },
  );
  expect(Number(next.hold?.fencingToken)).toBeGreaterThan(Number(second.lease?.fencingToken));
});

test("a server that has forgotten the script is given it again", async () => {
  await client.sendCommand(["SCRIPT", "FLUSH"]);
  expect(await pools.bucket.limit("flushed")).toMatchObject({ success: true });
  await client.sendCommand(["SCRIPT", "FLUSH"]);
  expect(await ask("POST", "/v1/limit", { policy: "bucket", key: "flushed" })).toMatchObject({
    success: true,
  });
});

test("the program ends when there is no Redis, and says so without the password", async () => {
  const port = await freePort();
  const env = { ...process.env, REDIS_URL: `redis://:secret@127.0.0.1:${port}` };
  const ended = promisify(execFile)(process.execPath, [join(EXAMPLES, "index.ts")], { env, timeout: 60_000 });
  const { code, stderr } = (await ended.catch((error: unknown) => error)) as { code: number; stderr: string };
  expect(code).toBe(1);
  expect(stderr).toContain(`no connection to Redis at 127.0.0.1:${port}`);
  expect(stderr).not.toContain("secret");
});

test("the program runs as its README says, and prints the script", async () => {
  const node = async (file: string) => {
    const env = { ...process.env, REDIS_URL: urlOf(redis) };
    return (await promisify(execFile)(process.execPath, [join(EXAMPLES, file)], { env })).stdout;
  };
  expect(await node("print-script.ts")).toBe(POOL_SCRIPT);
  const printed = await node("index.ts");
  const said = [...printed.matchAll(/^\S.*: (yes|no), /gm)].map(([, word]) => word);
  expect(said.join(" ")).toBe("yes no yes no yes yes yes yes no");
});
