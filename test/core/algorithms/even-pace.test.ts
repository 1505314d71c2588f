/** Buckets of a full log: what leaves it when one begins, and what it gets back when one ends. */
import fc from "fast-check";
import { expect, test } from "vitest";
import {
  add,
  addEvenly,
  atEvenPace,
  begin,
  countedAt,
  type UnitLog,
  withoutUnits,
} from "../../../core/algorithms/log/unit-log.ts";

const WINDOW_MS = 200;
const START_MS = 1_000;
/** How long after the run before, and units; those of every third run are returned by name, which leaves a hole. */
const RUNS = fc.array(fc.tuple(fc.nat(60), fc.integer({ min: 1, max: 40 })), { minLength: 1, maxLength: 40 });

function logOf(runs: readonly (readonly [number, number])[]): {
  readonly log: UnitLog;
  readonly nowMs: number;
} {
  let [log, atMs] = [begin(START_MS), START_MS];
  for (const [index, [laterMs, units]] of runs.entries()) {
    atMs += laterMs;
    log = add(log, WINDOW_MS, atMs, units, Infinity);
    if (index % 3 === 2) log = withoutUnits(log, WINDOW_MS, atMs, Math.ceil(units / 2), atMs);
  }
  return { log, nowMs: atMs + 1 };
}

const instants = (nowMs: number) => Array.from({ length: WINDOW_MS + 1 }, (_, ms) => nowMs + ms);

test("what leaves the log and what its bucket admits meanwhile are never more than what is held for the bucket", () => {
  fc.assert(
    fc.property(RUNS, fc.integer({ min: 0, max: 500 }), (runs, held) => {
      const { log, nowMs } = logOf(runs);
      const after = withoutUnits(log, WINDOW_MS, nowMs, atEvenPace(log, WINDOW_MS, nowMs, held));
      for (const atMs of instants(nowMs)) {
        const left = countedAt(log, WINDOW_MS, atMs) - countedAt(after, WINDOW_MS, atMs);
        expect(left + (held * (atMs - nowMs)) / WINDOW_MS).toBeLessThanOrEqual(held);
      }
    }),
  );
});

test("of a steady load all but the last steps leaves the log at once", () => {
  const { log, nowMs } = logOf(Array.from({ length: 200 }, () => [1, 4] as const));
  expect(atEvenPace(log, WINDOW_MS, nowMs, countedAt(log, WINDOW_MS, nowMs))).toBeGreaterThan(0.9 * 4 * 130);
  const burst = logOf([[0, 500]]);
  expect(atEvenPace(burst.log, WINDOW_MS, burst.nowMs, 500)).toBeLessThan(20);
});

test("what a bucket gives up counts as long as it can have used it, and comes back bit by bit", () => {
  fc.assert(
    fc.property(RUNS, fc.integer({ min: 1, max: 500 }), fc.nat(499), (runs, perWindow, lacking) => {
      const { log, nowMs } = logOf(runs);
      const units = Math.max(1, perWindow - lacking);
      const after = addEvenly(log, WINDOW_MS, nowMs, { units, perWindow });
      expect(after.sinceMs).not.toBe(log.sinceMs);
      for (const atMs of instants(nowMs)) {
        const more = countedAt(after, WINDOW_MS, atMs) - countedAt(log, WINDOW_MS, atMs);
        // At its pace it may have admitted so much of that since then.
        const most = Math.min(units, perWindow * (1 - (atMs - nowMs) / WINDOW_MS));
        expect(more).toBeGreaterThanOrEqual(Number(most.toFixed(9)));
        expect(more).toBeLessThanOrEqual(most + units / 32 + perWindow / WINDOW_MS + 1);
      }
    }),
  );
});

test("two buckets that end in one millisecond both count: a log is known by when it began", () => {
  const { log, nowMs } = logOf([[5, 3]]);
  const endedWith = (before: UnitLog, units: number) =>
    addEvenly(before, WINDOW_MS, nowMs, { units, perWindow: units });
  const twice = endedWith(endedWith(log, 100), 50);
  expect(countedAt(twice, WINDOW_MS, nowMs)).toBe(153);
});
