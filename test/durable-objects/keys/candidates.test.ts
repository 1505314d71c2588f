/** A key of a candidate that comes after another one begins untouched; for the same candidate it goes on. */
import { expect, test } from "vitest";
import type { PolicyRevision } from "../../../core/policies/policy.ts";
import { AlarmedObject, known } from "../../support/alarmed-object.ts";

const NOW_MS = 1_760_000_000_000;
const NAME = "p~candidate";
const FILE = known({ p: { algorithm: "sliding-log", limit: 10, window: "1h" } });
const LOG = { algorithm: "sliding-log", limit: 4, window: "1h" };
const SLOTS = { algorithm: "concurrency", limit: 2, ttl: "1h" };

/** A candidate, by the version that made it, as a call says it in a version. */
function candidate(made: number, fields: object, version = made): PolicyRevision {
  return { version, fields: JSON.stringify(fields), candidate: made };
}

function begun(fields: object) {
  const object = new AlarmedObject(FILE, NOW_MS);
  const hear = (inForce: PolicyRevision) => object.parts.hear(NAME, "a", { inForce });
  const take = (inForce: PolicyRevision, idempotencyKey?: string) => {
    hear(inForce);
    const call = { cost: 1, ...(idempotencyKey !== undefined && { idempotencyKey }) };
    const answer = object.ask("a", (each, keyState, nowMs) => each.limit(keyState, call, nowMs), NAME);
    return (answer as { rules: unknown[] }).rules[0];
  };
  hear(candidate(2, fields));
  return { object, hear, take };
}

test.each([false, true])("nothing was consumed of it (from storage: %s)", async (isRestarted) => {
  const { object, take } = begun(LOG);
  for (let used = 1; used <= 4; used += 1) take(candidate(2, LOG), `call-${used}`);
  expect(take(candidate(2, LOG))).toMatchObject({ success: false });
  if (isRestarted) await object.restart(FILE);
  // A change of the policy or of an override is of the same candidate.
  expect(take(candidate(2, LOG, 3))).toMatchObject({ success: false });
  if (isRestarted) await object.restart(FILE);
  for (let remaining = 3; remaining >= 0; remaining -= 1)
    expect(take(candidate(5, LOG), `call-${remaining + 1}`)).toMatchObject({ success: true, remaining });
  if (isRestarted) await object.restart(FILE);
  // An isolate that has not heard of it takes the key back to nothing.
  for (const inForce of [candidate(2, LOG, 3), candidate(5, LOG), candidate(5, LOG, 7)])
    expect(take(inForce)).toMatchObject({ success: false, limit: 4, remaining: 0 });
});

test.each([false, true])("nobody has leases of it (from storage: %s)", async (isRestarted) => {
  const { object, hear } = begun(SLOTS);
  object.acquire("a", { id: "first", ttlMs: 3_000_000 }, NAME);
  object.acquire("a", { id: "second", ttlMs: 3_000_000 }, NAME);
  expect(object.acquire("a", { id: "third" }, NAME)).toMatchObject({ rules: [{ success: false }] });
  if (isRestarted) await object.restart(FILE);
  hear(candidate(4, SLOTS));
  expect(object.acquire("a", { id: "third" }, NAME)).toMatchObject({
    rules: [{ success: true, remaining: 1 }],
  });
  expect(object.renew("a", "first", undefined, NAME)).toMatchObject({ missing: true });
  await object.restart(FILE);
  expect(object.acquire("a", { id: "fourth" }, NAME)).toMatchObject({
    rules: [{ success: true, remaining: 0 }],
  });
  expect(object.storage.claims.counts.all).toBe(2);
});

test("units that an isolate holds of the one before, and what it says of them later, count nothing", async () => {
  const bucket = { algorithm: "token-bucket", limit: 100_000, window: "30d" };
  const { object, hear } = begun(bucket);
  const remaining = () => object.limit("a", 0, NAME).rules[0]?.remaining;
  const rules = { [NAME]: { used: 0, kept: 0, wanted: 100 } };
  const message = { holder: "h", turn: 1, ttlMs: 5_000, cost: 1, isShort: false, rules };
  void object.ask("a", (each, keyState, nowMs) => each.reserve(keyState, message, nowMs), NAME);
  expect(remaining()).toBe(100_000 - 101);
  hear(candidate(4, bucket));
  expect(remaining()).toBe(100_000);
  const returned = { key: "a", holder: "h", turn: 2, used: { [NAME]: 80 } };
  object.ask("a", (each, keyState, nowMs) => each.giveBack(keyState, returned, nowMs), NAME);
  await object.pass(60_000);
  expect(remaining()).toBe(100_000);
});
