import fc from "fast-check";
import { expect, test } from "vitest";
import { HolderClock } from "../../../core/clock.ts";
import { marginMs, MAX_MARGIN_MS } from "../../../core/reservations/sizing.ts";

const TTL_MS = 1_000;
const MARGIN_MS = marginMs(TTL_MS);

test("however requests' readings jitter within the margin, nothing jumps, and no lifetime is longer than the object's", () => {
  fc.assert(
    fc.property(
      fc.array(fc.record({ passMs: fc.nat(400), behindMs: fc.nat(MARGIN_MS) }), { minLength: 2 }),
      fc.nat(30),
      (readings, asksAt) => {
        const clock = new HolderClock(MAX_MARGIN_MS);
        clock.hold(MARGIN_MS);
        let [trueMs, beganMs] = [10_000, Infinity];
        let askedMs = Infinity;
        for (const [index, { passMs, behindMs }] of readings.entries()) {
          trueMs += passMs;
          const readMs = trueMs - behindMs;
          expect(clock.read(readMs)).toBe(false);
          if (index === asksAt) [beganMs, askedMs] = [trueMs, Math.min(readMs, clock.latestMs)];
          if (clock.latestMs < askedMs + TTL_MS - MARGIN_MS) expect(trueMs).toBeLessThan(beganMs + TTL_MS);
        }
      },
    ),
  );
});

test("a clock that is put back by more than the margin is a jump, and the next reading counts from there", () => {
  const clock = new HolderClock(MAX_MARGIN_MS);
  clock.hold(MARGIN_MS);
  expect([10_000, 10_000 - MARGIN_MS, 10_000 - MARGIN_MS - 1].map((readMs) => clock.read(readMs))).toEqual([
    false,
    false,
    true,
  ]);
  expect(clock.latestMs).toBe(10_000 - MARGIN_MS - 1);
  expect(clock.read(10_000)).toBe(false);
});

test("the shortest lifetime that is held says how much is a jump", () => {
  const clock = new HolderClock(MAX_MARGIN_MS);
  clock.hold(marginMs(40));
  clock.hold(marginMs(8_000));
  clock.read(10_000);
  expect(clock.read(10_000 - marginMs(40) - 1)).toBe(true);
});
