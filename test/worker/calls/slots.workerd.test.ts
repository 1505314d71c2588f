import { expect, test, vi } from "vitest";
import { acquire, call, freshKey, idIn, release, report } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";

const POLICY = "hot-slots";
/** The slots of an isolate that rests, and has no calls, are free when their time is over: 27.8 s at most. */
const FREE_MS = 60_000;

/** Acquires and releases until the isolate leases slots by itself. */
async function heat(key: string): Promise<void> {
  await vi.waitFor(
    async () => {
      const acquired = await acquire(POLICY, key);
      await release(idIn(acquired));
      expect(acquired.body["source"]).toBe("isolate");
    },
    { timeout: 20_000, interval: 5 },
  );
}

test("a hot key is leased in the isolate, with every field of a lease, and each lease ends once", async () => {
  const key = freshKey();
  await heat(key);
  const acquired = await acquire(POLICY, key, { ttlMs: 5_000 });
  const { status, body } = acquired;
  expect(status).toBe(200);
  expect(body).toMatchObject({ success: true, limit: 20, reason: "ok", waitedMs: 0, source: "isolate" });
  expect(body["lease"]).toEqual({
    id: expect.stringMatching(/^lease_[\w-]+\.[\w-]{22}$/),
    fencingToken: expect.any(Number),
    expiresAfterMs: 5_000,
  });
  const id = idIn(acquired);
  const renewed = await call(`/v1/leases/${id}/renew`, { body: { ttlMs: 7_000 } });
  expect(renewed).toMatchObject({ status: 200, body: { id, expiresAfterMs: 7_000 } });
  expect((await release(id)).status).toBe(204);
  expect((await release(id)).status).toBe(404);
  expect((await call(`/v1/leases/${id}/renew`, { body: {} })).status).toBe(404);
});

test("on a hot key too no more than the limit is leased, and all slots come back", async () => {
  const key = freshKey();
  await heat(key);
  const all = await Promise.all(Array.from({ length: 40 }, () => acquire(POLICY, key)));
  const granted = all.filter(({ body }) => body["success"] === true);
  expect(granted.length).toBeLessThanOrEqual(20);
  expect(granted.length).toBeGreaterThanOrEqual(15);
  expect(
    new Set(granted.map(({ body }) => (body["lease"] as { fencingToken: number }).fencingToken)).size,
  ).toBe(granted.length);
  for (const each of granted) expect((await release(idIn(each))).status).toBe(204);
  await vi.waitFor(
    async () =>
      expect((await report(POLICY, key)).body).toMatchObject({ leases: 0, outstanding: 0, remaining: 20 }),
    { timeout: FREE_MS, interval: 100 },
  );
});

test("a lease that lasts is handed over, and goes on in the object", async () => {
  const key = freshKey();
  await heat(key);
  const id = idIn(await acquire(POLICY, key));
  const isThere = async () => JSON.stringify(await objectOf(POLICY, key).stored()).includes(id.slice(-22));
  await vi.waitFor(async () => expect(await isThere()).toBe(true), { timeout: FREE_MS, interval: 50 });
  expect((await call(`/v1/leases/${id}/renew`, { body: { ttlMs: 60_000 } })).body["expiresAfterMs"]).toBe(
    60_000,
  );
  expect((await release(id)).status).toBe(204);
  expect((await release(id)).status).toBe(404);
});

test("a renewal for longer than an isolate may lease is the object's at once", async () => {
  const key = freshKey();
  await heat(key);
  const id = idIn(await acquire(POLICY, key));
  expect((await call(`/v1/leases/${id}/renew`, { body: { ttlMs: 60_000 } })).body["expiresAfterMs"]).toBe(
    60_000,
  );
  expect((await report(POLICY, key)).body["leases"]).toBeGreaterThanOrEqual(1);
  expect((await release(id)).status).toBe(204);
});

test("a reset ends the leases of isolates too, when they hear of it", async () => {
  const key = freshKey();
  await heat(key);
  const id = idIn(await acquire(POLICY, key));
  // A lease of the moment of the reset, as far as its isolate can tell, goes on.
  await scheduler.wait(1_000);
  expect((await call(`/v1/policies/${POLICY}/keys/${key}`, { method: "DELETE" })).status).toBe(204);
  await vi.waitFor(
    async () => {
      await release(idIn(await acquire(POLICY, key)));
      expect((await call(`/v1/leases/${id}/renew`, { body: {} })).status).toBe(404);
    },
    { timeout: FREE_MS, interval: 50 },
  );
});

test("leases under an idempotency key, or to be confirmed, are the object's", async () => {
  const key = freshKey();
  await heat(key);
  for (const fields of [{ idempotencyKey: "one" }, { confirm: true }, { ttlMs: 20_000 }])
    expect((await acquire(POLICY, key, fields)).body["source"]).toBe("object");
});

test("slots that an isolate has are not leased beyond a lower limit, from the instant at which that begins", async () => {
  const key = freshKey();
  const startsAtMs = Date.now() + 2_500;
  const body = { limit: 10, startsAt: new Date(startsAtMs).toISOString() };
  expect((await call(`/v1/policies/${POLICY}/overrides/${key}`, { method: "PUT", body })).status).toBe(200);
  await heat(key);
  const take = () => Promise.all(Array.from({ length: 20 }, () => acquire(POLICY, key)));
  const had: number[] = [];
  while (Date.now() < startsAtMs + 20) {
    const taken = (await take()).filter((each) => each.body["success"] === true);
    had.push(taken.filter((each) => each.body["source"] === "isolate").length);
    await Promise.all(taken.map((each) => release(idIn(each))));
  }
  const all = await take();
  expect(Math.max(...had)).toBeGreaterThan(0);
  expect(all.filter((each) => each.body["success"] === true).length).toBeLessThanOrEqual(10);
  for (const each of all) expect(each.body).toMatchObject({ limit: 10, override: key });
});

test("a fresh key admits a call of any part of its limit, and says the largest that would pass after it", async () => {
  for (const units of [3, 10, 19, 20]) {
    const key = freshKey();
    const { body } = await acquire(POLICY, key, { units, ttlMs: 5_000 });
    expect(body).toMatchObject({ success: true, remaining: 20 - units });
  }
});

test("a call that is larger than the isolate's free slots gets those too, of a hot key that nobody else uses", async () => {
  const key = freshKey();
  await heat(key);
  await acquire(POLICY, key, { units: 2, ttlMs: 7_000 });
  for (const units of [18, 17, 18]) {
    const acquired = await acquire(POLICY, key, { units, ttlMs: 5_000 });
    expect(acquired.body).toMatchObject({ success: true });
    await release(idIn(acquired));
  }
  expect((await acquire(POLICY, key, { units: 19, ttlMs: 5_000 })).body).toMatchObject({
    success: false,
    remaining: 18,
  });
});
