/** What one memory of an object tells the next: how far it may have been ahead of what is stored, and until when. */
import { afterEach, expect, test } from "vitest";
import type { Policy } from "../../../core/policies/policy.ts";
import { Storage } from "../../../durable-objects/storage/storage.ts";
import { CrashAllowances, restore } from "../../../durable-objects/storage/write-behind.ts";
import { Database } from "../../simulation/database.ts";
import { parsePolicies } from "../../support/milliseconds.ts";

const database = new Database();
afterEach(() => database.clear());

const NOW_MS = 1_000_000;
const HOUR = 3_600_000;
/** The longest lifetime of units, and half of it more: a bucket of a region's object. */
const RESERVED_MS = 12_000;

function policyOf(limit: number, algorithm = "token-bucket", window = "1h"): Policy {
  return parsePolicies({ p: { algorithm, limit, window } }).get("p") as Policy;
}

/** What a key without a record presumes in a new memory of the object. */
function presumed(policy: Policy, nowMs: number) {
  const [rule] = policy.rules;
  const lead = new CrashAllowances(database.storage).of(policy, rule, nowMs, false);
  const [hold] = restore(rule, undefined, [], nowMs, policy.reservation.mostMs, lead).holds;
  return hold && { units: hold.units, untilMs: hold.expiresAtMs };
}

test("a key without a record may have been ahead by what comes back within 10 s", () => {
  expect(presumed(policyOf(3_600), NOW_MS)).toBeUndefined();
  new CrashAllowances(database.storage).renew(policyOf(3_600), NOW_MS, NOW_MS);
  expect(presumed(policyOf(3_600), NOW_MS)).toEqual({ units: 10, untilMs: NOW_MS + RESERVED_MS });
});

test("it is valid for a while, and renewed before that is over, with one row", () => {
  const allowances = new CrashAllowances(database.storage);
  let rows = 0;
  for (let nowMs = NOW_MS; nowMs < NOW_MS + HOUR; nowMs += 500) {
    const before = database.rowsWritten;
    allowances.renew(policyOf(3_600), nowMs, nowMs);
    rows += database.rowsWritten - before;
    expect(presumed(policyOf(3_600), nowMs)?.untilMs).toBe(nowMs + RESERVED_MS);
  }
  expect(rows).toBeLessThanOrEqual(HOUR / 30_000);
  // Nobody was ahead after it ended, whenever the object starts.
  const { untilMs = 0 } = presumed(policyOf(3_600), NOW_MS + 2 * HOUR) ?? {};
  expect(untilMs).toBeLessThan(NOW_MS + HOUR + 60_000);
});

test("what was promised under a larger limit goes on counting under a smaller one, as long as it matters", () => {
  new CrashAllowances(database.storage).renew(policyOf(36_000), NOW_MS, NOW_MS);
  new CrashAllowances(database.storage).renew(policyOf(3_600), NOW_MS + 1_000, NOW_MS + 1_000);
  expect(presumed(policyOf(3_600), NOW_MS + 2_000)?.units).toBe(100);
  const later = NOW_MS + HOUR;
  new CrashAllowances(database.storage).renew(policyOf(3_600), later, later);
  expect(presumed(policyOf(3_600), later)?.units).toBe(10);
});

test("a limit that is smaller than what was promised owes no more than it has", () => {
  new CrashAllowances(database.storage).renew(policyOf(360_000), NOW_MS, NOW_MS);
  expect(presumed(policyOf(5), NOW_MS)?.units).toBe(5);
});

test("units that were promised under another algorithm are presumed too, but no rule that leases has any", () => {
  new CrashAllowances(database.storage).renew(policyOf(3_600), NOW_MS, NOW_MS);
  expect(presumed(policyOf(3_600, "sliding-log"), NOW_MS)?.units).toBe(10);
  expect(
    presumed(parsePolicies({ p: { algorithm: "concurrency", limit: 5 } }).get("p") as Policy, NOW_MS),
  ).toBeUndefined();
  expect(presumed(policyOf(3_600, "gcra"), NOW_MS)?.units).toBe(10);
});

test("a clock that ran ahead and was put right does not make a crash cost more time", () => {
  new CrashAllowances(database.storage).renew(policyOf(3_600), NOW_MS + 1_000 * HOUR, NOW_MS + 1_000 * HOUR);
  expect(presumed(policyOf(3_600), NOW_MS)?.untilMs).toBe(NOW_MS + RESERVED_MS);
});

/** Until when units of a record, of which holders had some for a second at most, are presumed in a new memory. */
function presumedOfRecord(nowMs: number): number | undefined {
  const policy = policyOf(3_600);
  const [rule] = policy.rules;
  const lead = new CrashAllowances(database.storage).of(policy, rule, nowMs, false);
  const stored = { algorithm: "token-bucket", ahead: 50, ttlMs: 1_000, presumed: [], by: -1 };
  return restore(rule, stored, [], nowMs, RESERVED_MS, lead).holds.at(-1)?.expiresAtMs;
}

test("what a record says of times is believed of versions that keep to it, and not until the units of others have ended", () => {
  new CrashAllowances(database.storage).renew(policyOf(3_600), NOW_MS, NOW_MS);
  expect(presumedOfRecord(NOW_MS)).toBe(NOW_MS + 1_000);
  // A version before writes its own row before it gives out anything: to it this one is not valid for long enough.
  expect(database.storage.kv.get("lead")).toMatchObject([["p", { ttlMs: RESERVED_MS - 1 }]]);
  database.rewriteLead((lead) => lead.replace(/"exactFromMs":\d+,/, ""));
  expect(presumedOfRecord(NOW_MS)).toBe(NOW_MS + RESERVED_MS);
  // Nor when this version has written the row again, and died before it read the record.
  new CrashAllowances(database.storage).renew(policyOf(3_600), NOW_MS + 40_000, NOW_MS + 40_000);
  expect(presumedOfRecord(NOW_MS + 41_000)).toBe(NOW_MS + 41_000 + RESERVED_MS);
  expect(presumedOfRecord(NOW_MS + 60_000)).toBe(NOW_MS + 61_000);
});

test("what was promised in a transaction that is rolled back is promised again", () => {
  const storage = new Storage(database.storage);
  const renew = () => storage.allowances.renew(policyOf(3_600), NOW_MS, NOW_MS);
  const fails = () =>
    storage.atomically(() => {
      renew();
      throw new Error("the disk is full");
    });
  expect(fails).toThrow("the disk is full");
  expect(renew()).toBeGreaterThan(NOW_MS);
  expect(presumed(policyOf(3_600), NOW_MS)?.units).toBe(10);
  expect(renew()).toBeUndefined();
});

test.each(["token-bucket", "sliding-log"])(
  "keys of one object under several versions have one row, which promises what the furthest may be ahead (%s)",
  (algorithm) => {
    const allowances = new CrashAllowances(database.storage);
    allowances.renew(policyOf(7_200), NOW_MS, NOW_MS);
    // Another key is decided by an override, or by a version of another algorithm, whose units are fewer.
    allowances.renew(policyOf(3_600, algorithm), NOW_MS + 20_000, NOW_MS + 20_000);
    allowances.renew(policyOf(3_600, algorithm), NOW_MS + 40_000, NOW_MS + 40_000);
    expect(presumed(policyOf(7_200), NOW_MS + 41_000)?.units).toBe(20);
    // And one that is further ahead is not taken for promised.
    allowances.renew(policyOf(36_000), NOW_MS + 42_000, NOW_MS + 42_000);
    expect(presumed(policyOf(36_000), NOW_MS + 43_000)?.units).toBe(100);
  },
);
