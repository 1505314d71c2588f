import fc from "fast-check";
import { expect, test } from "vitest";
import { mostInWindow, worstExcess, type AdmittedCall, type Bucket } from "./interval-bound.ts";

/** The same excess, found by checking every pair of instants. */
function naive(calls: readonly AdmittedCall[], { limit, windowMs, burst }: Bucket): number {
  let worst = -Infinity;
  for (const { sentAtMs: from } of calls) {
    for (const { receivedAtMs: to } of calls) {
      const within = calls.filter(({ sentAtMs, receivedAtMs }) => sentAtMs >= from && receivedAtMs <= to);
      if (within.length === 0) continue;
      const units = within.reduce((sum, call) => sum + call.units, 0);
      worst = Math.max(worst, units * windowMs - burst * windowMs - limit * (to - from));
    }
  }
  return worst / windowMs;
}

const calls = fc.array(
  fc
    .record({ sentAtMs: fc.nat(60), tookMs: fc.nat(15), units: fc.integer({ min: 1, max: 6 }) })
    .map(({ sentAtMs, tookMs, units }) => ({ sentAtMs, receivedAtMs: sentAtMs + tookMs, units })),
  { minLength: 1, maxLength: 25 },
);
const buckets = fc.record({
  limit: fc.integer({ min: 1, max: 9 }),
  windowMs: fc.integer({ min: 1, max: 20 }),
  burst: fc.integer({ min: 1, max: 30 }),
});

test("it finds exactly what looking at every interval finds", () => {
  fc.assert(
    fc.property(calls, buckets, (admitted, bucket) => {
      expect(worstExcess(admitted, bucket)).toBeCloseTo(naive(admitted, bucket), 9);
    }),
    { numRuns: 2_000 },
  );
});

test("one unit too many is found, and the bound itself is not", () => {
  const bucket = { limit: 10, windowMs: 1_000, burst: 5 };
  const at = (ms: number) => ({ sentAtMs: ms, receivedAtMs: ms, units: 1 });
  const kept = [0, 0, 0, 0, 0, 100, 200].map(at);
  expect(worstExcess(kept, bucket)).toBe(0);
  expect(worstExcess([...kept, at(299)], bucket)).toBeCloseTo(0.01, 9);
  expect(worstExcess([...kept, at(200)], bucket)).toBe(1);
});

test("the most within one window counts what is surely in it, and not what may lie outside", () => {
  const call = (sentAtMs: number, receivedAtMs: number, units = 1) => ({ sentAtMs, receivedAtMs, units });
  expect(mostInWindow([call(0, 1, 2), call(5, 6, 3), call(9, 9)], 10)).toBe(6);
  // Received at 10: it may have been decided then, which is the next window.
  expect(mostInWindow([call(0, 1, 2), call(5, 6, 3), call(9, 10)], 10)).toBe(5);
  expect(mostInWindow([], 10)).toBe(0);
});
