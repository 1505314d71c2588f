import fc from "fast-check";
import { expect, test } from "vitest";
import { UNTOUCHED, advance, outstandingOf, place } from "../../../core/accounts/account.ts";
import type { Account } from "../../../core/accounts/hold.ts";
import type { Segment } from "../../../core/algorithms/algorithm.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import { type StoredAccount, record } from "../../../durable-objects/storage/records.ts";
import { aheadOfRecord, aheadUnits, covers, restore } from "../../../durable-objects/storage/write-behind.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { bucket, log, reachable } from "../../support/rules.ts";

const SECOND_MS = 1_000;
const DAY_MS = 86_400_000;

test("a crash costs what comes back within 10 s, or 0.1 % of the limit, and never more than 2 %", () => {
  const windows = [1, SECOND_MS, 60 * SECOND_MS, 15 * 60 * SECOND_MS, DAY_MS, 30 * DAY_MS];
  const limits = [1, 5, 49, 50, 100, 999, 1_000, 20_000, 1_000_000];
  for (const window of windows)
    for (const limit of limits) {
      const units = aheadUnits(bucket({ limit, window }));
      const soon = (limit * 10 * SECOND_MS) / window;
      expect(units).toBeLessThanOrEqual(Math.max(soon, limit / 1_000));
      expect(units).toBeLessThanOrEqual(limit / 50);
    }
});

test("limits that are small and slow write every decision, and large ones almost none", () => {
  const ahead = (limit: number, window: number) => aheadUnits(bucket({ limit, window }));
  expect([1, 49, 50, 100].map((limit) => ahead(limit, SECOND_MS))).toEqual([0, 0, 1, 2]);
  expect(ahead(1_000_000, SECOND_MS)).toBe(20_000);
  expect(ahead(5, 15 * 60 * SECOND_MS)).toBe(0);
  expect(ahead(100, 60 * SECOND_MS)).toBe(2);
  expect([1, 999, 1_000, 1_000_000].map((limit) => ahead(limit, 30 * DAY_MS))).toEqual([0, 0, 1, 1_000]);
});

test("a record is ahead by no more than an eighth of what the key has used", () => {
  const rule = bucket({ limit: 10_000, window: SECOND_MS });
  expect([1, 7, 8, 80, 1_600, 100_000].map((used) => aheadOfRecord(rule, used))).toEqual([
    0, 0, 1, 10, 200, 200,
  ]);
});

test("a record of another algorithm is not this one's state", () => {
  const rule = bucket({ limit: 5, window: 1_000 });
  expect(restore(rule, { algorithm: "other", state: { spentParts: 1 }, ahead: 3 }, [], 0, 1_000)).toBe(
    UNTOUCHED,
  );
});

test("what is restored holds the units that memory was ahead by, then counts them as used, once", () => {
  const rule = bucket({ limit: 100, window: 10_000 });
  const restored = restore(rule, { algorithm: "token-bucket", ahead: 20 }, [], 1_000, 500);
  expect(decide(rule, restored, 1_000, 0).remaining).toBe(80);
  expect(decide(rule, advance(rule, restored, 1_500), 1_500, 0).remaining).toBe(80);
  expect(decide(rule, advance(rule, restored, 1_600), 1_600, 0).remaining).toBe(81);
});

test("of many crashes in a row a record tells four apart, and none of their units ends sooner for that", () => {
  const rule = bucket({ limit: 100, window: 10_000 });
  let account = restore(rule, { algorithm: "token-bucket", ahead: 1 }, [], 0, 1_000);
  let stored: StoredAccount | undefined;
  for (let nowMs = 10; nowMs < 100; nowMs += 10) {
    account = place(account, { id: `${nowMs}`, units: 1, expiresAtMs: nowMs + 1_000, isRestored: true });
    ({ stored } = record(rule, account, 0, nowMs, { leastMs: 1_000, mostMs: 8_000 }, stored, 1));
    const ends = (stored.presumed ?? []).map(([units, leftMs]) => ({ units, endsMs: nowMs + leftMs }));
    expect(ends.length).toBeLessThanOrEqual(4);
    expect(ends.reduce((sum, { units }) => sum + units, 0)).toBe(outstandingOf(account));
    for (const { expiresAtMs } of account.holds) {
      const held = account.holds.filter((hold) => hold.expiresAtMs >= expiresAtMs).length;
      const told = ends.filter(({ endsMs }) => endsMs >= expiresAtMs);
      expect(told.reduce((sum, { units }) => sum + units, 0)).toBeGreaterThanOrEqual(held);
    }
  }
});

test("a policy that shrinks does not owe units ahead that it never had", () => {
  const rule = bucket({ limit: 5, window: 10_000 });
  const restored = restore(rule, { algorithm: "token-bucket", ahead: 400 }, [], 0, 1_000);
  expect(decide(rule, advance(rule, restored, 1_000), 1_000, 1)).toMatchObject({ retryAfterMs: 2_000 });
});

const step = fc.record({
  afterMs: fc.oneof(fc.nat(5), fc.nat(300), fc.nat(5_000)),
  cost: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 12 })),
  isHot: fc.boolean(),
  crash: fc.integer({ min: 0, max: 9 }).map((number) => number === 0),
  downMs: fc.nat(2_000),
});
const rates = fc
  .record({
    limit: fc.integer({ min: 1, max: 400 }),
    window: fc.integer({ min: 1, max: 3_000 }),
    burst: fc.integer({ min: 1, max: 400 }),
  })
  .map(reachable);

/** Plays calls against an object that crashes, and says what was admitted when and what each crash lost. */
function play(
  rule: Rule,
  steps: readonly { afterMs: number; cost: number; isHot: boolean; crash: boolean; downMs: number }[],
  ttlMs: number,
  restored: (lost: number, ahead: number) => void,
): { nowMs: number; units: number }[] {
  const admitted: { nowMs: number; units: number }[] = [];
  let account: Account = UNTOUCHED;
  let stored: StoredAccount | undefined;
  const segments: Segment[] = [];
  let nowMs = 0;
  for (const { afterMs, cost, isHot, crash, downMs } of steps) {
    nowMs += afterMs;
    account = advance(rule, account, nowMs);
    if (crash) {
      const before = decide(rule, account, nowMs, 0).remaining;
      account = advance(rule, restore(rule, structuredClone(stored), segments, nowMs, ttlMs), nowMs);
      restored(before - decide(rule, account, nowMs, 0).remaining, stored?.ahead ?? 0);
      nowMs += downMs;
      account = advance(rule, account, nowMs);
    }
    const decision = decide(rule, account, nowMs, cost);
    if (!decision.allowed) continue;
    ({ account } = decision);
    if (!covers(rule, stored, account, nowMs)) {
      const written = record(
        rule,
        account,
        isHot ? aheadUnits(rule) : 0,
        nowMs,
        { leastMs: ttlMs, mostMs: ttlMs },
        stored,
      );
      ({ stored } = written);
      if (written.segment !== undefined) segments.push(structuredClone(written.segment));
    }
    expect(covers(rule, stored, account, nowMs)).toBe(true);
    expect(outstandingOf(account)).toBeLessThanOrEqual(stored?.ahead ?? 0);
    admitted.push({ nowMs, units: cost });
  }
  return admitted;
}

const rules = {
  "token-bucket": {
    rule: bucket,
    keepsBound: ({ limit, window, burst }: Rates, units: number, lengthMs: number) =>
      units * window <= burst * window + limit * lengthMs,
  },
  "sliding-log": {
    rule: ({ limit, window }: Rates) => log({ limit, window }),
    keepsBound: ({ limit, window }: Rates, units: number, lengthMs: number) =>
      lengthMs >= window || units <= limit,
  },
};

test.each(Object.entries(rules))(
  "%s: whenever it crashes, nothing is admitted twice and at most the units ahead are lost",
  (_, { rule: ruleOf, keepsBound }) => {
    fc.assert(
      fc.property(
        rates,
        fc.array(step, { maxLength: 60 }),
        fc.constantFrom(0, 1, 1_000),
        (fields, steps, ttlMs) => {
          const admitted = play(ruleOf(fields), steps, ttlMs, (lost, ahead) => {
            expect(lost).toBeGreaterThanOrEqual(0);
            expect(lost).toBeLessThanOrEqual(ahead);
          });
          for (const [from, first] of admitted.entries()) {
            let units = 0;
            for (const each of admitted.slice(from)) {
              units += each.units;
              expect(keepsBound(fields, units, each.nowMs - first.nowMs)).toBe(true);
            }
          }
        },
      ),
      { numRuns: depth(200, 3_000) },
    );
  },
);

interface Rates {
  readonly limit: number;
  readonly window: number;
  readonly burst: number;
}
