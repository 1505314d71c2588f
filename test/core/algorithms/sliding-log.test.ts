import fc from "fast-check";
import { describe, expect, test } from "vitest";
import type { Segment } from "../../../core/algorithms/algorithm.ts";
import { slidingLog, type SlidingLogConfig } from "../../../core/algorithms/log/sliding-log.ts";
import type { UnitLog as SlidingLogState } from "../../../core/algorithms/log/unit-log.ts";
import { depth } from "../../support/depth.ts";
import { NaiveLog } from "../../support/naive-windows.ts";

const configure = (fields: Record<string, number | boolean>): SlidingLogConfig => {
  const config = slidingLog.configure(fields);
  if ("problem" in config) throw new Error(JSON.stringify(config));
  return config;
};

type State = SlidingLogState | undefined;

/** Takes units that have to fit. */
function taken(config: SlidingLogConfig, state: State, nowMs: number, cost: number): State {
  const decision = slidingLog.decide(config, state, nowMs, cost, 0);
  if (!decision.allowed) throw new Error(`${cost} at ${nowMs} should pass`);
  return decision.state;
}

test("the example of the essay: units at 0, 400 and 900 ms of 3 per second", () => {
  const config = configure({ limit: 3, window: 1_000 });
  const state = [0, 400, 900].reduce<State>((log, nowMs) => taken(config, log, nowMs, 1), undefined);
  expect(slidingLog.decide(config, state, 950, 1, 0)).toMatchObject({ allowed: false, retryAfterMs: 50 });
  expect(slidingLog.decide(config, state, 950, 2, 0)).toMatchObject({ allowed: false, retryAfterMs: 450 });
  expect(slidingLog.decide(config, state, 1_000, 1, 0)).toMatchObject({ allowed: true, remaining: 0 });
});

test("a window's edge is no way around: limit at its end and limit after it are refused", () => {
  const config = configure({ limit: 5, window: 1_000 });
  const state = taken(config, undefined, 999, 5);
  expect(slidingLog.decide(config, state, 1_000, 1, 0).allowed).toBe(false);
  expect(slidingLog.decide(config, state, 1_998, 1, 0).allowed).toBe(false);
  expect(slidingLog.decide(config, state, 1_999, 5, 0).allowed).toBe(true);
});

const step = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.nat(3), fc.nat(120), fc.nat(1_500)),
  units: fc.oneof(fc.constant(1), fc.nat(14)),
  kind: fc.oneof(
    { weight: 8, arbitrary: fc.constant("take" as const) },
    { weight: 2, arbitrary: fc.constant("uncharge" as const) },
    fc.constantFrom("debit" as const, "credit" as const, "store" as const),
  ),
});
const fields = fc.record({
  limit: fc.integer({ min: 1, max: 12 }),
  window: fc.integer({ min: 1, max: 400 }),
  minInterval: fc.constantFrom(1, 7, 90, undefined),
  countDenied: fc.boolean(),
});

test("every history is decided as a list of units would be: whether, how much is left, how long to wait", () => {
  fc.assert(
    fc.property(fields, fc.array(step, { maxLength: 60 }), ({ minInterval, ...given }, steps) => {
      const config = configure(minInterval === undefined ? given : { ...given, minInterval });
      const naive = new NaiveLog(config);
      let [state, nowMs] = [undefined as State, 1_000_000];
      const instants: number[] = [];
      for (const { afterMs, units, kind } of steps) {
        nowMs += afterMs;
        instants.push(nowMs);
        if (kind === "debit") {
          state = slidingLog.debit(config, state, nowMs, units);
          naive.debit(nowMs, units);
        } else if (kind === "credit") {
          state = slidingLog.credit(config, state, nowMs, units);
          naive.credit(nowMs, units);
        } else if (kind === "uncharge") {
          const atMs = instants[(afterMs * 7 + units) % instants.length] ?? nowMs;
          state = slidingLog.credit(config, state, nowMs, units, atMs);
          naive.uncharge(nowMs, units, atMs);
        } else if (kind === "store") {
          state = storedAndRead(config, state, nowMs);
        } else {
          const decision = slidingLog.decide(config, state, nowMs, units, 0);
          const expected = naive.decide(nowMs, units);
          const { allowed } = decision;
          const { remaining, quotaRemaining, retryAfterMs, reason } = decision.allowed
            ? { ...decision, retryAfterMs: 0, reason: "ok" }
            : (decision.counted ?? decision);
          expect({ allowed, remaining, quotaRemaining, retryAfterMs, reason }).toEqual(expected);
          state = decision.allowed ? decision.state : (decision.counted?.state ?? state);
        }
      }
    }),
    { numRuns: depth(1_000, 5_000) },
  );
});

function storedAndRead(config: SlidingLogConfig, state: State, nowMs: number): State {
  if (state === undefined) return undefined;
  const { record, segment } = structuredClone(slidingLog.pack(config, state, nowMs, undefined));
  return slidingLog.unpack(config, record, segment === undefined ? [] : [segment]);
}

describe("units that are given back by name", () => {
  const config = configure({ limit: 1_000, window: 1_000 });
  /** One unit at each of these instants. */
  const logOf = (count: number): State =>
    Array.from({ length: count }).reduce<State>((log, _, nowMs) => taken(config, log, nowMs, 1), undefined);

  test("go where they were logged: older units go on counting, and leave when they do", () => {
    let state = slidingLog.debit(config, taken(config, undefined, 0, 600), 500, 400);
    state = slidingLog.credit(config, state, 600, 150, 500);
    expect(slidingLog.decide(config, state, 600, 0, 0)).toMatchObject({ remaining: 150, resetAfterMs: 900 });
    expect(slidingLog.decide(config, state, 999, 151, 0)).toMatchObject({ allowed: false, retryAfterMs: 1 });
    expect(slidingLog.decide(config, state, 1_000, 0, 0)).toMatchObject({ remaining: 750 });
    state = slidingLog.credit(config, state, 1_000, 600, 0);
    expect(slidingLog.decide(config, state, 1_000, 0, 0)).toMatchObject({ remaining: 750 });
    state = slidingLog.credit(config, state, 1_499, 999, 500);
    expect(slidingLog.decide(config, state, 1_499, 0, 0)).toMatchObject({
      remaining: 1_000,
      resetAfterMs: 0,
    });
  });

  test("stay given back when the log is read from a record and segments that are older", () => {
    const before = logOf(200) as SlidingLogState;
    const { record, segment } = slidingLog.pack(config, before, 199, undefined);
    const state = slidingLog.credit(config, before, 300, 1, 100) as SlidingLogState;
    const later = slidingLog.pack(config, state, 300, record);
    expect([segment?.entries.length, later.segment]).toEqual([2 * 199, undefined]);
    const read = slidingLog.unpack(config, structuredClone(later.record), segment ? [segment] : []);
    expect(slidingLog.decide(config, read, 1_099, 0, 0)).toMatchObject({ remaining: 1_000 - 99 });
    expect(slidingLog.decide(config, read, 1_100, 0, 0)).toMatchObject({ remaining: 1_000 - 99 });
    expect(slidingLog.decide(config, read, 1_101, 0, 0)).toMatchObject({ remaining: 1_000 - 98 });
  });

  test("never make a record large: beyond 64 holes the oldest units go, which frees as many and leaves none too many", () => {
    let state = logOf(400);
    for (let atMs = 201; atMs < 400; atMs += 2) state = slidingLog.credit(config, state, 400, 1, atMs);
    expect(slidingLog.decide(config, state, 400, 0, 0)).toMatchObject({ remaining: 700 });
    expect(state?.holes).toHaveLength(128);
    // 36 of the oldest went instead of 36 of the youngest.
    expect(slidingLog.decide(config, state, 1_035, 0, 0)).toMatchObject({ remaining: 700 });
    expect(slidingLog.decide(config, state, 1_036, 0, 0)).toMatchObject({ remaining: 701 });
    expect(slidingLog.decide(config, state, 1_398, 0, 0)).toMatchObject({ remaining: 999 });
  });
});

describe("minInterval", () => {
  const config = configure({ limit: 5, window: 1_000, minInterval: 100 });
  const state = taken(config, undefined, 0, 1);

  test("a call sooner than that is refused with its own reason and its exact wait", () => {
    const denied = { allowed: false, reason: "min-interval", retryAfterMs: 1, remaining: 0 };
    expect(slidingLog.decide(config, state, 99, 1, 0)).toMatchObject(denied);
    expect(slidingLog.decide(config, state, 100, 1, 0).allowed).toBe(true);
  });

  test("units that are held count from when they were set apart, not from when they were used", () => {
    const held = slidingLog.noteHold?.(config, undefined, 0);
    expect(slidingLog.decide(config, held, 99, 1, 1).allowed).toBe(false);
    const settled = slidingLog.debit(config, held, 90, 1);
    expect(slidingLog.decide(config, settled, 100, 1, 0).allowed).toBe(true);
  });
});

describe("countDenied", () => {
  const config = configure({ limit: 2, window: 1_000, countDenied: true });

  test("who keeps hammering stays refused, who pauses for a window passes", () => {
    let state = taken(config, undefined, 0, 2);
    for (let nowMs = 100; nowMs <= 5_000; nowMs += 100) {
      const decision = slidingLog.decide(config, state, nowMs, 1, 0);
      if (decision.allowed) throw new Error("a hammering client got in");
      state = decision.counted?.state;
    }
    // The latest two attempts, at 4,900 and 5,000 ms, fill the window.
    expect(slidingLog.decide(config, state, 5_899, 1, 0).allowed).toBe(false);
    expect(slidingLog.decide(config, state, 5_900, 1, 0).allowed).toBe(true);
  });

  test("a cost that never fits does not count, and neither does a look", () => {
    expect(slidingLog.decide(config, taken(config, undefined, 0, 1), 1, 3, 0)).not.toHaveProperty("counted");
    expect(slidingLog.decide(config, taken(config, undefined, 0, 2), 1, 0, 0)).toMatchObject({
      allowed: true,
    });
  });

  test("says why this call was denied, and how long from now on: the attempt begins an interval too", () => {
    const spaced = configure({ limit: 2, window: 1_000, minInterval: 100, countDenied: true });
    const full = taken(spaced, taken(spaced, undefined, 0, 1), 100, 1);
    // The quota was used up. With this attempt the wait is that for the second unit, not for the interval.
    expect(slidingLog.decide(spaced, full, 300, 1, 0)).toMatchObject({
      counted: { reason: "quota", retryAfterMs: 800, remaining: 0, quotaRemaining: 0 },
    });
    // It was too soon, and after it was counted the quota is used up.
    expect(slidingLog.decide(spaced, taken(spaced, undefined, 0, 1), 50, 1, 0)).toMatchObject({
      counted: { reason: "min-interval", retryAfterMs: 950, quotaRemaining: 0 },
    });
  });

  test("hammering for ever takes no more memory than the limit", () => {
    let state = taken(config, undefined, 0, 2);
    for (let nowMs = 1; nowMs <= 900; nowMs += 1) {
      const decision = slidingLog.decide(config, state, nowMs, 1, 0);
      state = decision.allowed ? decision.state : decision.counted?.state;
    }
    expect(state?.runs.bytes).toBeLessThan(300);
  });
});

test("a large log takes at most 16 bytes for each distinct millisecond, growing and shrinking", () => {
  const config = configure({ limit: 100_000, window: 200_000 });
  let state: State;
  let nowMs = 0;
  const expectSmall = () => {
    const runs = (state?.end ?? 0) - (state?.first ?? 0);
    expect(state?.runs.bytes ?? 0).toBeLessThanOrEqual(16 * runs + 200);
  };
  for (let count = 0; count < 100_000; count += 1) {
    nowMs += 2;
    state = taken(config, state, nowMs, 1);
    if (count % 1_000 === 0) expectSmall();
  }
  // Now it goes on ten times as slowly, and most of what there was leaves.
  for (let count = 0; count < 20_000; count += 1) {
    nowMs += 20;
    state = taken(config, state, nowMs, 1);
    if (count % 1_000 === 0) expectSmall();
  }
});

test("a large log is stored in segments that are written once, and read back as it was", () => {
  const config = configure({ limit: 10_000, window: 20_000 });
  const segments: Segment[] = [];
  let [state, record, written, nowMs] = [undefined as State, undefined as unknown, 0, 0];
  for (let count = 0; count < 5_000; count += 1) {
    nowMs += 2;
    state = taken(config, state, nowMs, 1);
    if (state === undefined) throw new Error("nothing was taken");
    const packed = slidingLog.pack(config, state, nowMs, record);
    ({ record } = packed);
    written += JSON.stringify(packed).length;
    if (packed.segment !== undefined) segments.push(packed.segment);
  }
  // Each decision was written; no run more than about 65 times, wherever in the log it is.
  expect(written / 5_000).toBeLessThan(2_500);
  expect(segments.length).toBe(Math.floor(4_999 / 65));
  const read = slidingLog.unpack(config, structuredClone(record), segments);
  for (const atMs of [nowMs, nowMs + 12_345, nowMs + 19_999])
    for (const cost of [1, 4_000, 10_000])
      expect(slidingLog.decide(config, read, atMs, cost, 0)).toEqual(
        expect.objectContaining(withoutState(slidingLog.decide(config, state, atMs, cost, 0))),
      );
});

function withoutState(decision: object): object {
  return Object.fromEntries(Object.entries(decision).filter(([field]) => field !== "state"));
}

test("an attempt that was not taken over leaves the log as it was, however often", () => {
  const config = configure({ limit: 100, window: 1_000 });
  const state = taken(config, taken(config, undefined, 0, 1), 5, 2);
  // Another rule denied these; each would have added to the same runs.
  for (let nowMs = 6; nowMs < 20; nowMs += 1) taken(config, state, nowMs, 7);
  expect(slidingLog.decide(config, state, 20, 0, 0)).toMatchObject({ remaining: 97 });
  const other = taken(config, state, 20, 4);
  expect(slidingLog.decide(config, taken(config, other, 21, 1), 21, 0, 0)).toMatchObject({ remaining: 92 });
});

test("a million units in a window are allowed, and more only where they cannot be a million runs", () => {
  expect(configure({ limit: 1_000_000, window: 86_400_000 }).limit).toBe(1_000_000);
  expect(configure({ limit: 1_000_000_000, window: 60_000 }).limit).toBe(1_000_000_000);
  expect(slidingLog.configure({ limit: 1_000_001, window: 86_400_000 })).toMatchObject({
    problem: { field: "limit", allowed: expect.stringContaining("at most 1000000") },
  });
});

test("a debt goes below zero and leaves as its units do", () => {
  const config = configure({ limit: 10, window: 1_000 });
  const state = slidingLog.debit(config, taken(config, undefined, 0, 6), 100, 9);
  expect(slidingLog.decide(config, state, 100, 1, 0)).toMatchObject({ remaining: 0, retryAfterMs: 900 });
  expect(slidingLog.decide(config, state, 1_000, 1, 0)).toMatchObject({ allowed: true, remaining: 0 });
});

test("a debt of as many units as a log can count is over only when all of them are given back", () => {
  const [config, max] = [configure({ limit: 10, window: 1_000 }), 2 ** 32 - 1];
  for (const debt of [10, 2 ** 31, 2 ** 31 + 10, max - 1, max, max + 1, 2 ** 40]) {
    // Those above it are cut off.
    const counted = Math.min(debt, max);
    for (const [back, left] of [
      [counted - 10, 0],
      [counted - 1, 9],
      [counted, 10],
    ] as const) {
      const credited = slidingLog.credit(config, slidingLog.debit(config, undefined, 0, debt), 0, back);
      expect(slidingLog.decide(config, credited, 0, 0, 0).remaining, `${back} of ${debt}`).toBe(left);
    }
  }
});
