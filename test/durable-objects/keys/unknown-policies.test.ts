/** A version that does not know a policy leaves alone what is stored under it: one that knows it may come back. */
import { expect, test } from "vitest";
import { UNKNOWN_KEPT_MS } from "../../../durable-objects/storage/sweeps.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";

const NOW_MS = 1_760_000_000_000;
const MINUTE_MS = 60_000;
const DAY_MS = 24 * 60 * MINUTE_MS;
const OTHER = { other: { algorithm: "token-bucket", limit: 1, window: "1s" } };
const JOBS = { ...OTHER, p: { algorithm: "concurrency", limit: 1, ttl: "10s", maxTtl: "1h" } };
const BUCKET = { ...OTHER, p: { algorithm: "token-bucket", limit: 10, window: "1h" } };
const REMOVED = { ...OTHER, p: { removed: true } };

test("a lease of 50 minutes outlasts a version that does not know its policy", async () => {
  const object = new AlarmedObject(known(JOBS), NOW_MS);
  object.acquire("a", { id: "first", ttlMs: 50 * MINUTE_MS, confirmWithinMs: 5_000 });
  object.renew("a", "first", 50 * MINUTE_MS);
  await object.restart(known(OTHER));
  await object.pass(10 * MINUTE_MS);
  await object.restart(known(JOBS));
  expect(object.acquire("a", { id: "second" })).toMatchObject({ rules: [{ success: false }] });
  expect(object.renew("a", "first")).toMatchObject({ id: "first" });
});

// Versions before this one did not move a record's due time when they renewed a lease.
test("nor does a record that is due too early cost a claim its place", async () => {
  const object = new AlarmedObject(known(JOBS), NOW_MS);
  object.acquire("a", { id: "first", ttlMs: 50 * MINUTE_MS });
  const { rules = {} } = object.storage.read("a") ?? {};
  object.storage.write({ key: "a", policy: "p", rules }, NOW_MS - 40 * DAY_MS);
  await object.restart(known(OTHER));
  await object.comeAlarm();
  await object.restart(known(JOBS));
  expect(object.acquire("a", { id: "second" })).toMatchObject({ rules: [{ success: false }] });
});

test("what was consumed is still consumed, and a hold can be settled", async () => {
  const object = new AlarmedObject(known(BUCKET), NOW_MS);
  object.limit("a", 6);
  const { hold } = object.hold("a", 4, 20 * MINUTE_MS);
  await object.restart(known(OTHER));
  await object.pass(10 * MINUTE_MS);
  expect(() => object.limit("a", 1)).toThrow("no policy");
  await object.restart(known(BUCKET));
  // A unit comes back each 6 minutes.
  expect(object.limit("a", 2)).toMatchObject({ rules: [{ success: false, remaining: 1 }] });
  const settled = object.ask("a", (each, keyState, nowMs) =>
    each.settle(keyState, { id: hold?.id ?? "", used: 4 }, nowMs),
  );
  expect(settled).toMatchObject({ rules: [{ remaining: 1 }] });
});

test("units that memory was ahead by are presumed when the policy comes back", async () => {
  const ahead = known({ ...OTHER, p: { algorithm: "token-bucket", limit: 1_000_000, window: "30d" } });
  const object = new AlarmedObject(ahead, NOW_MS);
  object.limit("a", 1);
  expect(object.storage.read("a")).toBeUndefined();
  await object.restart(known(OTHER));
  await object.pass(20 * MINUTE_MS);
  await object.comeAlarm();
  await object.restart(ahead);
  // Memory may have been 1,000 units ahead for 45 s. Since then 445 have come back.
  expect(object.limit("a", 0).rules).toMatchObject([{ remaining: 1_000_000 - 1_000 + 445 }]);
});

test("nothing is kept for ever: 30 days after all was whole it is deleted, and few alarms have come", async () => {
  const object = new AlarmedObject(known(BUCKET), NOW_MS);
  object.limit("a", 6);
  object.hold("b", 4, 20 * MINUTE_MS);
  await object.restart(known(OTHER));
  await object.pass(UNKNOWN_KEPT_MS);
  expect([object.storage.read("a"), object.storage.read("b")]).not.toContain(undefined);
  await object.pass(2 * DAY_MS);
  expect([object.storage.isEmpty, object.alarmAtMs]).toEqual([true, null]);
  expect(object.alarms).toBeLessThan(6);
});

test("a policy that was removed on purpose is forgotten at the next alarm, leases and all", async () => {
  const object = new AlarmedObject(known(JOBS), NOW_MS);
  object.acquire("a", { id: "first", ttlMs: 50 * MINUTE_MS });
  object.acquire("b", { id: "second", ttlMs: 5_000 });
  await object.restart(known(REMOVED));
  await object.pass(51 * MINUTE_MS);
  expect([object.storage.isEmpty, object.alarmAtMs]).toEqual([true, null]);
});

test("a policy is removed by name alone", () => {
  expect(known(REMOVED).isRemoved?.("p")).toBe(true);
  expect(known(REMOVED).isRemoved?.("p@eu/local")).toBe(true);
  expect(known(REMOVED).isRemoved?.("other")).toBe(false);
  expect(known(REMOVED).get("p")).toBeUndefined();
  expect(() => known({ p: { removed: false } })).toThrow("removed");
  expect(() => known({ p: { ...BUCKET.p, removed: true } })).toThrow("removed");
});
