import { afterEach, expect, test, vi } from "vitest";
import { call, freshKey, limit } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

const LATER_MS = Date.now() + 86_400_000;
const MINUTE_MS = 60_000;

afterEach(() => void vi.useRealTimers());

const attempt = async (key: string) => (await limit("penal", key)).body;

async function blockedKey(): Promise<string> {
  vi.useFakeTimers({ toFake: ["Date"], now: LATER_MS });
  const key = freshKey();
  for (let calls = 0; calls < 2; calls += 1) expect(await attempt(key)).toMatchObject({ success: true });
  expect(await attempt(key)).toMatchObject({ success: false, reason: "quota", retryAfterMs: 15 * MINUTE_MS });
  return key;
}

test("a denial blocks the key, also through a crash, and when the block ends it is as ever", async () => {
  const key = await blockedKey();
  const blocked = { success: false, reason: "blocked", remaining: 0 };
  vi.setSystemTime(LATER_MS + 14 * MINUTE_MS);
  expect(await attempt(key)).toMatchObject({ ...blocked, retryAfterMs: MINUTE_MS });
  await objectOf("penal", key).crash();
  vi.setSystemTime(LATER_MS + 15 * MINUTE_MS - 1);
  expect(await attempt(key)).toMatchObject({ ...blocked, retryAfterMs: 1 });
  vi.setSystemTime(LATER_MS + 15 * MINUTE_MS);
  expect(await attempt(key)).toMatchObject({ success: true });
});

test("whoever keeps on is blocked for twice as long", async () => {
  const key = await blockedKey();
  vi.setSystemTime(LATER_MS + 16 * MINUTE_MS);
  for (let calls = 0; calls < 2; calls += 1) await attempt(key);
  expect(await attempt(key)).toMatchObject({ reason: "quota", retryAfterMs: 30 * MINUTE_MS });
});

test("a reset lifts it, a refund does not", async () => {
  const key = await blockedKey();
  const body = { policy: "penal", key, units: 2, idempotencyKey: "back" };
  expect((await call("/v1/refund", { body })).body).toMatchObject({ remaining: 0 });
  expect(await attempt(key)).toMatchObject({ reason: "blocked" });
  expect((await call(`/v1/policies/penal/keys/${key}`, { method: "DELETE" })).status).toBe(204);
  expect(await attempt(key)).toMatchObject({ success: true, remaining: 1 });
});

test("several keys at once: whose key is blocked takes nothing of the others, and a hold is denied too", async () => {
  const [key, other] = [await blockedKey(), freshKey()];
  const checks = [
    { policy: "penal", key: other },
    { policy: "penal", key },
  ];
  expect((await call("/v1/limit/all", { body: { checks } })).body).toMatchObject({ success: false });
  expect((await limit("penal", other, { cost: 0 })).body).toMatchObject({ remaining: 2 });
  const held = await call("/v1/holds", { body: { policy: "penal", key, units: 1 } });
  expect(held.body).toMatchObject({ success: false, reason: "blocked" });
});

test("a look tells of the block, and the list of policies of the penalty", async () => {
  const key = await blockedKey();
  expect((await call(`/v1/policies/penal/keys/${key}`)).body).toMatchObject({
    success: false,
    reason: "blocked",
  });
  const { policies } = (await call("/v1/policies")).body as unknown as {
    policies: { name: string; rules: object[] }[];
  };
  expect(policies.find(({ name }) => name === "penal")?.rules).toEqual([
    {
      name: "penal",
      algorithm: "sliding-log",
      unit: "requests",
      capacity: 2,
      limit: 2,
      windowMs: MINUTE_MS,
      minIntervalMs: 0,
      countDenied: false,
      blockForMs: 15 * MINUTE_MS,
      maxBlockMs: 86_400_000,
    },
  ]);
});
