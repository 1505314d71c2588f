import * as fc from "fast-check";
import { expect, test } from "vitest";
import {
  advanced,
  chanceOf,
  KNOWN_FOR_MS,
  reported,
  restoredInMs,
  sheddingNothing,
  utilizationOf,
  type SheddingState,
} from "../../../core/shedding/load-shedder.ts";

const SHED = { good: 0.7, bad: 0.8, afterMs: 28_000, overMs: 120_000, by: "reports" } as const;
const PRIORITIES = { names: ["critical", "high", "normal", "low"], usual: "normal" };

/** The states when machines report these utilizations, one a second, from an instant on. */
function states(utilizations: readonly number[], from: SheddingState = sheddingNothing(0)): SheddingState[] {
  const all = [from];
  for (const sum of utilizations) {
    const last = all.at(-1) ?? from;
    all.push(reported(SHED, PRIORITIES, last, { sum, count: 1 }, last.atMs + 1_000));
  }
  return all;
}
const times = (count: number, utilization: number) => Array.from({ length: count }, () => utilization);
const after = (utilizations: readonly number[], from?: SheddingState) =>
  states(utilizations, from).at(-1) ?? sheddingNothing(0);

test("trouble that does not last sheds nothing; then it takes `over` to shed one priority", () => {
  expect(after(times(29, 0.95)).level).toBe(0);
  expect(after(times(29 + 12, 0.95)).level).toBeCloseTo(0.1, 6);
  expect(after(times(29 + 120, 0.95)).level).toBeCloseTo(1, 6);
  expect(after(times(29 + 12, 0.8)).level).toBe(0);
});

test("between good and bad it rests, and below good it comes back as slowly", () => {
  const shed = after(times(29 + 120, 0.95));
  const rested = after(times(600, 0.75), { ...shed, sum: 0.75, count: 1 });
  expect(rested.level).toBeCloseTo(shed.level, 6);
  const good = { ...shed, sum: 0.5, count: 1 };
  expect(after(times(60, 0.5), good).level).toBeCloseTo(0.5, 6);
  expect(after(times(121, 0.5), good).level).toBe(0);
});

test("trouble is over when it was good: then it has to last anew", () => {
  const trouble = after(times(20, 0.95));
  const paused = after(times(30, 0.75), { ...trouble, sum: 0.75, count: 1 });
  expect(paused.troubleMs).toBe(trouble.troubleMs);
  const over = after([0.2], { ...trouble, sum: 0, count: 0 });
  expect(after(times(2, 0.2), over).troubleMs).toBe(0);
});

test("what nobody has reported lately is not known, and what was shed comes back", () => {
  const shed = after(times(29 + 60, 0.95));
  const stillMs = shed.atMs + KNOWN_FOR_MS;
  expect(utilizationOf(shed, stillMs - 1)).toBeCloseTo(0.95, 6);
  expect(utilizationOf(shed, stillMs)).toBeUndefined();
  const atEnd = advanced(SHED, PRIORITIES, shed, stillMs);
  expect(atEnd.level).toBeGreaterThan(shed.level);
  expect(advanced(SHED, PRIORITIES, shed, stillMs + 12_000).level).toBeCloseTo(atEnd.level - 0.1, 6);
  expect(advanced(SHED, PRIORITIES, shed, stillMs + 10_000_000).level).toBe(0);
});

test("the least important are shed first, and the most important never", () => {
  const chances = (level: number) => PRIORITIES.names.map((name) => chanceOf(PRIORITIES, level, name));
  expect(chances(0)).toEqual([0, 0, 0, 0]);
  expect(chances(0.25)).toEqual([0, 0, 0, 0.25]);
  expect(chances(1.5)).toEqual([0, 0, 0.5, 1]);
  expect(chances(3)).toEqual([0, 1, 1, 1]);
  expect(chanceOf(PRIORITIES, 1.5, undefined)).toBe(0.5);
  expect(after(times(5_000, 1)).level).toBe(3);
});

const utilization = fc.double({ min: 0, max: 1, noNaN: true });
const history = fc.array(fc.record({ ms: fc.integer({ min: 0, max: 40_000 }), utilization }), {
  maxLength: 60,
});

test("it moves by at most one priority in `over`, only up when it is bad and only down when it is good", () => {
  fc.assert(
    fc.property(history, (reports) => {
      let state = sheddingNothing(0);
      for (const { ms, utilization: sum } of reports) {
        const untilMs = state.atMs + ms;
        const known = utilizationOf(state, state.atMs) ?? 0;
        const knownMs = Math.min(untilMs, Math.max(state.atMs, state.reportedAtMs + KNOWN_FOR_MS));
        const then = advanced(SHED, PRIORITIES, state, knownMs);
        expect(Math.abs(then.level - state.level)).toBeLessThanOrEqual((knownMs - state.atMs) / SHED.overMs);
        if (known <= SHED.bad) expect(then.level).toBeLessThanOrEqual(state.level);
        if (known >= SHED.good) expect(then.level).toBeGreaterThanOrEqual(state.level);
        const next = advanced(SHED, PRIORITIES, then, untilMs);
        expect(next.level).toBeLessThanOrEqual(then.level);
        expect(next.level).toBeGreaterThanOrEqual(then.level - (untilMs - knownMs) / SHED.overMs - 1e-9);
        expect(advanced(SHED, PRIORITIES, state, untilMs)).toEqual(next);
        state = reported(SHED, PRIORITIES, state, { sum, count: 1 }, untilMs);
      }
    }),
  );
});

test("it does not matter at which instants one looks, and a clock that goes backwards changes nothing", () => {
  fc.assert(
    fc.property(
      history,
      fc.integer({ min: 0, max: 60_000 }),
      fc.integer({ min: 0, max: 60_000 }),
      (reports, a, b) => {
        let state = sheddingNothing(0);
        for (const { ms, utilization: sum } of reports)
          state = reported(SHED, PRIORITIES, state, { sum, count: 1 }, state.atMs + ms);
        const [soonMs, lateMs] = [state.atMs + Math.min(a, b), state.atMs + Math.max(a, b)];
        const soon = advanced(SHED, PRIORITIES, state, soonMs);
        const inSteps = advanced(SHED, PRIORITIES, soon, lateMs);
        expect(inSteps.level).toBeCloseTo(advanced(SHED, PRIORITIES, state, lateMs).level, 9);
        expect(advanced(SHED, PRIORITIES, inSteps, state.atMs - 1)).toBe(inSteps);
      },
    ),
  );
});

test("the promised instant is exact: until then some calls are shed, from then on none", () => {
  fc.assert(
    fc.property(
      fc.double({ min: 0, max: 3, noNaN: true }),
      fc.constantFrom(...PRIORITIES.names),
      (level, name) => {
        const ms = restoredInMs(SHED, PRIORITIES, level, name);
        const state = { ...sheddingNothing(0), level };
        const chanceAt = (atMs: number) =>
          chanceOf(PRIORITIES, advanced(SHED, PRIORITIES, state, atMs).level, name);
        expect(chanceAt(ms)).toBeLessThan(1e-9);
        if (ms > 0) expect(chanceAt(ms - 1)).toBeGreaterThan(0);
      },
    ),
  );
});
