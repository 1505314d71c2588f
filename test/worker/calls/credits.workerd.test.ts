import { afterEach, expect, test, vi } from "vitest";
import { call, freshKey, idIn, limit, report } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

const DAY_MS = 86_400_000;
const LATER_MS = Date.now() + DAY_MS;

afterEach(() => void vi.useRealTimers());

function buy(key: string, units: number, idempotencyKey: string) {
  return call("/v1/refund", { body: { policy: "prepaid", key, units, idempotencyKey } });
}

test("what is bought can be used and nothing comes back by time; headers and figures are whole numbers", async () => {
  const key = freshKey();
  vi.useFakeTimers({ toFake: ["Date"], now: LATER_MS });
  const denied = await limit("prepaid", key, { cost: 3 });
  expect(denied.body).toMatchObject({ success: false, reason: "quota", retryAfterMs: null, remaining: 2 });
  expect(denied.headers.has("retry-after")).toBe(false);
  const body = { policy: "prepaid", key, cost: 3 };
  expect((await call("/v1/limit?deny=429", { body })).body["detail"]).toContain("none come back by waiting");
  expect(denied.headers.get("ratelimit-policy")).toBe('"prepaid";q=1000');
  expect((await buy(key, 8, "order-1")).body).toMatchObject({ success: true, remaining: 10, limit: 1_000 });
  expect((await buy(key, 8, "order-1")).body).toMatchObject({ remaining: 10 });
  const taken = await limit("prepaid", key, { cost: 9 });
  expect(taken.body).toMatchObject({ success: true, remaining: 1, source: "object" });
  const { resetAfterMs } = taken.body as { resetAfterMs: number };
  expect(resetAfterMs).toBe(2 ** 52 - LATER_MS);
  expect(taken.headers.get("ratelimit")).toBe('"prepaid";r=1');
  vi.setSystemTime(LATER_MS + 300 * DAY_MS);
  expect((await limit("prepaid", key, { cost: 2 })).body).toMatchObject({ success: false, remaining: 1 });
});

test("every unit survives a crash, and alarms leave the key where it is, however late they come", async () => {
  const key = freshKey();
  const object = objectOf("prepaid", key);
  vi.useFakeTimers({ toFake: ["Date"], now: LATER_MS });
  await buy(key, 500, "order-1");
  for (let count = 0; count < 20; count += 1) await limit("prepaid", key);
  await object.crash();
  expect(await object.remaining()).toBe(482);
  for (let years = 1; years < 4; years += 1) {
    vi.setSystemTime(LATER_MS + years * 365 * DAY_MS);
    await object.evict();
    expect(await object.runAlarm()).toBe(true);
    const { tables, alarmAtMs } = await object.stored();
    expect(tables["keys"]).toMatchObject([{ key, whole_at_ms: 2 ** 52 }]);
    expect(alarmAtMs).toBeGreaterThan(0);
    expect(await object.remaining()).toBe(482);
  }
  // A balance that is what a key begins with is nothing to remember.
  await call(`/v1/policies/prepaid/keys/${key}`, { method: "PUT", body: { used: 0 } });
  expect((await report("prepaid", key)).body).toMatchObject({ remaining: 2 });
  await object.evict();
  await object.runAlarm();
  expect((await object.stored()).tables["keys"] ?? []).toEqual([]);
});

test("holds, charges, force and calls on several keys count as everywhere", async () => {
  const key = freshKey();
  await buy(key, 8, "order-1");
  const held = await call("/v1/holds", { body: { policy: "prepaid", key, units: 6 } });
  expect(held.body).toMatchObject({ success: true, remaining: 4 });
  expect((await call(`/v1/holds/${idIn(held)}/settle`, { body: { used: 5 } })).body).toMatchObject({
    remaining: 5,
  });
  await limit("prepaid", key, { cost: 5, idempotencyKey: "job" });
  const back = { policy: "prepaid", key, units: 5, charge: "job", idempotencyKey: "back" };
  expect((await call("/v1/refund", { body: back })).body).toMatchObject({ remaining: 5 });
  expect((await limit("prepaid", key, { force: true, cost: 7 })).body).toMatchObject({
    success: true,
    remaining: 0,
  });
  expect((await buy(key, 3, "order-2")).body).toMatchObject({ remaining: 1 });
  const checks = ["prepaid", "slow"].map((policy) => ({ policy, key, cost: 2 }));
  const all = await call("/v1/limit/all", { body: { checks } });
  expect(all.body).toMatchObject({ success: false, decisions: [{ retryAfterMs: null }, {}] });
  expect((await report("slow", key)).body).toMatchObject({ remaining: 5 });
});
