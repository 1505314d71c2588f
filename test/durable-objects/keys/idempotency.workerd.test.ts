import { runInDurableObject } from "cloudflare:test";
import { afterEach, expect, test, vi } from "vitest";
import { ownKey } from "../../../core/protocol/names.ts";
import { MAX_ANSWERS } from "../../../durable-objects/storage/answers.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { call, freshKey, limit } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

const DAY_MS = 86_400_000;
const LATER_MS = Date.now() + DAY_MS;

function at(nowMs: number): void {
  vi.useFakeTimers({ toFake: ["Date"], now: nowMs });
}

afterEach(() => void vi.useRealTimers());

test("the same idempotency key gives the same answer and charges once", async () => {
  const key = freshKey();
  const first = await limit("slow", key, { cost: 2, idempotencyKey: "order-1" });
  expect(first.body).toMatchObject({ success: true, remaining: 3 });
  await limit("slow", key);
  const again = await limit("slow", key, { cost: 2, idempotencyKey: "order-1" });
  expect(again.body).toEqual(first.body);
  expect((await limit("slow", key, { cost: 0 })).body["remaining"]).toBe(2);
});

test("a hundred retries at once charge once", async () => {
  const key = freshKey();
  const answers = await Promise.all(
    Array.from({ length: 100 }, () => limit("slow", key, { cost: 2, idempotencyKey: "order-1" })),
  );
  expect(new Set(answers.map(({ body }) => JSON.stringify(body))).size).toBe(1);
  expect((await limit("slow", key, { cost: 0 })).body["remaining"]).toBe(3);
});

test("another request under the same idempotency key is a 409 and takes nothing", async () => {
  const key = freshKey();
  await limit("slow", key, { cost: 2, idempotencyKey: "order-1" });
  const other = await limit("slow", key, { cost: 1, idempotencyKey: "order-1" });
  expect(other).toMatchObject({
    status: 409,
    body: { type: "urn:weir:problem:idempotency-key-reused", errors: [{ pointer: "/idempotencyKey" }] },
  });
  const refund = await call("/v1/refund", {
    body: { policy: "slow", key, units: 2, idempotencyKey: "order-1" },
  });
  expect(refund.status).toBe(409);
  expect((await limit("slow", key, { cost: 0 })).body["remaining"]).toBe(3);
});

test("a refund that is repeated gives back once", async () => {
  const key = freshKey();
  await limit("slow", key, { cost: 5 });
  const refund = { policy: "slow", key, units: 2, idempotencyKey: "refund-1" };
  const first = await call("/v1/refund", { body: refund });
  expect(first.body).toMatchObject({ remaining: 2 });
  expect((await call("/v1/refund", { body: refund })).body).toEqual(first.body);
  expect((await limit("slow", key, { cost: 0 })).body["remaining"]).toBe(2);
});

test("idempotency keys belong to a policy and a key", async () => {
  for (const key of [freshKey(), freshKey()]) {
    expect((await limit("slow", key, { idempotencyKey: "same" })).body).toMatchObject({ remaining: 4 });
  }
});

test("a denial is not kept: the same call passes when it can", async () => {
  const object = objectOf("slow", freshKey());
  at(LATER_MS);
  await object.limit(5);
  expect(await object.limit(5, "order-1")).toMatchObject({ success: false });
  at(LATER_MS + 31 * DAY_MS);
  expect(await object.limit(5, "order-1")).toMatchObject({ success: true });
});

test("an answer survives an eviction, and the charge with it", async () => {
  const object = objectOf("ahead", freshKey());
  const first = await object.limit(7, "order-1");
  await object.evict();
  expect(await object.limit(7, "order-1")).toEqual(first);
  expect(await object.remaining()).toBe(10_000 - 7);
});

test("an answer stands for 24 hours when the quota is whole sooner", async () => {
  const object = objectOf("brief", freshKey());
  at(LATER_MS);
  const first = await object.limit(3, "order-1");
  at(LATER_MS + DAY_MS - 1);
  await object.runAlarm();
  expect(await object.limit(3, "order-1")).toEqual(first);
  at(LATER_MS + DAY_MS);
  expect(await object.limit(4, "order-1")).toMatchObject({ success: true });
});

test("an answer stands until the quota is whole when that is later", async () => {
  const object = objectOf("slow", freshKey());
  at(LATER_MS);
  const first = await object.limit(5, "order-1");
  at(LATER_MS + 29 * DAY_MS);
  await object.runAlarm();
  expect(await object.limit(5, "order-1")).toEqual(first);
  at(LATER_MS + 30 * DAY_MS);
  expect(await object.limit(4, "order-1")).toMatchObject({ success: true, remaining: 1 });
});

test("answers that no longer stand are forgotten, and then the object has nothing stored", async () => {
  const object = objectOf("brief", freshKey());
  at(LATER_MS);
  await object.limit(3, "order-1");
  at(LATER_MS + 60_000);
  await object.runAlarm();
  const { tables, alarmAtMs } = await object.stored();
  expect(tables["keys"]).toEqual([]);
  expect(tables["answers"]).toHaveLength(1);
  expect(alarmAtMs).toBe(LATER_MS + DAY_MS);
  at(LATER_MS + DAY_MS);
  await object.runAlarm();
  expect(await object.stored()).toEqual({ tables: {}, alarmAtMs: null });
});

test("a reset forgets the answers too", async () => {
  const object = objectOf("slow", freshKey());
  await object.limit(2, "order-1");
  await object.reset();
  expect(await object.limit(3, "order-1")).toMatchObject({ success: true, remaining: 2 });
});

const MINUTE_MS = 60_000;
const OF = (caller: string) => (key: string) => ownKey(JSON.stringify({ token: caller }), key);

test("a caller's answers on a key are bounded: its oldest go, and nobody else's", async () => {
  const key = freshKey();
  const object = objectOf("fast", key);
  const [one, other] = [OF("one"), OF("other")];
  at(LATER_MS);
  const theirs = await object.limit(1, other("call-0"));
  const first = await object.limit(1, one("call-0"));
  await object.crash();
  // The others are rows as earlier versions wrote them: so many calls would take a test most of a minute.
  await runInDurableObject(object.stub, (_, { storage }) => {
    new Storage(storage).fold();
    const put = "INSERT INTO answers (key, idempotency_key, request, answer, at_ms) VALUES (?, ?, ?, ?, ?)";
    const rules = JSON.stringify({ rules: [first] });
    storage.transactionSync(() => {
      for (let index = 1; index < MAX_ANSWERS - 1; index += 1)
        storage.sql.exec(
          put,
          key,
          one(`call-${index}`),
          "limit of 1",
          rules,
          LATER_MS + Math.floor(index / 2),
        );
    });
  });
  await object.crash();
  at(LATER_MS + MAX_ANSWERS / 2);
  await object.limit(1, one("last"));
  expect(await object.limit(1, one("call-0"))).toEqual(first);
  expect(await object.limit(1, one("call-1"))).toEqual(first);

  // The oldest segment has the first 512.
  at(LATER_MS + MINUTE_MS + 254);
  const before = await object.remaining();
  expect(await object.limit(1, one("one-more"))).toEqual({
    full: { bound: "caller-answers", most: MAX_ANSWERS },
  });
  expect(await object.remaining()).toBe(before);
  expect(await object.limit(1, one("call-0"))).toEqual(first);

  at(LATER_MS + MINUTE_MS + 255);
  expect(await object.limit(1, one("one-more"))).toMatchObject({ success: true });
  expect(await object.limit(2, one("call-511"))).toMatchObject({ success: true });
  expect(await object.limit(2, one("call-512"))).toHaveProperty("conflict");
  expect(await object.limit(2, one(`call-${MAX_ANSWERS - 2}`))).toHaveProperty("conflict");
  expect(await object.limit(1, other("call-0"))).toEqual(theirs);
});

test("an idempotency key belongs to its caller: the same key of another is another call", async () => {
  const object = objectOf("slow", freshKey());
  const [one, other] = [OF("one"), OF("other")];
  expect(await object.limit(2, one("order"))).toMatchObject({ remaining: 3 });
  expect(await object.limit(1, other("order"))).toMatchObject({ remaining: 2 });
  expect(await object.limit(2, one("order"))).toMatchObject({ remaining: 3 });
});

test("what was stored before callers were told apart is answered as it was", async () => {
  const object = objectOf("slow", freshKey());
  expect(await object.limit(2, "order")).toMatchObject({ remaining: 3 });
  expect(await object.limit(2, OF("one")("order"))).toMatchObject({ remaining: 3 });
  expect(await object.limit(1, OF("one")("order"))).toHaveProperty("conflict");
});
