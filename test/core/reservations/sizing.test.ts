import fc from "fast-check";
import { expect, test } from "vitest";
import {
  grantedTogether,
  heldMs,
  isSpare,
  lifetimeMs,
  lowUnits,
  maxUnits,
  quietMs,
  refillMs,
  spendableMs,
  wantedUnits,
  type Wish,
} from "../../../core/reservations/sizing.ts";
import { depth } from "../../support/depth.ts";

const demands = fc.record({
  calls: fc.nat(100_000),
  units: fc.array(fc.nat(1_000_000), { minLength: 1, maxLength: 3 }),
  sinceMs: fc.nat(100_000),
});
const lifetimes = fc
  .tuple(fc.integer({ min: 1, max: 20_000 }), fc.integer({ min: 1, max: 20_000 }))
  .map(([one, other]) => ({ leastMs: Math.min(one, other), mostMs: Math.max(one, other) }));

test("never more than four times what was asked for is wanted, and nothing where nothing was", () => {
  fc.assert(
    fc.property(
      demands,
      fc.integer({ min: -1_000, max: 100_000 }),
      lifetimes,
      (demand, elapsedMs, allowed) => {
        const nowMs = demand.sinceMs + elapsedMs;
        const wanted = wantedUnits(demand, nowMs, lifetimeMs(demand, nowMs, allowed));
        expect(wanted).toHaveLength(demand.units.length);
        for (const [index, units] of wanted.entries()) {
          const asked = demand.units[index] ?? 0;
          expect(Number.isInteger(units)).toBe(true);
          expect(units).toBeGreaterThanOrEqual(Math.min(asked, 1));
          expect(units).toBeLessThanOrEqual(4 * asked);
        }
      },
    ),
  );
});

test("a lifetime is eight calls long, within what the policy allows", () => {
  fc.assert(
    fc.property(
      demands,
      fc.integer({ min: -1_000, max: 100_000 }),
      lifetimes,
      (demand, elapsedMs, allowed) => {
        const ttlMs = lifetimeMs(demand, demand.sinceMs + elapsedMs, allowed);
        expect(ttlMs).toBeGreaterThanOrEqual(allowed.leastMs);
        expect(ttlMs).toBeLessThanOrEqual(allowed.mostMs);
      },
    ),
  );
  const atPace = (gapMs: number) =>
    lifetimeMs({ calls: 10, units: [10], sinceMs: 0 }, 10 * gapMs, { leastMs: 1_000, mostMs: 20_000 });
  expect([1, 100, 200, 1_000, 2_000, 10_000].map(atPace)).toEqual([
    1_000, 1_000, 1_600, 8_000, 16_000, 20_000,
  ]);
});

test("a lifetime is eight round trips at least, within what the policy allows, and units are asked for one and a half before", () => {
  const hot = { calls: 1_000, units: [1_000], sinceMs: 0 };
  const allowed = { leastMs: 1_000, mostMs: 8_000 };
  expect([0, 1, 125, 280, 2_000].map((tripMs) => lifetimeMs(hot, 1_000, allowed, tripMs))).toEqual([
    1_000, 1_000, 1_000, 2_240, 8_000,
  ]);
  expect([0, 60, 280].map((tripMs) => lowUnits(10_000, 1_000, 1_000, tripMs))).toEqual([100, 100, 420]);
  // The units that are left when it asks last until the answer comes.
  for (let tripMs = 125; tripMs < 1_000; tripMs += 25) {
    const ttlMs = lifetimeMs(hot, 1_000, allowed, tripMs);
    expect(spendableMs(ttlMs) - refillMs(ttlMs)).toBeGreaterThanOrEqual(1.4 * tripMs);
  }
});

test("who has units renews them before their end, stops before it, and the object lets go after it", () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 20_000 }), (ttlMs) => {
      expect(refillMs(ttlMs)).toBeLessThan(spendableMs(ttlMs));
      expect(spendableMs(ttlMs)).toBeLessThan(ttlMs);
      expect(heldMs(ttlMs)).toBeGreaterThanOrEqual(ttlMs);
    }),
  );
});

test("the mark of few units is half of them at most, and what a tenth of a second uses where that is less", () => {
  expect(lowUnits(100, 1_000, 1_000)).toBe(50);
  expect(lowUnits(1_000, 1_000, 1_000)).toBe(100);
  expect(lowUnits(1, 10, 0)).toBe(0);
});

test("only a thirty-second of what is free is spared for longer", () => {
  expect([0, 31, 32].map((units) => isSpare(units, 1_000))).toEqual([true, true, false]);
});

const wishes = fc.record({
  wanted: fc.nat(5_000),
  kept: fc.oneof(fc.constant(0), fc.nat(200)),
  free: fc.nat(5_000),
  max: fc.double({ min: 0, max: 1_250, noNaN: true }),
  heldByOthers: fc.nat(2_000),
  wantedByOthers: fc.nat(20_000),
  isShort: fc.boolean(),
});

test("a grant is never more than is free, than is missing, or than one holder may have with what is kept", () => {
  fc.assert(
    fc.property(fc.array(wishes, { minLength: 1, maxLength: 4 }), (several) => {
      for (const [index, units] of grantedTogether(several).entries()) {
        const { wanted, kept, free, max } = several[index] as Wish;
        expect(Number.isInteger(units)).toBe(true);
        expect(units).toBeGreaterThanOrEqual(0);
        expect(units).toBeLessThanOrEqual(free);
        expect(units).toBeLessThanOrEqual(Math.max(0, wanted - kept));
        if (units > 0) expect(units + kept).toBeLessThanOrEqual(max);
      }
    }),
    { numRuns: depth(400, 2_000) },
  );
});

test("all rules get the same part of what they miss, and that which has least gets all it would alone", () => {
  fc.assert(
    fc.property(fc.array(wishes, { minLength: 2, maxLength: 4 }), (several) => {
      const missing = several.map(({ wanted, kept }) => Math.max(0, wanted - kept));
      const together = grantedTogether(several);
      const alone = several.map((wish) => grantedTogether([wish])[0]);
      const wanting = [...missing.keys()].filter((index) => missing[index] !== 0);
      for (const one of wanting)
        for (const other of wanting) {
          const [mine = 0, theirs = 0] = [together[one], together[other]];
          // Rounded down, each of them.
          expect(mine / (missing[one] ?? 0)).toBeLessThan((theirs + 1.001) / (missing[other] ?? 0));
        }
      if (wanting.length > 0) expect(wanting.some((index) => together[index] === alone[index])).toBe(true);
    }),
    { numRuns: depth(400, 2_000) },
  );
});

test("rounding loses no unit, whatever part of what is wanted it is", () => {
  const wish = { kept: 0, free: 2, max: 6_250, heldByOthers: 0, wantedByOthers: 0, isShort: false };
  const lost = Array.from({ length: 2_000 }, (_, index) => index + 1).filter(
    (wanted) => grantedTogether([{ ...wish, wanted }])[0] !== 1,
  );
  expect(lost).toEqual([]);
});

/** Holders that want as much as each other bring back all they have and ask again, one after another. */
function askInTurn(
  holders: number,
  rounds: number,
  wanted: number,
  total: number,
  capacity: number,
): number[] {
  const held = Array.from({ length: holders }, () => 0);
  const asked = new Set<number>();
  for (let turn = 0; turn < rounds * holders; turn += 1) {
    const who = turn % holders;
    held[who] = 0;
    const heldByOthers = held.reduce((sum, units) => sum + units, 0);
    const free = total - heldByOthers;
    const wantedByOthers = wanted * (asked.has(who) ? asked.size - 1 : asked.size);
    const wish = { wanted, kept: 0, free, max: capacity / 16, heldByOthers, wantedByOthers, isShort: false };
    held[who] = grantedTogether([wish])[0] ?? 0;
    asked.add(who);
    expect(heldByOthers + (held[who] ?? 0)).toBeLessThanOrEqual(total);
  }
  return held;
}

const crowds = fc.record({
  holders: fc.integer({ min: 1, max: 40 }),
  wanted: fc.integer({ min: 1, max: 3_000 }),
  capacity: fc.integer({ min: 32, max: 20_000 }),
  freeShare: fc.double({ min: 0, max: 1, noNaN: true }),
});

test("holders that want equally and ask in turn get alike, a share is left, and never more than there is", () => {
  fc.assert(
    fc.property(crowds, ({ holders, wanted, capacity, freeShare }) => {
      const total = Math.floor(capacity * freeShare);
      const held = askInTurn(holders, 3, wanted, total, capacity);
      expect(Math.max(...held) - Math.min(...held)).toBeLessThanOrEqual(1);
      const fair = Math.min(wanted, Math.floor(total / (holders + 1)), Math.floor(capacity / 16));
      expect(Math.abs((held[0] ?? 0) - fair)).toBeLessThanOrEqual(1);
    }),
  );
});

test("near exhaustion, when there is less than a unit for each and one more, a grant is 0", () => {
  fc.assert(
    fc.property(crowds, ({ holders, wanted, capacity }) => {
      expect(new Set(askInTurn(holders, 2, wanted, Math.min(holders, capacity), capacity))).toEqual(
        new Set([0]),
      );
    }),
  );
  const lone = { wanted: 10, kept: 0, free: 1, max: 62.5, heldByOthers: 0, wantedByOthers: 0 };
  expect(grantedTogether([{ ...lone, isShort: false }])).toEqual([0]);
  expect(grantedTogether([{ ...lone, isShort: true }])).toEqual([1]);
});

test("a holder has no more than a sixteenth of a limit, and no more than comes back soon", () => {
  const most = (units: number, windowMs: number) => maxUnits({ capacity: units, quota: { units, windowMs } });
  expect([16, 1_000, 1_000_000].map((units) => most(units, 1_000))).toEqual([1, 62.5, 62_500]);
  expect([1, 1_000, 1_000_000].map((units) => most(units, 30 * 86_400_000))).toEqual([0.001, 1, 1_000]);
  expect(most(6_000, 3_600_000)).toBeCloseTo(16.7, 1);
});

test("of what may be less than two units nothing is reserved", () => {
  fc.assert(
    fc.property(wishes, fc.double({ min: 0, max: 1.99, noNaN: true }), (wish, most) => {
      expect(grantedTogether([{ ...wish, max: most }])).toEqual([0]);
    }),
  );
});

test("few holders are not told to be quiet; many for one message of each and a unit for each, and for 4 s at most", () => {
  fc.assert(
    fc.property(fc.nat(5_000), fc.double({ min: 0, max: 100, noNaN: true }), (holders, unitMs) => {
      const ms = quietMs(holders, unitMs);
      // 800 messages a second.
      const leastMs = holders < 8 ? 0 : Math.min(4_000, Math.max(holders / 0.8, holders * unitMs));
      expect(ms).toBeGreaterThanOrEqual(leastMs);
      expect(ms).toBeLessThanOrEqual(holders < 8 ? 0 : 4_000);
    }),
  );
});
