/** Calls that are repeated, holds of callers, and the keys. */
import fc from "fast-check";
import { createClient } from "redis";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { POOL_SCRIPT } from "../../../../durable-objects/pool/redis/script.ts";
import { poolKeys } from "../../../../durable-objects/pool/session.ts";
import { startRedis } from "../../../../scripts/redis-server.ts";
import { depth, inDeepRuns } from "../../../support/depth.ts";
import { eventually } from "../../../support/eventually.ts";
import { grantedIn, holdingOf, SIZING, startPools, type Pools } from "../../../support/pools.ts";

let pools: Pools;
beforeAll(async () => {
  pools = await startPools();
});
afterAll(() => pools.stop());

const T = 1_760_000_000_000;
const DAY_MS = 86_400_000;
const RATE = { name: "rate", algorithm: "token-bucket", limit: 10, windowMs: 86_400_000, burst: 10 } as const;
const LOG = { name: "log", algorithm: "sliding-log", limit: 3, windowMs: 1_000 } as const;
const SLOTS = { name: "slots", algorithm: "concurrency", limit: 5 } as const;

// Each hold that is made looks at those before it: 2,000 take a while.
inDeepRuns("a key has at most 2,000 holds; those that expired are none, and other calls go on", async () => {
  const pool = pools.create([{ ...RATE, limit: 100_000, burst: 100_000 }]);
  const hold = (id: string, atMs: number, ttlMs = 60_000) =>
    pool.call({ op: "hold", cost: [1], id, ttlMs }, atMs);
  await Promise.all(
    Array.from({ length: 2_000 }, (_, index) => hold(`hold ${index}`, T, index < 10 ? 1_000 : 60_000)),
  );
  expect(await hold("one more", T)).toEqual({ full: { bound: "pool-holds", most: 2_000 } });
  expect((await pool.peek(T)).report).toMatchObject({ holds: 2_000 });
  expect((await pool.limit([1], T)).rules).toMatchObject([{ success: true }]);
  await pool.call({ op: "settle", cost: [0], id: "hold 11", used: [1] }, T);
  expect(await hold("one more", T)).toHaveProperty("hold");
  expect(await hold("another", T)).toHaveProperty("full");
  for (let index = 0; index < 10; index += 1)
    expect(await hold(`later ${index}`, T + 1_000)).toHaveProperty("hold");
  expect(await hold("another", T + 1_000)).toHaveProperty("full");
});

describe("a call with an idempotency key", () => {
  test("is charged once and answered alike, for a day", async () => {
    const pool = pools.create([{ ...RATE, windowMs: 1_000 }]);
    const call = { op: "limit", cost: [4], request: "limit of 4" } as const;
    const first = await pool.call(call, T);
    expect(await pool.call(call, T + 5)).toEqual(first);
    expect((await pool.peek(T + 5)).rules).toMatchObject([{ remaining: 6 }]);
    await pool.limit([10], T + DAY_MS - 10);
    expect(await pool.call(call, T + DAY_MS - 1)).toEqual(first);
    expect((await pool.call(call, T + DAY_MS)).rules).toMatchObject([{ success: false }]);
  });

  test("is remembered until the quota is whole if that is later than a day", async () => {
    const pool = pools.create([{ ...RATE, windowMs: 10 * DAY_MS }]);
    const call = { op: "limit", cost: [4], request: "limit of 4" } as const;
    const first = await pool.call(call, T);
    expect(await pool.call(call, T + 4 * DAY_MS - 1)).toEqual(first);
  });

  test("with another request is a conflict and charges nothing", async () => {
    const pool = pools.create([RATE]);
    await pool.call({ op: "limit", cost: [4], request: "limit of 4" }, T);
    const other = await pool.call({ op: "refund", cost: [4], request: "refund of 4" }, T);
    expect(other).toEqual({ conflict: { request: "limit of 4" } });
    expect((await pool.peek(T)).rules).toMatchObject([{ remaining: 6 }]);
  });

  test("of several checks denies again in its round, and is decided anew in a later one", async () => {
    const pool = pools.create([LOG]);
    const call = { op: "limit", cost: [2], request: "limit of 2" } as const;
    await pool.limit([3], T);
    const denied = await pool.call({ ...call, round: 2 }, T);
    expect(denied).toMatchObject({ rules: [{ success: false }], deniedIn: { round: 2 } });
    const again = { rules: denied.rules, deniedIn: { round: 2, isEarlier: true } };
    const later = T + LOG.windowMs;
    for (const round of [1, 2]) expect(await pool.call({ ...call, round }, later)).toEqual(again);
    const admitted = await pool.call({ ...call, round: 3 }, later);
    expect(admitted).toMatchObject({ rules: [{ success: true }] });
    for (const round of [1, 3, 9]) expect(await pool.call({ ...call, round }, later)).toEqual(admitted);
    expect((await pool.peek(later)).rules).toMatchObject([{ remaining: LOG.limit - 2 }]);
  });

  test("is decided anew when it was denied", async () => {
    const pool = pools.create([LOG]);
    const call = { op: "limit", cost: [2], request: "limit of 2" } as const;
    await pool.limit([3], T);
    expect((await pool.call(call, T)).rules).toMatchObject([{ success: false }]);
    expect((await pool.call(call, T + 1_000)).rules).toMatchObject([{ success: true }]);
  });

  test("counts a denial once", async () => {
    const pool = pools.create([{ ...LOG, countDenied: true }]);
    const call = { op: "limit", cost: [1], request: "limit of 1" } as const;
    await pool.limit([3], T);
    const first = await pool.call(call, T + 500);
    expect(first.rules).toMatchObject([{ success: false, retryAfterMs: 500, resetAfterMs: 1_000 }]);
    const before = await pool.dump();
    const again = await pool.call(call, T + 900);
    expect(again.rules).toMatchObject([{ success: false, retryAfterMs: 100, resetAfterMs: 600 }]);
    expect(await pool.dump()).toEqual(before);
  });

  test("of a hold says how long it still lasts, and once it has ended what it said first", async () => {
    const pool = pools.create([RATE]);
    const call = { op: "hold", cost: [4], id: "a", ttlMs: 1_000, request: "hold of 4" } as const;
    const first = await pool.call(call, T);
    expect((await pool.call({ ...call, id: "b" }, T + 300)).hold).toEqual({ id: "a", expiresAfterMs: 700 });
    await pool.call({ op: "settle", id: "a", used: [1] }, T + 400);
    expect(await pool.call({ ...call, id: "c" }, T + 500)).toEqual(first);
    expect((await pool.peek(T + 500)).rules).toMatchObject([{ remaining: 9 }]);
  });

  test("is another one after a reset, also in the same millisecond, and then stands", async () => {
    const pool = pools.create([RATE]);
    const call = { op: "limit", cost: [4], request: "limit of 4" } as const;
    await pool.call(call, T);
    await pool.call({ op: "reset" }, T);
    expect((await pool.peek(T)).rules).toMatchObject([{ remaining: 10 }]);
    await pool.call(call, T);
    await pool.call(call, T);
    expect((await pool.peek(T)).rules).toMatchObject([{ remaining: 6 }]);
    await pool.call({ op: "reset" }, T);
    await pool.call(call, T + DAY_MS - 1);
    expect((await pool.peek(T + DAY_MS - 1)).rules).toMatchObject([{ remaining: 6 }]);
  });

  test("that is repeated still takes note of what a holder says", async () => {
    const pool = pools.create([{ ...RATE, limit: 320, burst: 320 }]);
    const say = (turn: number, used: number, kept: number) => {
      const holding = holdingOf({ holder: "r", turn, used: [used], kept: [kept], wanted: [8] });
      return pool.call({ op: "limit", cost: [4], request: "limit of 4", holding }, T);
    };
    const first = await say(1, 0, 0);
    const again = await say(2, 6, 2);
    expect(again.rules).toEqual(first.rules);
    expect(grantedIn(again)).toMatchObject({ isNew: false, units: [6] });
    expect((await pool.peek(T)).report?.outstanding).toBe(8);
    expect((await pool.peek(T)).rules).toMatchObject([{ remaining: 302 }]);
  });
});

describe("a caller's hold", () => {
  test("is settled once; again it is answered alike, by an unknown id it is missing", async () => {
    const pool = pools.create([RATE]);
    await pool.call({ op: "hold", cost: [4], id: "a", ttlMs: 1_000 }, T);
    const first = await pool.call({ op: "settle", id: "a", used: [6] }, T);
    expect(first.rules).toMatchObject([{ success: true, remaining: 4 }]);
    expect(await pool.call({ op: "settle", id: "a", used: [1] }, T + 50)).toEqual(first);
    expect(await pool.call({ op: "settle", id: "b", used: [1] }, T)).toEqual({ missing: true });
    expect((await pool.peek(T)).rules).toMatchObject([{ remaining: 4 }]);
  });

  test("that expired counts as used, and is answered with figures when it is settled late", async () => {
    const pool = pools.create([RATE]);
    await pool.call({ op: "hold", cost: [4], id: "a", ttlMs: 1_000 }, T);
    const before = await pool.dump();
    const late = await pool.call({ op: "settle", id: "a", used: [0] }, T + 1_000);
    expect(late.rules).toMatchObject([{ success: true, remaining: 6 }]);
    expect(await pool.dump()).toEqual(before);
    expect(await pool.call({ op: "renew", id: "a", ttlMs: 1_000 }, T + 1_000)).toEqual({ missing: true });
  });

  test("is renewed from now on, longer or shorter", async () => {
    const pool = pools.create([RATE]);
    await pool.call({ op: "hold", cost: [4], id: "a", ttlMs: 1_000 }, T);
    expect(await pool.call({ op: "renew", id: "a", ttlMs: 5_000 }, T + 900)).toEqual({
      expiresAfterMs: 5_000,
    });
    expect((await pool.peek(T + 5_899)).report?.outstanding).toBe(4);
    await pool.call({ op: "renew", id: "a", ttlMs: 10 }, T + 1_000);
    expect((await pool.peek(T + 1_010)).report?.outstanding).toBe(0);
  });

  test("of rates and leases ends wholly when it is settled; nothing is reclaimed", async () => {
    const pool = pools.create([RATE, SLOTS]);
    const held = await pool.call({ op: "hold", cost: [4, 2], id: "a", ttlMs: 1_000 }, T);
    expect(held.hold).toEqual({ id: "a", expiresAfterMs: 1_000, fencingToken: `${T * 1_000}` });
    expect((await pool.peek(T)).report).toMatchObject({ outstanding: 4, holds: 1, leases: 1 });
    const { rules } = await pool.call({ op: "settle", id: "a", used: [1, 9] }, T);
    expect(rules).toMatchObject([{ remaining: 9 }, { remaining: 5 }]);
    expect((await pool.peek(T + 2_000)).report).toMatchObject({ outstanding: 0, leases: 0, reclaimed: 0 });
  });

  test("is one, however often the message comes, and none once it has been settled", async () => {
    const pool = pools.create([SLOTS]);
    const call = { op: "hold", cost: [2], id: "a", ttlMs: 1_000 } as const;
    const first = await pool.call(call, T);
    expect(await pool.call(call, T)).toEqual(first);
    expect((await pool.peek(T)).report?.outstanding).toBe(2);
    await pool.call({ op: "settle", id: "a" }, T);
    expect(await pool.call(call, T)).toEqual({ missing: true });
  });

  test("is forgotten by a reset; what holders have stays apart", async () => {
    const pool = pools.create([{ ...RATE, limit: 320, burst: 320 }]);
    await pool.call({ op: "hold", cost: [4], id: "a", ttlMs: 1_000 }, T);
    const holding = holdingOf({ holder: "r", turn: 1, wanted: [8] });
    await pool.call({ op: "limit", cost: [100], holding }, T);
    await pool.call({ op: "reset" }, T);
    expect(await pool.call({ op: "settle", id: "a", used: [9] }, T)).toEqual({ missing: true });
    expect((await pool.peek(T)).rules).toMatchObject([{ remaining: 320 - 8 }]);
  });

  test("is cancelled again when it was cancelled, and not when it was settled or has expired", async () => {
    const pool = pools.create([RATE]);
    for (const id of ["cancelled", "settled", "expired"])
      await pool.call({ op: "hold", cost: [1], id, ttlMs: 1_000 }, T);
    await pool.call({ op: "settle", id: "cancelled" }, T);
    await pool.call({ op: "settle", id: "settled", used: [1] }, T);
    const cancel = async (id: string) => await pool.call({ op: "settle", id }, T + 2_000);
    expect(await cancel("cancelled")).toHaveProperty("rules");
    const used = { op: "settle", id: "cancelled", used: [1] } as const;
    expect(await pool.call(used, T + 2_000)).toEqual({ missing: true });
    expect(await cancel("settled")).toEqual({ missing: true });
    expect(await cancel("expired")).toEqual({ missing: true });
    expect(await pool.call({ op: "settle", id: "expired", used: [1] }, T + 2_000)).toHaveProperty("rules");
  });

  test("hundreds of them: waits stay exact, and all are debited when they expire", async () => {
    const pool = pools.create([
      { ...RATE, limit: 1_000, burst: 1_000 },
      { ...SLOTS, limit: 700 },
    ]);
    for (let index = 0; index < 700; index += 1)
      await pool.call({ op: "hold", cost: [1, 1], id: `${index}`, ttlMs: 10_000 + index }, T);
    const { rules, report } = await pool.peek(T, [301, 1]);
    expect(rules).toMatchObject([{ success: false }, { success: false, retryAfterMs: 10_000 }]);
    expect(report).toMatchObject({ outstanding: 700, holds: 700, leases: 700 });
    expect((await pool.peek(T, [1, 500])).rules).toMatchObject([{}, { retryAfterMs: 10_499 }]);
    await pool.call({ op: "settle", id: "650", used: [0] }, T);
    expect((await pool.peek(T + 20_000)).report).toMatchObject({ outstanding: 0, reclaimed: 699 });
    expect((await pool.peek(T + 20_000)).rules).toMatchObject([{ remaining: 301 }, { remaining: 700 }]);
  });
});

test("numbers above 1e14 are exact", async () => {
  const burst = 2 ** 53;
  const pool = pools.create([{ ...RATE, windowMs: 1, limit: 1, burst }]);
  const { rules } = await pool.limit([2 ** 50 + 1], T);
  expect(rules).toMatchObject([{ limit: burst, remaining: burst - 2 ** 50 - 1, resetAfterMs: 2 ** 50 + 1 }]);
  const held = await pool.call({ op: "hold", cost: [2 ** 51 + 3], id: "a", ttlMs: 5 }, T);
  expect(held.rules?.[0]?.remaining).toBe(burst - 2 ** 50 - 2 ** 51 - 4);
  const { mark } = grantedIn(
    await pool.call({ op: "limit", holding: holdingOf({ holder: "r", turn: 1, used: [2 ** 50 + 7] }) }, T),
  );
  expect(mark.turn).toBe(1);
  expect((await pool.peek(T)).report?.outstanding).toBe(2 ** 51 + 3);
});

describe("the keys", () => {
  const part = fc.string({ unit: fc.constantFrom("a", "{", "}", "/", ":", "log", "holds", "answer") });
  let [stop, client] = [async () => {}, undefined as Pools["client"] | undefined];
  beforeAll(async () => {
    const server = await startRedis({ args: ["--cluster-enabled", "yes"] });
    const connected = createClient({ url: `redis://127.0.0.1:${server.port}` });
    await connected.connect();
    client = connected;
    stop = async () => {
      connected.destroy();
      await server.stop();
    };
    await connected.sendCommand(["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    const state = () => connected.sendCommand(["CLUSTER", "INFO"]);
    await eventually(async () => expect(await state()).toContain("cluster_state:ok"));
  }, 10_000);
  afterAll(() => stop());

  test("of two pools never collide, and those of one share a slot", async () => {
    await fc.assert(
      fc.asyncProperty(part, part, async (one, other) => {
        const [first, second] = [one, other].map((key) => poolKeys("policy", key, ["rule"], ["a}", "ü"]));
        if (one !== other) expect(first?.filter((key) => second?.includes(key))).toEqual([]);
        const slots = (first ?? []).map(async (key) => client?.sendCommand(["CLUSTER", "KEYSLOT", key]));
        expect(new Set(await Promise.all(slots)).size).toBe(1);
      }),
      { numRuns: depth(25, 200) },
    );
  });

  test("are all that the script touches: it runs on a cluster, with the server's own clock", async () => {
    const rules = [{ ...RATE, limit: 320, burst: 320 }, LOG, SLOTS];
    const run = async (call: object, names: string[] = []) => {
      const keys = poolKeys("policy", "some}{key", ["rate", "log", "slots"], names);
      const text = JSON.stringify({ rules, cost: [1, 1, 1], ...call });
      const answer = await client?.eval(POOL_SCRIPT, { keys, arguments: [text, JSON.stringify(SIZING)] });
      return JSON.parse(answer as unknown as string) as object;
    };
    const [used, kept] = [
      [0, 0, 0],
      [0, 0, 0],
    ];
    const holding = holdingOf({ holder: "r", turn: 1, used, kept, wanted: [5, 0, 0] });
    expect(await run({ op: "limit", holding, request: "a" }, ["x"])).toHaveProperty("granted");
    expect(await run({ op: "hold", id: "a", ttlMs: 1_000 }, ["a"])).toHaveProperty("hold");
    expect(await run({ op: "settle", id: "a", used: [1, 1, 0] }, ["a"])).toHaveProperty("rules");
    for (const op of ["refund", "peek", "reset"]) expect(await run({ op })).toHaveProperty("rules");
    for (const key of (await client?.keys("*")) ?? []) expect(await client?.pTTL(key)).toBeGreaterThan(0);
  });
});
