/** An override begins at its `startsAt`, and ends at its `expiresAt`, though the isolate has not heard of that from the catalog: its alarm never comes here. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { call, freshKey, limit, report } from "../../../support/limiter.ts";

const NOW_MS = Date.now() + 86_400_000;
const ENDS_IN_MS = 2_000;

beforeEach(() => void vi.useFakeTimers({ toFake: ["Date"], now: NOW_MS }));
afterEach(() => void vi.useRealTimers());

async function override(policy: string, key: string, fields: object): Promise<void> {
  await put(policy, key, { ...fields, expiresAt: at(ENDS_IN_MS) });
}

const at = (inMs: number) => new Date(NOW_MS + inMs).toISOString();

async function put(policy: string, key: string, body: object): Promise<void> {
  const path = `/v1/policies/${policy}/overrides/${encodeURIComponent(key)}`;
  const written = await call(path, { method: "PUT", body });
  expect(written).toMatchObject({ status: 200, body });
  expect((await call(path)).body).toMatchObject(body);
}

const pass = (ms: number) => void vi.setSystemTime(NOW_MS + ms);

test("who is blocked is told to wait until then, and is admitted when it has waited", async () => {
  const key = freshKey();
  await limit("slow", key, { cost: 2 });
  await override("slow", key, { blocked: true });
  const denied = { success: false, reason: "blocked", override: key };
  expect((await limit("slow", key)).body).toMatchObject({ ...denied, retryAfterMs: ENDS_IN_MS });
  pass(ENDS_IN_MS - 1);
  expect((await limit("slow", key)).body).toMatchObject({ ...denied, retryAfterMs: 1 });
  pass(ENDS_IN_MS);
  const { body } = await limit("slow", key);
  expect(body).toMatchObject({ success: true, limit: 5, remaining: 2 });
  expect(body).not.toHaveProperty("override");
  expect((await report("slow", key)).body).not.toHaveProperty("override");
});

test("who had no limit has one from then on, and what it holds under the largest one stays held", async () => {
  const key = freshKey();
  await override("slow", key, { unlimited: true });
  for (let each = 0; each < 9; each += 1) expect((await limit("slow", key)).body["success"]).toBe(true);
  const held = await call("/v1/holds", { body: { policy: "slow", key, units: 3, ttlMs: 60_000 } });
  expect(held.body).toMatchObject({ success: true, override: key });
  pass(ENDS_IN_MS);
  expect((await limit("slow", key, { cost: 3 })).body).toMatchObject({
    success: false,
    limit: 5,
    remaining: 2,
  });
  expect((await limit("slow", key, { cost: 2 })).body).toMatchObject({ success: true, remaining: 0 });
});

test("units that an isolate has reserved under it are not spent after it", async () => {
  const key = freshKey();
  await override("hot", key, { multiply: 10 });
  const sources = new Set<unknown>();
  for (let each = 0; each < 150; each += 1) {
    const { body } = await limit("hot", key, { cost: 1_000 });
    expect(body).toMatchObject({ success: true, override: key });
    sources.add(body["source"]);
  }
  expect(sources).toContain("isolate");
  pass(ENDS_IN_MS);
  expect((await limit("hot", key, { cost: 1_000 })).body).toMatchObject({ success: false, limit: 100_000 });
});

test("a block that begins later is listed, denies nothing before its instant, and everything from it on", async () => {
  const key = freshKey();
  await put("slow", key, { blocked: true, startsAt: at(1_000), expiresAt: at(ENDS_IN_MS) });
  pass(999);
  const before = (await limit("slow", key, { cost: 2 })).body;
  expect(before).toMatchObject({ success: true, limit: 5, remaining: 3 });
  expect(before).not.toHaveProperty("override");
  pass(1_000);
  const denied = { success: false, reason: "blocked", override: key, retryAfterMs: 1_000 };
  expect((await limit("slow", key)).body).toMatchObject(denied);
  pass(ENDS_IN_MS);
  expect((await limit("slow", key)).body).toMatchObject({ success: true, remaining: 2 });
});

test("a lower limit that begins later counts what was used before", async () => {
  const key = freshKey();
  await put("slow", key, { limit: 3, startsAt: at(1_000) });
  await limit("slow", key, { cost: 2 });
  pass(1_000);
  const { body } = await limit("slow", key, { cost: 2 });
  expect(body).toMatchObject({ success: false, override: key, limit: 3 });
  expect((await report("slow", key)).body).toMatchObject({ override: key, limit: 3 });
});

test("units that an isolate has reserved before it are not spent from its instant on", async () => {
  const key = freshKey();
  await put("hot", key, { limit: 5, startsAt: at(1_000) });
  const sources = new Set<unknown>();
  for (let each = 0; each < 60; each += 1) {
    const { body } = await limit("hot", key);
    expect(body).toMatchObject({ success: true, limit: 100_000 });
    sources.add(body["source"]);
  }
  expect(sources).toContain("isolate");
  pass(1_000);
  const after = await Promise.all(Array.from({ length: 20 }, () => limit("hot", key)));
  expect(after.filter(({ body }) => body["success"] === true).length).toBeLessThanOrEqual(5);
  for (const { body } of after) expect(body).toMatchObject({ override: key, limit: 5 });
});
