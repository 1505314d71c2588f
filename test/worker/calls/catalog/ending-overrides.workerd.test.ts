/** An override ends at its `expiresAt`, though the isolate has not heard of that from the catalog: its alarm never comes here. */
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { call, freshKey, limit, report } from "../../../support/limiter.ts";

const NOW_MS = Date.now() + 86_400_000;
const ENDS_IN_MS = 2_000;

beforeEach(() => void vi.useFakeTimers({ toFake: ["Date"], now: NOW_MS }));
afterEach(() => void vi.useRealTimers());

async function override(policy: string, key: string, fields: object): Promise<void> {
  const path = `/v1/policies/${policy}/overrides/${encodeURIComponent(key)}`;
  const expiresAt = new Date(NOW_MS + ENDS_IN_MS).toISOString();
  expect((await call(path, { method: "PUT", body: { ...fields, expiresAt } })).status).toBe(200);
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
