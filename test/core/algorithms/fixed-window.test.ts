import fc from "fast-check";
import { describe, expect, test, vi } from "vitest";
import {
  UNTOUCHED,
  advance,
  decideTogether,
  outstandingOf,
  place,
  settle,
} from "../../../core/accounts/account.ts";
import {
  fixedWindow,
  type FixedWindowConfig,
  type WindowUse,
} from "../../../core/algorithms/windows/fixed-window.ts";
import { decide } from "../../support/decide.ts";
import { depth } from "../../support/depth.ts";
import { namesOf, NaiveWindows } from "../../support/naive-windows.ts";
import { log, ruleOf } from "../../support/rules.ts";

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
type State = WindowUse | undefined;

const window = (fields: Record<string, unknown>) => ruleOf({ algorithm: "fixed-window", ...fields });
const configOf = (fields: Record<string, unknown>) => window(fields).config as FixedWindowConfig;
const at = (instant: string) => Date.parse(instant);

/** Takes units that have to fit. */
function taken(config: FixedWindowConfig, state: State, nowMs: number, cost: number): State {
  const decision = fixedWindow.decide(config, state, nowMs, cost, 0);
  if (!decision.allowed) throw new Error(`${cost} at ${nowMs} should pass`);
  return decision.state;
}

describe("the example of the essay: 3 a day in Europe/Berlin", () => {
  const config = configOf({ limit: 3, window: "1 day", timeZone: "Europe/Berlin" });

  test("three at 23:59 are over in a minute", () => {
    const state = taken(config, undefined, at("2025-10-25T23:59+02:00"), 3);
    const denied = {
      allowed: false,
      reason: "quota",
      remaining: 0,
      resetAfterMs: 1_000,
      retryAfterMs: 1_000,
    };
    expect(fixedWindow.decide(config, state, at("2025-10-25T23:59:59+02:00"), 1, 0)).toEqual(denied);
    expect(fixedWindow.decide(config, state, at("2025-10-26T00:00+02:00"), 3, 0)).toMatchObject({
      allowed: true,
      remaining: 0,
      resetAfterMs: 25 * HOUR_MS,
    });
  });

  test("three when the day with 25 hours begins are over in 25 hours, and of the day with 23 in 23", () => {
    for (const [midnight, hours] of [
      ["2025-10-26T00:00+02:00", 25],
      ["2026-03-29T00:00+01:00", 23],
    ] as const) {
      const state = taken(config, undefined, at(midnight), 3);
      const endMs = at(midnight) + hours * HOUR_MS;
      expect(fixedWindow.decide(config, state, endMs - 1, 1, 0)).toMatchObject({ retryAfterMs: 1 });
      expect(fixedWindow.decide(config, state, endMs, 3, 0).allowed).toBe(true);
    }
  });
});

const month = (instant: string) => {
  const config = configOf({ limit: 9, window: "1 month", timeZone: "America/New_York" });
  const decision = fixedWindow.decide(config, undefined, at(instant), 1, 0);
  return at(instant) + decision.resetAfterMs;
};

test("a month is as long as it is", () => {
  expect(month("2028-02-10T00:00Z")).toBe(at("2028-03-01T00:00-05:00"));
  expect(month("2026-02-10T00:00Z")).toBe(at("2026-03-01T00:00-05:00"));
  expect(month("2026-03-01T04:59Z")).toBe(at("2026-03-01T00:00-05:00"));
  expect(month("2026-03-01T05:00Z")).toBe(at("2026-04-01T00:00-04:00"));
});

const step = fc.record({
  afterMs: fc.oneof(
    fc.constant(0),
    fc.nat(5 * 60_000),
    fc.nat(3 * HOUR_MS),
    fc.nat(30 * HOUR_MS),
    fc.nat(40 * DAY_MS),
  ),
  units: fc.oneof(fc.constant(1), fc.nat(9)),
  held: fc.oneof({ weight: 3, arbitrary: fc.constant(0) }, fc.nat(6)),
  kind: fc.oneof(
    { weight: 8, arbitrary: fc.constant("take" as const) },
    { weight: 2, arbitrary: fc.constant("uncharge" as const) },
    fc.constantFrom("debit" as const, "credit" as const, "store" as const),
  ),
});
type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never;
const limit = fc.integer({ min: 1, max: 12 });
/** Near the changes of clocks, the ends of months and years, and anywhere. */
const start = fc.oneof(
  fc
    .constantFrom("2025-10-25T20:00Z", "2026-03-28T20:00Z", "2026-10-31T22:00Z", "2027-12-31T20:00Z")
    .map((instant) => at(instant)),
  fc.integer({ min: 0, max: Date.UTC(2036, 0) }),
);

/** Plays a history with the algorithm and its oracle, and compares all that they say. */
function compare(config: FixedWindowConfig, naive: NaiveWindows, startMs: number, steps: readonly Step[]) {
  let [state, nowMs] = [undefined as State, startMs];
  const instants: number[] = [];
  for (const { afterMs, units, kind, held } of steps) {
    nowMs += afterMs;
    instants.push(nowMs);
    if (kind === "debit") {
      state = fixedWindow.debit(config, state, nowMs, units);
      naive.debit(nowMs, units);
    } else if (kind === "credit") {
      state = fixedWindow.credit(config, state, nowMs, units);
      naive.credit(nowMs, units);
    } else if (kind === "uncharge") {
      const atMs = instants[(afterMs * 7 + units) % instants.length] ?? nowMs;
      const charged = Math.min(units, naive.chargedAt(nowMs, atMs));
      state = fixedWindow.credit(config, state, nowMs, charged, atMs);
      naive.uncharge(nowMs, charged, atMs);
    } else if (kind === "store") {
      state = structuredClone(state);
    } else {
      const decision = fixedWindow.decide(config, state, nowMs, units, held);
      const expected = naive.decide(nowMs, units, held);
      const { allowed, remaining, resetAfterMs } = decision;
      expect({ allowed, remaining, retryAfterMs: decision.allowed ? 0 : decision.retryAfterMs }).toEqual(
        expected,
      );
      if (decision.allowed) ({ state } = decision);
      expect(resetAfterMs).toBe(naive.countedAt(nowMs) === 0 ? 0 : naive.endMs(nowMs) - nowMs);
    }
  }
}

const DEPTH = depth(100, 5_000);
const zones = ["UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Adelaide"];
const periods = ["1 hour", "1 day", "1 week", "1 month", "1 year"];

test(`${DEPTH} histories in the calendar are decided as names of days and months would`, () => {
  fc.assert(
    fc.property(
      limit,
      fc.constantFrom(...periods),
      fc.constantFrom(...zones),
      start,
      fc.array(step, { maxLength: 40 }),
      (most, period, timeZone, startMs, steps) => {
        const config = configOf({ limit: most, window: period, timeZone });
        compare(config, new NaiveWindows(most, 367 * DAY_MS, namesOf(period, timeZone)), startMs, steps);
      },
    ),
    { numRuns: DEPTH },
  );
});

test(`${DEPTH} histories of durations, since the epoch and from the first request, are decided as a list would`, () => {
  const lengths = fc.oneof(
    fc.integer({ min: 1, max: 2_000 }),
    fc.constantFrom(60_000, 7 * HOUR_MS, 30 * DAY_MS),
  );
  fc.assert(
    fc.property(
      limit,
      lengths,
      fc.constantFrom("epoch", "first"),
      start,
      fc.array(step, { maxLength: 40 }),
      (most, windowMs, align, startMs, steps) => {
        const nameAt = align === "first" ? undefined : (atMs: number) => `${Math.floor(atMs / windowMs)}`;
        // Most steps are far apart: some histories have to stay within a few windows.
        const scale = Math.min(1, windowMs / DAY_MS);
        const near = steps.map((each) => ({ ...each, afterMs: Math.floor(each.afterMs * scale) }));
        compare(
          configOf({ limit: most, window: windowMs, align }),
          new NaiveWindows(most, windowMs, nameAt),
          startMs,
          near,
        );
      },
    ),
    { numRuns: DEPTH },
  );
});

describe("units that are held", () => {
  const rule = window({ limit: 10, window: 1_000 });
  const { algorithm, config } = rule;

  test("are counted in the window in which they are settled, and until then in every one", () => {
    let account = place(UNTOUCHED, { id: "isolate", units: 8, expiresAtMs: 5_000 });
    for (const nowMs of [900, 1_100, 3_000]) {
      expect(decide(rule, account, nowMs, 3)).toMatchObject({ allowed: false, remaining: 2 });
      expect(decide(rule, account, nowMs, 2).allowed).toBe(true);
    }
    account = settle(rule, account, 3_000, "isolate", 6);
    expect(decide(rule, account, 3_000, 0)).toMatchObject({ remaining: 4, resetAfterMs: 1_000 });
    expect(decide(rule, account, 4_000, 0)).toMatchObject({ remaining: 10, resetAfterMs: 0 });
  });

  test("make a wait last until the window's end, or until so many of them have ended", () => {
    const state = algorithm.debit(config, undefined, 100, 5);
    const held = place({ state, holds: [] }, { id: "a", units: 5, expiresAtMs: 400 });
    expect(decide(rule, held, 200, 1)).toMatchObject({ retryAfterMs: 800, resetAfterMs: 800 });
    // It expires in the second window and is used there: ten fit in the third.
    const late = place(held, { id: "b", units: 1, expiresAtMs: 1_500 });
    expect(decide(rule, late, 200, 10)).toMatchObject({ retryAfterMs: 1_800, resetAfterMs: 1_800 });
    expect(decide(rule, late, 200, 9)).toMatchObject({ retryAfterMs: 800 });
  });

  /**
   * What the essay proves: whenever they are settled, no window has more than the limit of units that were *used* in
   * it. Isolates take units, spend some of them at once or later, and settle at any time.
   */
  test("never make more than the limit used in a window, however late they are settled", () => {
    const action = fc.record({
      afterMs: fc.oneof(fc.constant(0), fc.nat(40), fc.nat(400)),
      kind: fc.constantFrom("use", "hold", "hold", "spend", "spend", "settle"),
      units: fc.integer({ min: 1, max: 10 }),
    });
    type Action = typeof action extends fc.Arbitrary<infer Value> ? Value : never;
    const run = (align: "epoch" | "first", actions: readonly Action[], windowMs = 300) => {
      const each = window({ limit: 10, window: windowMs, align });
      let [account, nowMs] = [UNTOUCHED, 10_000];
      const left = new Map<string, { units: number; spent: number }>();
      const used: { atMs: number; units: number }[] = [];
      for (const [index, { afterMs, kind, units }] of actions.entries()) {
        nowMs += afterMs;
        account = advance(each, account, nowMs);
        const [first] = account.holds;
        const decision = decide(each, account, nowMs, units);
        const holder = first && left.get(first.id);
        if (kind === "use" && decision.allowed) {
          ({ account } = decision);
          used.push({ atMs: nowMs, units });
        } else if (kind === "hold" && decision.allowed) {
          account = place(account, { id: `${index}`, units, expiresAtMs: nowMs + 700 });
          left.set(`${index}`, { units, spent: 0 });
        } else if (kind === "spend" && holder !== undefined) {
          const spent = Math.min(units, holder.units - holder.spent);
          holder.spent += spent;
          used.push({ atMs: nowMs, units: spent });
        } else if (kind === "settle" && first !== undefined) {
          account = settle(each, account, nowMs, first.id, holder?.spent ?? 0);
        }
        expect(outstandingOf(account)).toBeLessThanOrEqual(10);
      }
      return used;
    };
    const sum = (used: readonly { units: number }[]) => used.reduce((all, { units }) => all + units, 0);
    fc.assert(
      fc.property(fc.array(action, { maxLength: 60 }), (actions) => {
        const used = run("epoch", actions);
        for (const { atMs } of used) {
          const same = used.filter((other) => Math.floor(other.atMs / 300) === Math.floor(atMs / 300));
          expect(sum(same)).toBeLessThanOrEqual(10);
        }
        const later = run("first", actions);
        for (const { atMs: fromMs } of later)
          for (const { atMs: toMs } of later.filter(({ atMs }) => atMs >= fromMs)) {
            const between = later.filter(({ atMs }) => fromMs <= atMs && atMs <= toMs);
            expect(sum(between)).toBeLessThanOrEqual(10 * (Math.floor((toMs - fromMs) / 300) + 2));
          }
      }),
      { numRuns: depth(230, 10_000) },
    );
  });
});

describe("several rules", () => {
  const daily = window({ limit: 5, window: "1 day", timeZone: "Europe/Berlin" });
  const rules = [daily, log({ limit: 3, window: 1_000 })];
  const nowMs = at("2025-10-26T00:30+02:00");

  test("decide together: a denial of one takes nothing of the other, and waits are the longest", () => {
    const untouched = rules.map((rule) => ({ rule, account: UNTOUCHED }));
    const first = decideTogether(untouched, nowMs, 3);
    expect(first.admitted).toBe(true);
    const after = rules.map((rule, index) => ({ rule, account: first.accounts?.[index] ?? UNTOUCHED }));
    const denied = decideTogether(after, nowMs, 3);
    expect(denied).not.toHaveProperty("accounts");
    expect(
      denied.rules.map(({ success, remaining, retryAfterMs }) => [success, remaining, retryAfterMs]),
    ).toEqual([
      [false, 2, 24.5 * HOUR_MS],
      [false, 0, 1_000],
    ]);
    const held = decideTogether(after, nowMs + 1_000, 2, {
      hold: { id: "hold", expiresAtMs: nowMs + 9_000 },
    });
    expect(held.rules.map(({ remaining }) => remaining)).toEqual([0, 1]);
  });
});

describe("jitter", () => {
  const fields = { limit: 4, window: "1 day", timeZone: "Europe/Berlin", jitter: "10m" };
  const config = configOf(fields);
  const midnight = at("2026-01-11T00:00+01:00");

  test("puts the ends of keys off by different times, all of them below it, and none sooner", () => {
    const ends = Array.from({ length: 500 }, (_, key) => {
      const nowMs = midnight - 9 * HOUR_MS + key;
      return nowMs + fixedWindow.decide(config, undefined, nowMs, 1, 0).resetAfterMs - midnight;
    });
    expect(Math.min(...ends)).toBeGreaterThanOrEqual(0);
    expect(Math.max(...ends)).toBeLessThan(600_000);
    // Each of ten parts of the ten minutes has about 50 of the 500.
    const parts = Array.from({ length: 10 }, (_, part) =>
      ends.filter((ms) => Math.floor(ms / 60_000) === part),
    );
    for (const part of parts) expect(Math.abs(part.length - 50)).toBeLessThan(25);
  });

  test("leaves a key one window for each day: who always takes all there is has no more on 30 days", () => {
    let [state, units] = [undefined as State, 0];
    for (let nowMs = midnight; nowMs < midnight + 30 * DAY_MS; nowMs += 7 * 60_000) {
      const { remaining } = fixedWindow.decide(config, state, nowMs, 0, 0);
      units += remaining;
      state = taken(config, state, nowMs, remaining);
    }
    expect(units).toBe(30 * 4);
  });

  test("is the same for the same state: the end that was told stays", () => {
    const nowMs = midnight - HOUR_MS;
    const state = taken(config, undefined, nowMs, 1);
    const endMs = fixedWindow.untouchedAtMs(config, state);
    expect(fixedWindow.untouchedAtMs(config, taken(config, structuredClone(state), nowMs + 1_000, 2))).toBe(
      endMs,
    );
  });
});

describe("a policy that changes while a window lasts", () => {
  const nowMs = at("2026-01-14T12:00Z");
  const counted = (before: Record<string, unknown>, after: Record<string, unknown>, laterMs = 0) => {
    const state = taken(configOf({ limit: 9, ...before }), undefined, nowMs, 7);
    const { remaining } = fixedWindow.decide(configOf({ limit: 9, ...after }), state, nowMs + laterMs, 0, 0);
    return 9 - remaining;
  };
  const day = { window: "1 day" };

  test("counts what was taken in the new window that it was taken in", () => {
    expect(counted(day, { window: "1 month" }, 16 * DAY_MS)).toBe(7);
    expect(counted(day, { window: "1 month" }, 18 * DAY_MS)).toBe(0);
    expect(counted({ window: "1 month" }, day, 11 * HOUR_MS)).toBe(7);
    expect(counted({ window: "1 month" }, day, 12 * HOUR_MS)).toBe(0);
    // Midnight in Auckland has been at 11:00 UTC, and the next is 23 hours away.
    expect(counted(day, { ...day, timeZone: "Pacific/Auckland" }, 23 * HOUR_MS - 1)).toBe(7);
    expect(counted(day, { window: "2h", align: "first" }, 2 * HOUR_MS - 1)).toBe(7);
    expect(counted({ window: "2h", align: "first" }, day, 12 * HOUR_MS - 1)).toBe(7);
  });

  test("counts a stored hour that ended early, when the clocks changed, as of the hour of its last unit", () => {
    const config = configOf({ limit: 3, window: "1 hour", timeZone: "Pacific/Chatham" });
    const stored = { units: 3, startMs: at("1994-10-01T13:20Z"), lastMs: at("1994-10-01T14:05Z") };
    const left = (instant: string) => fixedWindow.decide(config, stored, at(instant), 0, 0).remaining;
    expect([left("1994-10-01T14:14Z"), left("1994-10-01T14:15Z")]).toEqual([0, 3]);
  });

  test("counts all as if taken with the last, when the first would be over", () => {
    const long = configOf({ limit: 9, window: "1h", align: "first" });
    let state = taken(long, undefined, nowMs, 3);
    state = taken(long, state, nowMs + 50_000, 4);
    const short = configOf({ limit: 9, window: "10s", align: "first" });
    const left = (afterMs: number) => fixedWindow.decide(short, state, nowMs + afterMs, 0, 0).remaining;
    expect([left(50_000), left(59_999), left(60_000)]).toEqual([2, 2, 9]);
    // What is taken then joins that window.
    const joined = taken(short, state, nowMs + 55_000, 2);
    expect(fixedWindow.untouchedAtMs(short, joined)).toBe(nowMs + 60_000);
  });
});

test("played forward, a window that is over is none: what fits passes at once", () => {
  const config = configOf({ limit: 9, window: 1_000 });
  const forecast = fixedWindow.forecast(config, taken(config, undefined, 100, 9));
  expect([999, 1_000, 1_500].map((atMs) => forecast.passesAtMs(atMs, 2, 7))).toEqual([1_000, 1_000, 1_500]);
  expect(forecast.passesAtMs(1_500, 3, 7)).toBe(Infinity);
});

test("a charge is given back in its window, and not in the next", () => {
  const config = configOf({ limit: 9, window: 1_000 });
  const state = taken(config, taken(config, undefined, 100, 4), 1_200, 5);
  const after = fixedWindow.credit(config, state, 1_300, 4, 100);
  expect(fixedWindow.decide(config, after, 1_300, 0, 0).remaining).toBe(4);
  const back = fixedWindow.credit(config, state, 1_300, 2, 1_200);
  expect(fixedWindow.decide(config, back, 1_300, 0, 0).remaining).toBe(6);
});

test("a hot key never asks Intl", () => {
  const rule = window({ limit: 1_000_000, window: "1 month", timeZone: "Europe/Berlin" });
  const { config } = rule as { config: FixedWindowConfig };
  let state = taken(config, undefined, at("2026-01-14T12:00Z"), 1);
  const asked = vi.spyOn(Intl.DateTimeFormat.prototype, "formatToParts");
  for (let count = 0; count < 1_000; count += 1)
    state = taken(config, state, at("2026-01-14T12:00Z") + count, 1);
  expect(asked).not.toHaveBeenCalled();
  asked.mockRestore();
});
