import fc from "fast-check";
import { expect, test } from "vitest";
import { windowExcess } from "../../scripts/verify/window-bound.ts";
import type { AdmittedCall } from "../support/interval-bound.ts";

const at = (ms: number, units = 1): AdmittedCall => ({ sentAtMs: ms, receivedAtMs: ms, units });

test("what windows admit, wherever they begin and whatever their length, keeps to the bound", () => {
  const histories = fc.record({
    limit: fc.integer({ min: 1, max: 5 }),
    shortestMs: fc.integer({ min: 1, max: 20 }),
    offsetMs: fc.nat(30),
    longer: fc.array(fc.nat(15), { maxLength: 6 }),
    asked: fc.array(fc.record({ atMs: fc.nat(100), tookMs: fc.nat(9), decided: fc.nat(9) }), {
      maxLength: 40,
    }),
  });
  fc.assert(
    fc.property(histories, ({ limit, shortestMs, offsetMs, longer, asked }) => {
      const ends = [offsetMs];
      for (const more of longer) ends.push((ends.at(-1) ?? 0) + shortestMs + more);
      const used = new Map<number, number>();
      const admitted = asked.flatMap(({ atMs, tookMs, decided }) => {
        const decidedAtMs = atMs + Math.min(decided, tookMs);
        const window = ends.filter((end) => end <= decidedAtMs).length;
        const units = (used.get(window) ?? 0) + 1;
        if (units > limit) return [];
        used.set(window, units);
        return [{ sentAtMs: atMs, receivedAtMs: atMs + tookMs, units: 1 }];
      });
      expect(windowExcess(admitted, limit, shortestMs)).toBe(0);
    }),
    { numRuns: 2_000 },
  );
});

test("one unit too many is found, and by how many it is too many", () => {
  const twoWindows = [at(0, 5), at(99, 5)];
  expect(windowExcess(twoWindows, 5, 100)).toBe(0);
  expect(windowExcess([...twoWindows, at(50)], 5, 100)).toBe(1);
  // Whichever way it is cut, a window of 100 ms has both of the first or both of the last.
  expect(windowExcess([at(0, 5), at(60, 5), at(110, 5)], 5, 100)).toBe(0);
  expect(windowExcess([at(0, 5), at(40, 5), at(90, 5)], 5, 100)).toBe(5);
  expect(windowExcess([at(0, 12)], 5, 100)).toBe(7);
  expect(windowExcess([], 5, 100)).toBe(0);
});

test("a call that may have been decided in the next window does not count", () => {
  expect(windowExcess([at(0, 5), at(50, 5), at(90, 5)], 5, 100)).toBe(5);
  // Windows may have changed while it was under way: then it was in the one or in the other, and nobody knows in which.
  const underWay = { sentAtMs: 40, receivedAtMs: 60, units: 5 };
  expect(windowExcess([at(0, 5), underWay, at(90, 5)], 5, 100)).toBe(0);
  // The last one too.
  expect(windowExcess([at(35), at(38), { sentAtMs: 53, receivedAtMs: 57, units: 1 }], 1, 19)).toBe(0);
});
