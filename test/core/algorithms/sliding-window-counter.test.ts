import fc from "fast-check";
import { describe, expect, test } from "vitest";
import { UNTOUCHED, advance, place, settle } from "../../../core/accounts/account.ts";
import {
  type StoredCounters,
  slidingWindowCounter,
  type SlidingWindowCounterConfig,
} from "../../../core/algorithms/windows/sliding-window-counter.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { NaiveCounter } from "../../support/naive-windows.ts";
import { log, ruleOf } from "../../support/rules.ts";

type Config = SlidingWindowCounterConfig;
type State = StoredCounters | undefined;
const counter = (fields: { limit: number; window: number }) =>
  ruleOf({ algorithm: "sliding-window-counter", ...fields });
const configOf = (fields: { limit: number; window: number }) => counter(fields).config as Config;

/** Takes units that have to fit. */
function taken(config: Config, state: State, nowMs: number, cost: number): State {
  const decision = slidingWindowCounter.decide(config, state, nowMs, cost, 0);
  if (!decision.allowed) throw new Error(`${cost} at ${nowMs} should pass`);
  return decision.state;
}

/** What passes at an instant, all of it. */
function takenAll(config: Config, state: State, nowMs: number): { state: State; units: number } {
  const units = slidingWindowCounter.decide(config, state, nowMs, 0, 0).remaining;
  return { units, state: taken(config, state, nowMs, units) };
}

test("the example of the essay: 42 in the minute before and 18 in this are 49.5 after 15 s", () => {
  const config = configOf({ limit: 50, window: 60_000 });
  const state = taken(config, taken(config, undefined, 59_000, 42), 60_000, 8);
  const after = taken(config, state, 72_000, 8);
  const later = slidingWindowCounter.debit(config, after, 75_000, 2);
  expect(slidingWindowCounter.decide(config, later, 75_000, 0, 0)).toMatchObject({ remaining: 0 });
  expect(slidingWindowCounter.decide(config, later, 75_000, 1, 0)).toMatchObject({
    allowed: false,
    retryAfterMs: 715,
    resetAfterMs: 105_000,
  });
});

/** Whether each of so many units a window passes, one at a time and evenly, in whole milliseconds. */
function passesEvenly(limit: number, windowMs: number, units: number, fromMs: number): boolean {
  const config = configOf({ limit, window: windowMs });
  let state: State;
  for (let index = 0; index < 4 * units; index += 1) {
    const nowMs = Math.floor(fromMs + (index * windowMs) / units);
    const decision = slidingWindowCounter.decide(config, state, nowMs, 1, 0);
    if (!decision.allowed) return false;
    ({ state } = decision);
  }
  return true;
}

test("a steady limit - 2 is never denied, if that is at most a unit per ms; limit - 1 is, as times are whole ms", () => {
  expect(passesEvenly(4, 100, 3, 0)).toBe(false);
  const flows = fc.tuple(
    fc.integer({ min: 3, max: 100 }),
    fc.integer({ min: 100, max: 1_000 }),
    fc.double({ min: 0, max: 2_000, noNaN: true }),
  );
  const law = fc.property(flows, ([limit, windowMs, fromMs]) => {
    expect(passesEvenly(limit, windowMs, limit - 2, fromMs)).toBe(true);
  });
  fc.assert(law, { numRuns: depth(300, 30_000) });
});

const step = fc.record({
  afterMs: fc.oneof(fc.constant(0), fc.nat(3), fc.nat(25), fc.nat(120)),
  units: fc.oneof(fc.constant(1), fc.nat(14)),
  held: fc.oneof({ weight: 3, arbitrary: fc.constant(0) }, fc.nat(6)),
  kind: fc.oneof(
    { weight: 8, arbitrary: fc.constant("take" as const) },
    { weight: 2, arbitrary: fc.constant("uncharge" as const) },
    fc.constantFrom("debit" as const, "credit" as const, "store" as const),
  ),
});
const fields = fc.record({
  limit: fc.integer({ min: 1, max: 12 }),
  window: fc.integer({ min: 1, max: 60 }),
});
const DEPTH = depth(300, 5_000);

test(`${DEPTH} histories are decided as a list of units and a fraction would: whether, how much is left, how long`, () => {
  fc.assert(
    fc.property(fields, fc.array(step, { maxLength: 50 }), (given, steps) => {
      const config = configOf(given);
      const naive = new NaiveCounter(given.limit, given.window);
      let [state, nowMs] = [undefined as State, 1_000_000];
      const charges: { atMs: number; units: number }[] = [];
      let isMixed = false;
      for (const { afterMs, units, held, kind } of steps) {
        nowMs += afterMs;
        if (kind === "debit") {
          state = slidingWindowCounter.debit(config, state, nowMs, units);
          naive.debit(nowMs, units);
        } else if (kind === "credit") {
          // From here on nobody knows whose units are left.
          isMixed = true;
          state = slidingWindowCounter.credit(config, state, nowMs, units);
          naive.credit(nowMs, units);
        } else if (kind === "uncharge") {
          const charge = charges[(afterMs * 7 + units) % charges.length];
          if (charge === undefined || isMixed) continue;
          const back = Math.min(units, charge.units);
          charge.units -= back;
          state = slidingWindowCounter.credit(config, state, nowMs, back, charge.atMs);
          naive.uncharge(back, charge.atMs);
        } else if (kind === "store") {
          state = structuredClone(state);
        } else {
          const decision = slidingWindowCounter.decide(config, state, nowMs, units, held);
          const { allowed, remaining } = decision;
          expect({ allowed, remaining, retryAfterMs: decision.allowed ? 0 : decision.retryAfterMs }).toEqual(
            naive.decide(nowMs, units, held),
          );
          if (decision.allowed) ({ state } = decision);
          if (decision.allowed) charges.push({ atMs: nowMs, units });
        }
      }
    }),
    { numRuns: DEPTH },
  );
});

describe("the error, against at most the limit in any window", () => {
  const sizes = [
    { limit: 1, window: 1_000 },
    { limit: 10, window: 1_000 },
    { limit: 7, window: 333 },
    { limit: 1_000, window: 400 },
    { limit: 50, window: 2 },
    { limit: 50, window: 1 },
  ];

  test.each(sizes)("of %j at worst admits 2 * limit - ceil(2 * limit / window) in a window", (given) => {
    const { limit, window } = given;
    const config = configOf(given);
    let { state, units } = takenAll(config, undefined, 10 * window - 1);
    // The window that begins with that millisecond.
    for (let nowMs = 10 * window; nowMs < 11 * window - 1; nowMs += 1) {
      const next = takenAll(config, state, nowMs);
      state = next.state;
      units += next.units;
    }
    expect(units).toBe(window === 1 ? limit : 2 * limit - Math.ceil((2 * limit) / window));
  });

  test("is never more than that, whatever comes", () => {
    const come = fc.record({
      afterMs: fc.oneof(fc.constant(0), fc.constant(1), fc.nat(9), fc.nat(60)),
      all: fc.boolean(),
    });
    fc.assert(
      fc.property(fields, fc.array(come, { maxLength: 80 }), (given, calls) => {
        const config = configOf(given);
        const { limit, window } = given;
        let [state, nowMs] = [undefined as State, 1_000_000];
        const used: { atMs: number; units: number }[] = [];
        for (const { afterMs, all } of calls) {
          nowMs += afterMs;
          const { remaining } = slidingWindowCounter.decide(config, state, nowMs, 0, 0);
          const units = all ? remaining : Math.min(1, remaining);
          state = taken(config, state, nowMs, units);
          used.push({ atMs: nowMs, units });
        }
        const most = Math.max(limit, 2 * limit - Math.ceil((2 * limit) / window));
        for (const { atMs } of used) {
          const within = used.filter((other) => other.atMs >= atMs && other.atMs < atMs + window);
          expect(within.reduce((sum, { units }) => sum + units, 0)).toBeLessThanOrEqual(most);
        }
      }),
      { numRuns: depth(400, 10_000) },
    );
  });

  test("denies at worst a whole limit wrongly, and a cost of the limit for a whole window", () => {
    const given = { limit: 100, window: 1_000 };
    const [config, exact] = [configOf(given), log(given)];
    const state = taken(config, undefined, 5_000, 100);
    const logged = decide(exact, UNTOUCHED, 5_000, 100);
    if (!logged.allowed) throw new Error("an untouched log admits its limit");
    expect(decide(exact, logged.account, 6_000, 100).allowed).toBe(true);
    expect(slidingWindowCounter.decide(config, state, 6_000, 1, 0)).toMatchObject({
      remaining: 0,
      retryAfterMs: 10,
    });
    expect(slidingWindowCounter.decide(config, state, 6_000, 100, 0)).toMatchObject({ retryAfterMs: 1_000 });
  });
});

describe("units that are held", () => {
  const rule = counter({ limit: 10, window: 1_000 });

  test("count whole until they are settled, and leave the view with the window of that instant", () => {
    let account = place(UNTOUCHED, { id: "isolate", units: 8, expiresAtMs: 5_500 });
    for (const nowMs of [900, 1_999, 3_000])
      expect(decide(rule, account, nowMs, 0)).toMatchObject({ remaining: 2, resetAfterMs: 7_000 - nowMs });
    account = settle(rule, account, 3_000, "isolate", 6);
    expect(decide(rule, account, 4_500, 0)).toMatchObject({ remaining: 7, resetAfterMs: 500 });
  });

  test("make the wait that of using them when they expire: they are gone sooner than those that stay held", () => {
    const held = place(UNTOUCHED, { id: "a", units: 9, expiresAtMs: 1_300 });
    const decision = decide(rule, held, 1_000, 5);
    // Nine are used in the window from 1,000 on: 5 have left after 556 ms of the next.
    expect(decision).toMatchObject({ allowed: false, retryAfterMs: 1_445 });
    for (const [laterMs, allowed] of [
      [1_444, false],
      [1_445, true],
    ] as const)
      expect(decide(rule, advance(rule, held, 1_000 + laterMs), 1_000 + laterMs, 5).allowed).toBe(allowed);
  });
});

describe("a refund", () => {
  const config = configOf({ limit: 10, window: 1_000 });
  const state = taken(config, taken(config, undefined, 1_900, 8), 2_500, 5);
  const remaining = (of: State, nowMs = 2_500) =>
    slidingWindowCounter.decide(config, of, nowMs, 0, 0).remaining;

  test("by name leaves the counter that it went into, and is as if it had never been taken", () => {
    expect(remaining(state)).toBe(1);
    expect(remaining(slidingWindowCounter.credit(config, state, 2_500, 8, 1_900))).toBe(5);
    expect(remaining(slidingWindowCounter.credit(config, state, 2_500, 5, 2_500))).toBe(6);
    expect(slidingWindowCounter.credit(config, state, 3_000, 8, 1_900)).toEqual(state);
  });

  test("without a name leaves the present counter first, and creates nothing of the other", () => {
    expect(remaining(slidingWindowCounter.credit(config, state, 2_500, 4))).toBe(5);
    expect(remaining(slidingWindowCounter.credit(config, state, 2_500, 6))).toBe(7);
    expect(slidingWindowCounter.credit(config, state, 2_500, 9)).toBeUndefined();
    // At 2,600 a unit of the window before weighs 0.4: of five one too many would be 0.4.
    expect(remaining(slidingWindowCounter.credit(config, state, 2_600, 6), 2_600)).toBe(7);
  });
});

describe("a policy that changes", () => {
  test("counts what the estimate was at the last use", () => {
    const before = configOf({ limit: 10, window: 1_000 });
    const state = taken(before, taken(before, undefined, 1_900, 8), 2_500, 5);
    const after = configOf({ limit: 20, window: 60_000 });
    // 8 / 2 + 5
    expect(slidingWindowCounter.decide(after, state, 2_500, 0, 0).remaining).toBe(11);
    expect(slidingWindowCounter.decide(after, state, 90_000, 0, 0).remaining).toBe(15);
    const more = taken(after, state, 2_600, 11);
    expect(slidingWindowCounter.decide(after, more, 2_600, 1, 0)).toMatchObject({ allowed: false });
  });

  test("to a limit that is lower admits nothing until the estimate has fallen", () => {
    const state = taken(configOf({ limit: 100, window: 1_000 }), undefined, 1_000, 80);
    const after = configOf({ limit: 10, window: 1_000 });
    expect(slidingWindowCounter.decide(after, state, 1_000, 1, 0)).toMatchObject({ retryAfterMs: 1_888 });
    expect(slidingWindowCounter.decide(after, state, 2_888, 1, 0).allowed).toBe(true);
  });
});

test("a clock that is put back leaves the counters of later", () => {
  const config = configOf({ limit: 10, window: 1_000 });
  const state = taken(config, taken(config, undefined, 1_900, 4), 2_500, 4);
  expect(slidingWindowCounter.decide(config, state, 1_200, 0, 0)).toMatchObject({
    remaining: 2,
    resetAfterMs: 2_800,
  });
  expect(slidingWindowCounter.decide(config, state, 1_200, 3, 0)).toMatchObject({ retryAfterMs: 1_050 });
});
