import fc from "fast-check";
import { expect, test } from "vitest";
import {
  UNTOUCHED,
  advance,
  outstandingOf,
  place,
  refund,
  settle,
  untouchedAtMs,
} from "../../../core/accounts/account.ts";
import {
  type Account,
  type Hold,
  heldUnits,
  holdWith,
  usesOf,
  withHold,
  withoutHold,
} from "../../../core/accounts/hold.ts";
import type { Rule } from "../../../core/policies/policy.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { bucket, reachable } from "../../support/rules.ts";

function taken(rule: Rule, account: Account, nowMs: number, cost: number): Account {
  const decision = decide(rule, account, nowMs, cost);
  if (!decision.allowed) throw new Error(`${cost} should pass`);
  return decision.account;
}

const SLOW = bucket({ limit: 10, window: 10_000 });

test("units held cannot be given out, and are free again when the hold is settled with 0", () => {
  const held = place(UNTOUCHED, { id: "a", units: 4, expiresAtMs: 100 });
  expect(decide(SLOW, held, 0, 7)).toMatchObject({ allowed: false, remaining: 6 });
  expect(decide(SLOW, held, 0, 6).allowed).toBe(true);
  expect(decide(SLOW, settle(SLOW, held, 0, "a", 0), 0, 10).allowed).toBe(true);
});

test("a hold that expires counts as used, at the instant it expires", () => {
  const held = place(UNTOUCHED, { id: "a", units: 10, expiresAtMs: 5_000 });
  const later = advance(SLOW, held, 7_000);
  expect(later.holds).toEqual([]);
  // Used at 5,000 ms; two units have come back since.
  expect(decide(SLOW, later, 7_000, 0)).toMatchObject({ remaining: 2 });
  expect(advance(SLOW, held, 4_999)).toBe(held);
});

test("settling an unknown hold, or one a second time, changes nothing", () => {
  const held = place(UNTOUCHED, { id: "a", units: 4, expiresAtMs: 100 });
  expect(settle(SLOW, held, 0, "b", 4)).toBe(held);
  const settled = settle(SLOW, held, 0, "a", 2);
  expect(settle(SLOW, settled, 0, "a", 2)).toBe(settled);
});

test("settling with more than was held takes the rest too, below zero if need be", () => {
  const held = place(UNTOUCHED, { id: "a", units: 1, expiresAtMs: 100 });
  const settled = settle(SLOW, held, 0, "a", 12);
  expect(decide(SLOW, settled, 0, 1)).toMatchObject({ allowed: false, remaining: 0, retryAfterMs: 3_000 });
});

test("a refund of units that a hold still has mints nothing", () => {
  const held = place(taken(SLOW, UNTOUCHED, 0, 2), { id: "a", units: 8, expiresAtMs: 100 });
  expect(decide(SLOW, refund(SLOW, held, 0, 50), 0, 0)).toMatchObject({ remaining: 2 });
});

test("a refund of nothing, as of a rule that took nothing, changes nothing, whatever plan it names", () => {
  const indebted = settle(SLOW, place(UNTOUCHED, { id: "a", units: 1, expiresAtMs: 100 }), 0, "a", 12);
  const plan = bucket({ limit: 30, window: 10_000 });
  const refunded = refund(plan, indebted, 0, 0);
  expect(decide(SLOW, refunded, 0, 1)).toMatchObject({ allowed: false, retryAfterMs: 3_000 });
});

const rates = fc
  .record({
    limit: fc.integer({ min: 1, max: 20 }),
    window: fc.integer({ min: 1, max: 2_000 }),
    burst: fc.integer({ min: 1, max: 40 }),
  })
  .map(reachable);
const holdings = fc.array(
  fc.record({ units: fc.integer({ min: 1, max: 12 }), expiresAtMs: fc.integer({ min: 1, max: 3_000 }) }),
  { maxLength: 4 },
);

/** An account of which some units are spent and as many of these holds as fit are outstanding. */
function accountWith(
  rule: Rule,
  spent: number,
  holds: readonly { units: number; expiresAtMs: number }[],
): Account {
  let account = taken(rule, UNTOUCHED, 0, Math.min(spent, rule.capacity));
  for (const [index, hold] of holds.entries()) {
    if (decide(rule, account, 0, hold.units).allowed)
      account = place(account, { id: String(index), ...hold });
  }
  return account;
}

test("the promised wait is exact while holds expire on the way", () => {
  fc.assert(
    fc.property(
      rates,
      fc.nat(40),
      holdings,
      fc.integer({ min: 1, max: 40 }),
      (fields, spent, holds, cost) => {
        const rule = bucket(fields);
        const account = accountWith(rule, spent, holds);
        const decision = decide(rule, account, 0, cost);
        if (decision.allowed) return;
        if (cost > rule.capacity) {
          expect(decision.retryAfterMs).toBeNull();
          return;
        }
        const { retryAfterMs } = decision;
        if (retryAfterMs === null) throw new Error("a cost that fits the capacity passes some time");
        const passes = (atMs: number) => decide(rule, advance(rule, account, atMs), atMs, cost).allowed;
        expect(passes(retryAfterMs)).toBe(true);
        expect(passes(retryAfterMs - 1)).toBe(false);
      },
    ),
    { numRuns: depth(600, 3_000) },
  );
});

test("an account is whole at the instant it says, if nobody comes, and not before", () => {
  fc.assert(
    fc.property(rates, fc.nat(40), holdings, (fields, spent, holds) => {
      const rule = bucket(fields);
      const account = accountWith(rule, spent, holds);
      const wholeMs = untouchedAtMs(rule, account, 0);
      const free = (atMs: number) => {
        const decision = decide(rule, advance(rule, account, atMs), atMs, 0);
        return { isFull: decision.remaining === rule.capacity, resetAfterMs: decision.resetAfterMs };
      };
      expect(free(wholeMs)).toEqual({ isFull: true, resetAfterMs: 0 });
      if (wholeMs > 0) expect(free(wholeMs - 1).resetAfterMs).toBe(1);
    }),
    { numRuns: depth(400, 2_000) },
  );
});

/** What holders do: take a hold, spend from it some time later, settle it, crash (let it expire), or ask directly. */
const step = fc.record({
  afterMs: fc.integer({ min: 0, max: 400 }),
  kind: fc.constantFrom("hold", "spend", "settle", "ask", "refund-nothing"),
  units: fc.integer({ min: 1, max: 15 }),
  which: fc.nat(3),
  lifeMs: fc.integer({ min: 1, max: 900 }),
});

test("whatever holders do, and however late, no interval has more units than the bound", () => {
  fc.assert(
    fc.property(rates, fc.array(step, { maxLength: 40 }), (fields, steps) => {
      const rule = bucket(fields);
      const used: { nowMs: number; units: number }[] = [];
      const left = new Map<string, number>();
      let account: Account = UNTOUCHED;
      let nowMs = 0;
      for (const [index, { afterMs, kind, units, which, lifeMs }] of steps.entries()) {
        nowMs += afterMs;
        account = advance(rule, account, nowMs);
        const hold = account.holds[which % Math.max(1, account.holds.length)];
        const decision = decide(rule, account, nowMs, units);
        if (kind === "ask" && decision.allowed) {
          ({ account } = decision);
          used.push({ nowMs, units });
        } else if (kind === "hold" && decision.allowed) {
          account = place(account, { id: String(index), units, expiresAtMs: nowMs + lifeMs });
          left.set(String(index), units);
        } else if (kind === "spend" && hold !== undefined) {
          const spent = Math.min(units, left.get(hold.id) ?? 0);
          left.set(hold.id, (left.get(hold.id) ?? 0) - spent);
          if (spent > 0) used.push({ nowMs, units: spent });
        } else if (kind === "settle" && hold !== undefined) {
          account = settle(rule, account, nowMs, hold.id, hold.units - (left.get(hold.id) ?? 0));
        }
        expect(outstandingOf(account)).toBeLessThanOrEqual(rule.capacity);
      }
      expectWithinBound(fields, used);
    }),
    { numRuns: depth(600, 3_000) },
  );
});

function expectWithinBound(
  { limit, window, burst }: { limit: number; window: number; burst: number },
  used: readonly { nowMs: number; units: number }[],
): void {
  for (const [from, first] of used.entries()) {
    let units = 0;
    for (const each of used.slice(from)) {
      units += each.units;
      expect(units * window).toBeLessThanOrEqual(burst * window + limit * (each.nowMs - first.nowMs));
    }
  }
}

test("a list of holds that others were added to and taken from has the sums of its holds, in their order", () => {
  const change = fc.record({
    isEnd: fc.boolean(),
    which: fc.nat(9),
    units: fc.integer({ min: 1, max: 9 }),
    expiresAtMs: fc.nat(20),
    kind: fc.constantFrom(
      {},
      { isStored: true },
      { isStored: true, isProvisional: true },
      { isRestored: true },
      { rate: { units: 7, windowMs: 1_000 } },
    ),
  });
  fc.assert(
    fc.property(fc.array(change, { maxLength: 20 }), (changes) => {
      let holds: readonly Hold[] = [];
      for (const [index, { isEnd, which, units, expiresAtMs, kind }] of changes.entries())
        holds = isEnd
          ? withoutHold(holds, `${which}`)
          : withHold(holds, { id: `${index}`, units, expiresAtMs, ...kind });
      const sum = (is: (hold: Hold) => boolean) =>
        holds.reduce((all, each) => all + (is(each) ? each.units : 0), 0);
      expect(heldUnits(holds)).toEqual({
        all: sum(() => true),
        unstored: sum(({ isStored }) => isStored !== true),
        provisional: sum(({ isProvisional }) => isProvisional === true),
        restored: sum(({ isRestored }) => isRestored === true),
        capacity: holds.reduce((most, { capacity = 0 }) => Math.max(most, capacity), 0),
        rate: expect.objectContaining({
          units: holds.reduce((all, { rate }) => all + (rate?.units ?? 0), 0),
        }),
      });
      expect(usesOf(SLOW, holds)).toMatchObject({
        endsMs: holds.map(({ expiresAtMs }) => expiresAtMs),
        units: holds.map(({ units }) => units),
      });
      expect(holds).toEqual(holds.toSorted((a, b) => a.expiresAtMs - b.expiresAtMs));
      for (const hold of holds) expect(holdWith(holds, hold.id)).toBe(hold);
    }),
  );
});
