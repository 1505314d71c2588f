/** A holder's bucket of a log or window: what it admits in any window, and that little of its rate is lost. */
import { expect, test } from "vitest";
import { RATE_WINDOWS } from "../../../core/algorithms/token-bucket.ts";
import { OwnBuckets } from "../../../core/reservations/own-buckets.ts";
import { burstIfFull, MAX_MARGIN_MS } from "../../../core/reservations/sizing.ts";
import { announcedSeed, seededRandom, whole } from "../../support/random.ts";

const WINDOW_MS = 2_000;

function start(most: number, inWindow: number) {
  const rate = { units: inWindow * RATE_WINDOWS, windowMs: RATE_WINDOWS * WINDOW_MS, isHeld: true } as const;
  const bucket = new OwnBuckets({ log: { rate, most } }, ["log"], [0], 0);
  const units = [0];
  return (nowMs: number): boolean => {
    bucket.refill(units, nowMs);
    const [left = 0] = units;
    if (left === 0) return false;
    units[0] = left - 1;
    return true;
  };
}

test("in no window it admits more than its rate and twice its burst, also when its clock is set forward once", () => {
  const random = seededRandom(announcedSeed("own buckets"));
  for (let history = 0; history < 400; history += 1) {
    const [most, inWindow] = [1 + whole(random, 4), 1 + whole(random, 90)];
    const spend = start(most, inWindow + 0.999);
    const [jumpsAtMs, paceMs] = [1_000 + whole(random, 3_000), 1 + whole(random, 300)];
    const admittedAtMs: number[] = [];
    for (let nowMs = 0; nowMs < 6_000; nowMs += 1 + whole(random, paceMs)) {
      // Some come just before the jump and just after it, when the bucket may be full.
      for (const atMs of nowMs < jumpsAtMs && jumpsAtMs < nowMs + paceMs ? [nowMs, jumpsAtMs] : [nowMs])
        while (spend(atMs + (atMs < jumpsAtMs ? 0 : MAX_MARGIN_MS))) admittedAtMs.push(atMs);
    }
    const mostInWindow = Math.max(
      ...admittedAtMs.map(
        (fromMs) => admittedAtMs.filter((ms) => ms >= fromMs && ms < fromMs + WINDOW_MS).length,
      ),
    );
    expect(mostInWindow).toBeLessThanOrEqual(2 * most + inWindow);
  }
});

test.each([60, 1_000, 1_980])("of %d units in 2 s many calls find nearly all", (inWindow) => {
  const random = seededRandom(announcedSeed("many calls"));
  const { most } = burstIfFull(inWindow, 10 * inWindow, WINDOW_MS);
  const spend = start(most, inWindow);
  let admitted = 0;
  for (let nowMs = 0; nowMs < 30 * WINDOW_MS; nowMs += 1)
    for (let calls = (10 * inWindow) / WINDOW_MS; random() < calls; calls -= 1)
      if (spend(nowMs)) admitted += 1;
  expect(admitted).toBeGreaterThan(0.98 * 30 * inWindow);
});
