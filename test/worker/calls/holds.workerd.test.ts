import { expect, test } from "vitest";
import { call, freshKey, idIn, limit, report, type Called } from "../../support/limiter.ts";
import { objectOf } from "../../support/objects.ts";
import { at } from "../../support/virtual-date.ts";

const hold = (policy: string, key: string, units: unknown, fields: object = {}) =>
  call("/v1/holds", { body: { policy, key, units, ...fields } });
const settle = (id: string, used: unknown) => call(`/v1/holds/${id}/settle`, { body: { used } });
const cancel = (id: string) => call(`/v1/holds/${id}`, { method: "DELETE" });
const remaining = async (policy: string, key: string) => (await report(policy, key)).body["remaining"];

test("a hold sets units apart, and says which, for how long", async () => {
  const key = freshKey();
  const { body } = await hold("slow", key, 3, { ttlMs: 9_000 });
  expect(body).toMatchObject({ success: true, remaining: 2, reason: "ok" });
  expect(body["hold"]).toEqual({
    id: expect.stringMatching(/^hold_[\w-]+\.[\w-]{22}$/),
    units: 3,
    expiresAfterMs: 9_000,
  });
  expect((await limit("slow", key, { cost: 3 })).body).toMatchObject({ success: false, remaining: 2 });
  expect((await report("slow", key)).body).toMatchObject({ holds: 1, outstanding: 3, leases: 0 });
});

test("a hold of more than there is is denied and sets nothing apart", async () => {
  const key = freshKey();
  await hold("slow", key, 3);
  expect((await hold("slow", key, 3)).body).toMatchObject({ success: false, reason: "quota", remaining: 2 });
  expect((await hold("slow", key, 6)).body).toMatchObject({ success: false, retryAfterMs: null });
  expect((await report("slow", key)).body).toMatchObject({ holds: 1, outstanding: 3 });
});

test.each([
  [1, 4],
  [0, 5],
  [3, 2],
  [5, 0],
])("3 units held of 5, and %d used: %d are left", async (used, left) => {
  const key = freshKey();
  const id = idIn(await hold("slow", key, 3));
  expect((await settle(id, used)).body).toMatchObject({ success: true, remaining: left });
  expect(await remaining("slow", key)).toBe(left);
});

test("more than there was is debited too, below zero, and comes back by refill", async () => {
  const key = freshKey();
  at(0);
  const id = idIn(await hold("slow", key, 1));
  expect((await settle(id, 6)).body["remaining"]).toBe(0);
  // 5 per 30 days: one is owed, and one more has to come back.
  const wait = (await limit("slow", key)).body["retryAfterMs"] as number;
  expect(wait).toBe((2 * 30 * 86_400_000) / 5);
});

test("settling again, late or after a crash is answered alike and changes nothing", async () => {
  const key = freshKey();
  const id = idIn(await hold("slow", key, 3));
  const first = await settle(id, 2);
  expect((await settle(id, 2)).body).toEqual(first.body);
  expect((await settle(id, 0)).body).toEqual(first.body);
  await objectOf("slow", key).crash();
  expect((await settle(id, 2)).body).toEqual(first.body);
  expect(await remaining("slow", key)).toBe(3);
});

test("a hold that expires counts as used; settling and cancelling come too late", async () => {
  const key = freshKey();
  at(0);
  const id = idIn(await hold("slow", key, 3, { ttlMs: 1_000 }));
  at(1_000);
  expect(await remaining("slow", key)).toBe(2);
  expect(await settle(id, 0)).toMatchObject({ status: 200, body: { remaining: 2 } });
  expect((await cancel(id)).status).toBe(404);
  // The same when its row has gone.
  await limit("slow", key);
  expect(await settle(id, 0)).toMatchObject({ status: 200, body: { remaining: 1 } });
  expect((await cancel(id)).status).toBe(404);
  expect(await remaining("slow", key)).toBe(1);
});

test("cancelling gives all of it back, once; again it is the same, and settling then finds no hold", async () => {
  const key = freshKey();
  const id = idIn(await hold("slow", key, 3));
  expect((await cancel(id)).status).toBe(204);
  expect((await cancel(id)).status).toBe(204);
  expect(await settle(id, 3)).toMatchObject({
    status: 404,
    body: { type: "urn:weir:problem:hold-not-found" },
  });
  await objectOf("slow", key).crash();
  expect((await settle(id, 0)).status).toBe(404);
  expect((await cancel(id)).status).toBe(204);
  expect(await remaining("slow", key)).toBe(5);
  const settled = idIn(await hold("slow", key, 3));
  await settle(settled, 1);
  expect((await cancel(settled)).status).toBe(404);
  expect(await remaining("slow", key)).toBe(4);
});

test("a hold is a call that passed: the next has to keep the interval, also after a crash", async () => {
  const key = freshKey();
  // The isolate takes a clock that another test left a little ahead for jitter, and one that is put back by much not.
  at(-10_000);
  await limit("spaced", freshKey());
  at(0);
  await hold("spaced", key, 1);
  at(999);
  const tooSoon = { success: false, reason: "min-interval", retryAfterMs: 1 };
  expect((await hold("spaced", key, 1)).body).toMatchObject(tooSoon);
  expect((await limit("spaced", key)).body).toMatchObject(tooSoon);
  await objectOf("spaced", key).crash();
  expect((await limit("spaced", key)).body).toMatchObject(tooSoon);
  at(1_000);
  expect((await limit("spaced", key)).body).toMatchObject({ success: true });
});

test("a hold survives a crash: its units stay apart and it can be settled", async () => {
  const key = freshKey();
  const id = idIn(await hold("ahead", key, 6_000));
  await objectOf("ahead", key).crash();
  expect(await remaining("ahead", key)).toBe(4_000);
  await settle(id, 100);
  expect(await remaining("ahead", key)).toBe(9_900);
  await objectOf("ahead", key).crash();
  expect(await remaining("ahead", key)).toBe(9_900);
});

test("the same hold again is one hold, and another under its key is a conflict", async () => {
  const key = freshKey();
  at(0);
  const first = await hold("slow", key, 2, { idempotencyKey: "a" });
  expect((await hold("slow", key, 2, { idempotencyKey: "a" })).body).toEqual(first.body);
  expect(await remaining("slow", key)).toBe(3);
  expect((await hold("slow", key, 1, { idempotencyKey: "a" })).status).toBe(409);
  await settle(idIn(first), 2);
  expect((await hold("slow", key, 2, { idempotencyKey: "a" })).body).toEqual(first.body);
  expect(await remaining("slow", key)).toBe(3);
});

// It was answered as before, with a hold that had ended: who cancels a failed job and tries it again was charged nothing.
test("after a cancel the same hold again is a new one", async () => {
  const key = freshKey();
  const first = idIn(await hold("slow", key, 2, { idempotencyKey: "a" }));
  await cancel(first);
  const again = await hold("slow", key, 2, { idempotencyKey: "a" });
  expect(idIn(again)).not.toBe(first);
  expect(await remaining("slow", key)).toBe(3);
  expect((await settle(idIn(again), 2)).body).toMatchObject({ success: true, remaining: 3 });
  expect((await settle(first, 2)).status).toBe(404);
  expect(await remaining("slow", key)).toBe(3);
});

test("a forged hold is a 404 and changes nothing", async () => {
  const key = freshKey();
  const id = idIn(await hold("slow", key, 2));
  for (const forged of [`${id.split(".")[0]}.${"A".repeat(22)}`, id.replace("hold_", "lease_"), "x"]) {
    expect((await settle(forged, 0)).body["type"]).toBe("urn:weir:problem:hold-not-found");
    expect((await cancel(forged)).status).toBe(404);
  }
  expect(await remaining("slow", key)).toBe(3);
});

test("by unit: what is left out of a hold is 1, and of a settling what was held", async () => {
  const key = freshKey();
  const held = await hold("several", key, { tokens: 80 });
  const left = ({ body }: Called) => (body["rules"] as { remaining: number }[]).map((rule) => rule.remaining);
  expect(left(held)).toEqual([4, 20]);
  expect(left(await settle(idIn(held), { tokens: 30 }))).toEqual([4, 70]);
  const unknown = await settle(idIn(await hold("several", key, 1)), { tkens: 1 });
  expect(unknown.body["errors"]).toEqual([
    {
      pointer: "/used/tkens",
      detail: "tkens is not a unit of this policy: there are requests, tokens (did you mean tokens?)",
    },
  ]);
});

test("bad holds are refused by name", async () => {
  const errors = async (...args: Parameters<typeof hold>) => (await hold(...args)).body["errors"];
  expect(await errors("slow", "a", 0)).toEqual([
    { pointer: "/units", detail: expect.stringContaining("units is 0") },
  ]);
  expect(await errors("slow", "a", 1, { ttlMs: 0 })).toEqual([
    { pointer: "/ttlMs", detail: "ttlMs is 0: must be an integer from 1 to 86400000" },
  ]);
  expect(await errors("several", "a", { requests: 0, tokens: 0 })).toEqual([
    { pointer: "/units", detail: expect.stringContaining("at least one of them not 0") },
  ]);
  expect(await errors("export", "a", 1)).toEqual([
    { pointer: "/policy", detail: expect.stringContaining("leased") },
  ]);
});

test("a refund gives back what was used and not what is held, of an expired hold only what was debited", async () => {
  const key = freshKey();
  at(0);
  await hold("slow", key, 4, { ttlMs: 1_000 });
  const refund = (units: number, idempotencyKey: string) =>
    call("/v1/refund", { body: { policy: "slow", key, units, idempotencyKey } });
  expect((await refund(3, "a")).body["remaining"]).toBe(1);
  at(1_000);
  expect(await remaining("slow", key)).toBe(1);
});

test("when all has ended and is whole again nothing is stored", async () => {
  const key = freshKey();
  const object = objectOf("brief", key);
  at(0);
  const id = idIn(await hold("brief", key, 5, { ttlMs: 1_000 }));
  const lost = idIn(await hold("brief", key, 5, { ttlMs: 1_000 }));
  await settle(id, 5);
  at(60_000);
  await object.runAlarm();
  expect((await settle(lost, 1)).status).toBe(200);
  // Two days later nobody needs to be told any more how it ended.
  at(2 * 86_400_000);
  await object.runAlarm();
  expect((await object.stored()).tables).toEqual({});
  expect((await settle(lost, 1)).status).toBe(404);
});
