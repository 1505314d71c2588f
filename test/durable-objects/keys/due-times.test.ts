/** Due times after any operation: never before what is stored has ended, and alarms are far apart. */
import fc from "fast-check";
import { expect, test } from "vitest";
import { APART_MS, FORGET_AFTER_MS } from "../../../durable-objects/storage/sweeps.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";
import { depth } from "../../support/depth.ts";

const NOW_MS = 1_760_000_000_000;
const HOUR_MS = 3_600_000;
const POLICIES = known({
  jobs: { algorithm: "concurrency", limit: 4, ttl: "10s", maxTtl: "1h" },
  mixed: {
    rules: {
      rate: { algorithm: "token-bucket", limit: 1_000, window: "10m" },
      slots: { algorithm: "concurrency", limit: 4, ttl: "10s", maxTtl: "1h" },
    },
  },
  bucket: { algorithm: "token-bucket", limit: 1_000, window: "10m" },
  log: { algorithm: "sliding-log", limit: 50, window: "1h" },
});
const LEASING = ["jobs", "mixed"];

const operation = fc.record({
  what: fc.constantFrom(
    "take",
    "renew",
    "release",
    "settle",
    "cancel",
    "confirm",
    "set",
    "refund",
    "restart",
  ),
  policy: fc.constantFrom("jobs", "mixed", "bucket", "log"),
  afterMs: fc.oneof(fc.nat(3_000), fc.nat(90_000), fc.nat(HOUR_MS)),
  ttlMs: fc.oneof(fc.integer({ min: 1, max: 20_000 }), fc.integer({ min: 1, max: HOUR_MS })),
  which: fc.nat(3),
});

interface Operation {
  readonly what: string;
  readonly policy: string;
  readonly afterMs: number;
  readonly ttlMs: number;
  readonly which: number;
}

/** One of the claims of a kind that the key has, if it has any. */
function idOf(object: AlarmedObject, policy: string, kind: string, which: number): string {
  const claims = object.storage.claims.read(policy).filter((claim) => claim.kind === kind);
  return claims[which % Math.max(1, claims.length)]?.id ?? "none";
}

let calls = 0;

/** Does one thing to the key that each policy has: it has the policy's name. */
async function play(object: AlarmedObject, { what, policy, ttlMs, which }: Operation): Promise<void> {
  const lease = idOf(object, policy, "lease", which);
  const hold = idOf(object, policy, "hold", which);
  calls += 1;
  const idempotencyKey = `call ${calls}`;
  if (what === "restart") return object.restart(POLICIES);
  if (what === "confirm" || (what === "take" && LEASING.includes(policy))) {
    if (!LEASING.includes(policy)) return;
    const wait = what === "confirm" ? { confirmWithinMs: 5_000 } : {};
    object.acquire(policy, { id: idempotencyKey, ttlMs, ...wait }, policy);
    if (which > 0) object.renew(policy, idempotencyKey, ttlMs, policy);
    return;
  }
  await object.ask(
    policy,
    async (each, keyState, nowMs) => {
      if (what === "take" && which > 0) await each.limit(keyState, { cost: which }, nowMs);
      else if (what === "take") await each.hold(keyState, { cost: 2, ttlMs }, nowMs);
      else if (what === "renew") await each.renew(keyState, { id: lease, ttlMs }, nowMs);
      else if (what === "release") await each.release(keyState, { id: lease }, nowMs);
      else if (what === "settle") await each.settle(keyState, { id: hold, used: which }, nowMs);
      else if (what === "cancel") await each.cancel(keyState, { id: hold }, nowMs);
      else if (what === "set") object.parts.local.limits.setUsed(keyState, { used: which }, nowMs);
      else if (what === "refund") await each.refund(keyState, { units: 1, idempotencyKey }, nowMs);
    },
    policy,
  );
}

/** What is stored of every key. */
function check(object: AlarmedObject): void {
  for (const { key, wholeAtMs } of object.storage.keysSwept("")) {
    for (const { id, expiresAtMs } of object.storage.claims.read(key))
      expect(wholeAtMs, `the record of ${key} beside its claim ${id}`).toBeGreaterThanOrEqual(expiresAtMs);
    expect(object.alarmAtMs, "something is stored, so an alarm is set").not.toBeNull();
    // An only key that was found whole goes with everything else: once the lead does not matter any more.
    const wasOnly = key === object.onlyAtAlarm;
    const leftMs = wasOnly ? object.storage.allowances.endsAtMs(POLICIES) : -Infinity;
    const dueMs = Math.max(Math.max(wholeAtMs, leftMs) + FORGET_AFTER_MS, object.nowMs + APART_MS);
    expect(object.alarmAtMs, "a key is looked at when it is due").toBeLessThanOrEqual(dueMs + APART_MS);
  }
}

test("a record is never due before its claims end, an alarm is set for it, and alarms are a minute apart", async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(operation, { maxLength: 30 }), async (operations) => {
      const object = new AlarmedObject(POLICIES, NOW_MS);
      for (const each of operations) {
        const { alarms, nowMs } = object;
        await object.pass(each.afterMs);
        expect(object.alarms - alarms).toBeLessThanOrEqual(1 + (object.nowMs - nowMs) / APART_MS);
        await play(object, each);
        check(object);
      }
      // A day later all leases, holds, units and answers have ended, and nothing is stored.
      await object.pass(27 * HOUR_MS);
      expect([object.storage.isEmpty, object.alarmAtMs]).toEqual([true, null]);
    }),
    { numRuns: depth(150, 2_000) },
  );
});

test("an only key that is whole beside a lead goes with it, at an alarm that is not earlier because of it", async () => {
  const object = new AlarmedObject(POLICIES, NOW_MS);
  object.ask(
    "bucket",
    (_, keyState, nowMs) => object.parts.local.limits.setUsed(keyState, { used: 0 }, nowMs),
    "bucket",
  );
  await object.pass(126_000);
  object.limit("bucket", 1, "bucket");
  await object.pass(FORGET_AFTER_MS - 126_000);
  expect([object.alarms, object.storage.loneKey]).toEqual([1, "bucket"]);
  expect(object.alarmAtMs).toBe(object.storage.allowances.endsAtMs(POLICIES) + FORGET_AFTER_MS);
  await object.pass(HOUR_MS);
  expect([object.alarms, object.storage.isEmpty, object.alarmAtMs]).toEqual([2, true, null]);
});

test("a lease that is confirmed costs one record and one alarm, and one that is renewed few records", async () => {
  const object = new AlarmedObject(POLICIES, NOW_MS);
  object.acquire("jobs", { id: "first", ttlMs: HOUR_MS, confirmWithinMs: 5_000 }, "jobs");
  expect(object.storage.read("jobs")?.wholeAtMs).toBe(NOW_MS + HOUR_MS);
  const { rowsWritten } = object.database;
  object.renew("jobs", "first", HOUR_MS, "jobs");
  expect(object.database.rowsWritten).toBe(rowsWritten + 1);
  await object.pass(HOUR_MS - 1);
  expect(object.alarms).toBe(0);
  let records = 0;
  for (let renewals = 0; renewals < 40; renewals += 1) {
    const before = object.storage.read("jobs")?.wholeAtMs;
    object.renew("jobs", "first", 60_000, "jobs");
    if (object.storage.read("jobs")?.wholeAtMs !== before) records += 1;
    await object.pass(30_000);
  }
  expect(records).toBeLessThan(16);
});
