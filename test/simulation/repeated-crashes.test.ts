import { expect, test } from "vitest";
import { UNTOUCHED, restoredOf } from "../../core/accounts/account.ts";
import { parsePolicies } from "../../core/policies/parse-policies.ts";
import { MIN_TTL_MS, type Policy } from "../../core/policies/policy.ts";
import { maxUnits } from "../../core/reservations/sizing.ts";
import { aheadUnits } from "../../durable-objects/storage/write-behind.ts";
import { inDeepRuns } from "../support/depth.ts";
import { Database } from "./database.ts";
import { crashRepeatedly, type Crashing } from "./repeated-crashes.ts";
import { SimulatedObject } from "./simulated-object.ts";

const WINDOW = { algorithm: "fixed-window", limit: 100, window: "2s" };
const FEW = { clients: 4, callsPerSecond: 100, everyMs: 2_500, crashes: 6, restMs: 12_000 };
const HISTORIES: Record<string, Crashing> = {
  "a window, at its limit": { ...FEW, fields: WINDOW },
  "a larger window, asked for twice its limit": {
    fields: { ...WINDOW, limit: 500 },
    clients: 6,
    callsPerSecond: 480,
    everyMs: 3_000,
    crashes: 5,
    restMs: 12_000,
  },
  "a bucket, at its limit": { ...FEW, fields: { algorithm: "token-bucket", limit: 100, window: "1s" } },
  "a log, at its limit": { ...FEW, fields: { algorithm: "sliding-log", limit: 100, window: "1s" } },
  "a counter, at its limit": {
    ...FEW,
    fields: { algorithm: "sliding-window-counter", limit: 100, window: "1s" },
  },
  "a bucket whose whole burst clients have": {
    ...FEW,
    fields: { algorithm: "token-bucket", limit: 200, window: "1s" },
    clients: 20,
    callsPerSecond: 200,
  },
  "a bucket whose object crashes more often than units live": {
    ...FEW,
    fields: { algorithm: "token-bucket", limit: 100, window: "1s" },
    everyMs: 400,
    crashes: 12,
  },
};

/** The most that a crash may cost: the units of holders, and the lead of memory. */
function mostOfCrash({ fields, clients }: Crashing): number {
  const [rule] = (parsePolicies({ p: fields }).get("p") as Policy).rules;
  return clients * Math.floor(maxUnits(rule)) + aheadUnits(rule);
}

/** The laws: a crash costs its units once, and for one lifetime. */
function check(crashing: Crashing, atCrash?: (database: Database) => void): void {
  const histories = crashRepeatedly(crashing, new Database(), atCrash);
  // Earlier crashes whose units may still live.
  const living = Math.floor(MIN_TTL_MS / crashing.everyMs);
  const costs = histories.map(({ unknown }) => unknown);
  for (const [index, { unknown, presumed, presumedMs }] of histories.entries()) {
    const earlier = costs
      .slice(Math.max(0, index - living), index + 1)
      .reduce((sum, units) => sum + units, 0);
    expect(presumed).toBeLessThanOrEqual(earlier);
    expect(unknown).toBeLessThanOrEqual(mostOfCrash(crashing));
    expect(presumedMs).toBeLessThan(MIN_TTL_MS);
  }
  expect(Math.max(...costs)).toBeGreaterThan(0);
}

test.each(Object.entries(HISTORIES))(
  "%s: each crash costs what it costs once, and after a lifetime it is over",
  (_, crashing) => check(crashing),
);

test.each(["fixed-window", "token-bucket", "sliding-window-counter"])(
  "%s: what was presumed after a crash and is over is not presumed after the next",
  (algorithm) => {
    const policies = parsePolicies({ p: { algorithm, limit: 1_000, window: "10s" } });
    const policy = policies.get("p") as Policy;
    let nowMs = 1_000_000;
    const object = new SimulatedObject(new Database(), policies, () => nowMs);
    const presumed = () => restoredOf(object.open(policy, "key").accounts[0] ?? UNTOUCHED);
    const wish = { [policy.rules[0].name]: { used: 0, kept: 0, wanted: 60 } };
    for (const holder of ["a", "b", "c", "d"])
      object.reserve({
        policy: "p",
        key: "key",
        cost: 0,
        holder,
        turn: 1,
        ttlMs: MIN_TTL_MS,
        isShort: false,
        rules: wish,
      });
    object.crash();
    expect(presumed()).toBeGreaterThan(200);
    nowMs += MIN_TTL_MS;
    expect(presumed()).toBe(0);
    nowMs += 10_000;
    object.limit("p", "key", 1);
    object.crash();
    expect(presumed()).toBeLessThanOrEqual(aheadUnits(policy.rules[0]));
  },
);

test("a holder's units are presumed for as long as it may spend them, whatever was written before", () => {
  const policies = parsePolicies({ p: { algorithm: "token-bucket", limit: 10_000, window: "10s" } });
  const policy = policies.get("p") as Policy;
  let nowMs = 1_000_000;
  const object = new SimulatedObject(new Database(), policies, () => nowMs);
  const presumed = () => restoredOf(object.open(policy, "key").accounts[0] ?? UNTOUCHED);
  for (let call = 0; call < 1_000; call += 1) object.limit("p", "key", 1);
  const { mostMs, leastMs } = policy.reservation;
  const reserve = (holder: string, ttlMs: number) =>
    object.reserve({
      policy: "p",
      key: "key",
      cost: 0,
      holder,
      turn: 1,
      ttlMs,
      isShort: false,
      rules: { [policy.rules[0].name]: { used: 0, kept: 0, wanted: 9 } },
    });
  for (const holder of ["a", "b", "c"]) reserve(holder, leastMs);
  reserve("d", mostMs);
  object.crash();
  expect(presumed()).toBeGreaterThanOrEqual(9);
  // It may die once more, whatever it has written meanwhile.
  nowMs += 2_000;
  object.limit("p", "key", 1);
  object.crash();
  expect(presumed()).toBeGreaterThanOrEqual(9);
  nowMs += mostMs - 2_000 - 1;
  expect(presumed()).toBeGreaterThanOrEqual(9);
  nowMs += 1;
  expect(presumed()).toBe(0);
});

const NEW_LIFE = (database: Database) =>
  database.rewrite((rules) => rules.replaceAll(/"presumed":\[\[.*?\]\]/g, '"presumed":[]'));

inDeepRuns("presumed units that get a new life with each crash are found", () => {
  const often = HISTORIES["a bucket whose object crashes more often than units live"] as Crashing;
  expect(() => check(often, NEW_LIFE)).toThrow();
});

inDeepRuns("units that are presumed for as long as any may live are found", () => {
  const forLong = (database: Database) =>
    database.rewrite((rules) => rules.replaceAll(/"ttlMs":\d+/g, '"ttlMs":8000'));
  for (const crashing of Object.values(HISTORIES)) expect(() => check(crashing, forLong)).toThrow();
});
