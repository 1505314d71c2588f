/**
 * Many keys of one object ask a pool at once, over a bridge that allows six calls at a time, as Cloudflare allows an
 * object six connections. Plain workerd has no such bound.
 */
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { pooled } from "../support/pool-load.ts";
import { startWorld, type World } from "../support/regions.ts";

const CONNECTIONS = 6;
/** A busy machine, which takes a second for a burst, changes no answer. */
const DEADLINE_MS = 3_000;
const RATE = { limit: 1_000, windowMs: 3_600_000, burst: 1_000 };
/** A pool has half of what a call has. */
const POLICIES = { keyed: pooled(RATE, { deadlineMs: 2 * DEADLINE_MS, objects: 1 }) };

let world: World;
let keys = 0;
beforeAll(async () => {
  world = await startWorld(POLICIES, ["EU"], { connections: 64, toRedis: CONNECTIONS });
  // Redis learns the script: from now on each call is one request.
  expect(await burst(1)).toEqual({ pool: 1 });
});
afterEach(() => world.network.setFault({ kind: "pass" }));
afterAll(() => world.stop());

/** Asks for so many new keys at once; how many of the answers came from where. */
async function burst(calls: number): Promise<Record<string, number>> {
  const ask = async () => {
    keys += 1;
    const { client } = world.regions[0] as World["regions"][number];
    return String((await client.limit("keyed", `key ${keys}`)).body["source"]);
  };
  const sources = await Promise.all(Array.from({ length: calls }, ask));
  return Object.fromEntries(
    [...new Set(sources)].map((source) => [source, sources.filter((each) => each === source).length]),
  );
}

test("whoever is answered in time behind the others is answered by the pool", async () => {
  world.network.setFault({ kind: "delay-request", ms: DEADLINE_MS / 60 });
  expect(await burst(4 * CONNECTIONS)).toEqual({ pool: 4 * CONNECTIONS });
  expect(world.network.mostAtOnce()).toBe(CONNECTIONS);
});

test("callers whose time is over in the queue are degraded, and the next ones are not", async () => {
  const requests = world.network.requests();
  world.network.setFault({ kind: "delay-request", ms: 0.3 * DEADLINE_MS });
  // Two times six are answered in time, then six are under way, and the others have not been sent.
  const { pool = 0, fallback = 0 } = await burst(10 * CONNECTIONS);
  expect(pool).toBeGreaterThanOrEqual(CONNECTIONS);
  expect(fallback).toBeGreaterThanOrEqual(5 * CONNECTIONS);
  expect(world.network.requests() - requests).toBeLessThanOrEqual(5 * CONNECTIONS);
  // Redis was slow, and did not fail: it is asked at once, after what is under way.
  world.network.setFault({ kind: "pass" });
  expect(await burst(CONNECTIONS)).toEqual({ pool: CONNECTIONS });
});

test("the runtime never has to keep a call back", () => {
  expect(world.network.mostAtOnce()).toBe(CONNECTIONS);
  expect(world.network.keptBack()).toBe(0);
});

test("Redis that answers nobody is left alone, however many wait", async () => {
  const requests = world.network.requests();
  world.network.setFault({ kind: "hang" });
  expect(await burst(5 * CONNECTIONS)).toEqual({ fallback: 5 * CONNECTIONS });
  expect(await burst(5 * CONNECTIONS)).toEqual({ fallback: 5 * CONNECTIONS });
  expect(world.network.requests() - requests).toBeLessThan(3 * CONNECTIONS);
  world.network.setFault({ kind: "pass" });
  await expect.poll(() => burst(1), { timeout: 10_000 }).toEqual({ pool: 1 });
});
