/** Units that a fixed window carries to the next, against a list of what was used in each window. */
import fc from "fast-check";
import { expect, test } from "vitest";
import {
  fixedWindow,
  type FixedWindowConfig,
  type WindowUse,
} from "../../../core/algorithms/windows/fixed-window.ts";
import { parsePolicy } from "../../../core/policies/parse-policy.ts";
import { depth } from "../../support/depth.ts";
import { ruleOf } from "../../support/rules.ts";

const DAY_MS = 86_400_000;
const START_MS = Date.parse("2026-03-27T12:00:00Z");
type State = WindowUse | undefined;

const configOf = (fields: Record<string, unknown>) =>
  ruleOf({ algorithm: "fixed-window", ...fields }).config as FixedWindowConfig;

/** What was used, and of which day: 0 is the one of the start. */
class Days {
  readonly #config: FixedWindowConfig;
  /** Of the days of a calendar, from that of the start on. */
  readonly #ends: number[] = [];
  readonly used: { day: number; units: number }[] = [];
  /** By day, where it is not the limit of the configuration: that of its end. */
  readonly limits: number[] = [];

  constructor(config: FixedWindowConfig) {
    this.#config = config;
  }

  dayAt(nowMs: number): number {
    const { calendar, windowMs } = this.#config;
    if (calendar === undefined) return Math.floor(nowMs / windowMs) - Math.floor(START_MS / windowMs);
    for (let last = this.#ends.at(-1) ?? START_MS; last <= nowMs; last = this.#ends.at(-1) ?? Infinity)
      this.#ends.push(calendar.around(last).endMs);
    return this.#ends.findIndex((endMs) => endMs > nowMs);
  }

  freeAt(nowMs: number): number {
    const { carry } = this.#config;
    let carried = carry;
    for (let day = 0; ; day += 1) {
      const limit = this.limits[day] ?? this.#config.limit;
      let free = limit + carried;
      for (const each of this.used) if (each.day === day) free -= each.units;
      if (day === this.dayAt(nowMs)) return free;
      carried = Math.min(carry, Math.max(0, free));
    }
  }
}

const config = fc
  .record({
    limit: fc.integer({ min: 1, max: 8 }),
    share: fc.constantFrom(0.5, 1, 2, 4),
    place: fc.constantFrom(
      { window: 50 },
      { window: "1 day", timeZone: "Europe/Berlin" },
      { window: "1 day", timeZone: "UTC" },
    ),
  })
  .map(({ limit, share, place }) => configOf({ limit, carry: Math.ceil(limit * share), ...place }));
/** In tenths of a window. */
const pause = fc.oneof(fc.integer({ min: 0, max: 5 }), fc.nat(40));
const step = fc.record({
  after: pause,
  cost: fc.integer({ min: 1, max: 30 }),
  back: fc.option(fc.nat(20), { freq: 3 }),
});
const lengthMs = ({ windowMs }: FixedWindowConfig, tenths: number) => Math.floor((windowMs * tenths) / 10);

test("what is left of a window is in the next, up to `carry`, and every wait is exact", () => {
  fc.assert(
    fc.property(config, fc.array(step, { maxLength: 30 }), (given, steps) => {
      const days = new Days(given);
      let [state, nowMs]: [State, number] = [undefined, START_MS];
      for (const { after, cost } of steps) {
        nowMs += lengthMs(given, after);
        const free = days.freeAt(nowMs);
        const decision = fixedWindow.decide(given, state, nowMs, cost, 0);
        expect([decision.allowed, decision.remaining]).toEqual([
          cost <= free,
          cost <= free ? free - cost : free,
        ]);
        if (decision.allowed) {
          state = decision.state;
          days.used.push({ day: days.dayAt(nowMs), units: cost });
        } else if (decision.retryAfterMs !== null) {
          expect(days.freeAt(nowMs + decision.retryAfterMs)).toBeGreaterThanOrEqual(cost);
          expect(days.freeAt(nowMs + decision.retryAfterMs - 1)).toBeLessThan(cost);
        } else expect(cost).toBeGreaterThan(given.limit + given.carry);
      }
    }),
    { numRuns: depth(100, 1_000) },
  );
});

const plans = config.chain((given) =>
  fc.constantFrom(1, 0.3, 3, 8).map((times): [FixedWindowConfig, FixedWindowConfig] => {
    const limit = Math.ceil(given.limit * times);
    return [given, { ...given, limit }];
  }),
);

const planStep = fc.record({
  after: pause,
  /** In quarters of what is free. */
  part: fc.integer({ min: 0, max: 4 }),
  isForced: fc.boolean(),
  isOtherPlan: fc.boolean(),
  back: fc.option(fc.nat(20), { freq: 2 }),
});

const LATER = "a charge that is given back later never returns more than if it had not been made";
test(`${LATER}, also after a debt, or under a plan with another limit`, () => {
  fc.assert(
    fc.property(plans, fc.array(planStep, { maxLength: 30 }), (both, steps) => {
      const days = new Days(both[0]);
      const charges: { atMs: number; used: { day: number; units: number } }[] = [];
      let [state, nowMs, plan]: [State, number, FixedWindowConfig] = [undefined, START_MS, both[0]];
      for (const { after, part, isForced, isOtherPlan, back } of steps) {
        const from = days.dayAt(nowMs);
        nowMs += lengthMs(plan, after);
        for (let day = from; day <= days.dayAt(nowMs); day += 1) days.limits[day] = plan.limit;
        if (isOtherPlan) {
          // As an object does when a call names another plan.
          state = fixedWindow.debit(plan, state, nowMs, 0);
          plan = plan === both[0] ? both[1] : both[0];
          days.limits[days.dayAt(nowMs)] = plan.limit;
        }
        const cost = Math.floor((Math.max(0, days.freeAt(nowMs)) * part) / 4) + (isForced ? 5 : 0);
        if (cost > 0) {
          state = fixedWindow.debit(plan, state, nowMs, cost);
          const used = { day: days.dayAt(nowMs), units: cost };
          days.used.push(used);
          if (!isForced) charges.push({ atMs: nowMs, used });
        }
        const [charge] = back === null ? [] : charges.splice(back % Math.max(1, charges.length), 1);
        if (charge !== undefined) {
          state = fixedWindow.credit(plan, state, nowMs, charge.used.units, charge.atMs);
          charge.used.units = 0;
        }
        const offered = fixedWindow.decide(plan, state, nowMs, 0, 0).remaining;
        expect(offered).toBeLessThanOrEqual(Math.max(0, days.freeAt(nowMs)));
      }
    }),
    { numRuns: depth(330, 5_000) },
  );
});

test("a charge that a larger plan's windows have returned gives nothing back under a smaller one", () => {
  const [large, small] = [20, 5].map((limit) => configOf({ limit, carry: 40, window: "1 day" })) as [
    FixedWindowConfig,
    FixedWindowConfig,
  ];
  const day = (number: number) => START_MS + number * DAY_MS;
  const back = (state: State, nowMs: number, charged: number) => {
    const after = fixedWindow.credit(small, state, nowMs, charged, START_MS);
    const left = (each: State) => fixedWindow.decide(small, each, nowMs, 0, 0).remaining;
    return left(after) - left(state);
  };
  // 60 units are whole again when three windows of the larger plan have ended.
  const [first, after] = [
    fixedWindow.debit(large, undefined, START_MS, 60),
    fixedWindow.debit(large, undefined, day(3), 60),
  ];
  expect(back(fixedWindow.debit(small, after, day(3), 0), day(4), 60)).toBe(0);
  // After two of them 20 lack, beside what has been used since then.
  const later = fixedWindow.debit(large, fixedWindow.debit(large, first, day(2), 0), day(2), 40);
  expect(back(later, day(3), 60)).toBeLessThanOrEqual(20);
  // Many windows of the smaller plan, of which each returns little: 5 lack after 48, beside what has been used since then.
  const charged = fixedWindow.debit({ ...large, carry: 240 }, undefined, START_MS, 260);
  const rested = fixedWindow.debit(small, fixedWindow.debit(small, charged, day(48), 0), day(48), 40);
  expect(back(rested, day(49), 260)).toBeLessThanOrEqual(5);
});

test("a charge that was forgiven with a debt gives nothing back, and a record without what is lacking covers nothing", () => {
  const given = configOf({ limit: 10, carry: 10, window: "1 day" });
  const next = START_MS + DAY_MS;
  const charged = fixedWindow.debit(given, undefined, START_MS, 20);
  const indebted = fixedWindow.debit(given, charged, START_MS, 30);
  const back = fixedWindow.credit(given, indebted, next, 20, START_MS);
  expect(fixedWindow.decide(given, back, next, 0, 0).remaining).toBe(10);
  expect(
    fixedWindow.decide(given, fixedWindow.credit(given, charged, next, 20, START_MS), next, 0, 0).remaining,
  ).toBe(20);

  const stored = fixedWindow.debit(given, undefined, START_MS, 5);
  const memory = fixedWindow.debit(given, fixedWindow.debit(given, undefined, START_MS, 17), next, 3);
  const covers = (record: State, ahead: number) => fixedWindow.covers(given, record, ahead, memory, 0, next);
  expect([covers(stored, 3), covers(stored, 9), covers(stored, 10), covers(memory, 0)]).toEqual([
    false,
    false,
    true,
    true,
  ]);
});

test("a policy that begins, changes or ends to carry forgets nothing that was taken in this window", () => {
  const [none, some, much] = [0, 10, 30].map((carry) =>
    configOf({ limit: 10, window: "1 day", ...(carry > 0 && { carry }) }),
  ) as [FixedWindowConfig, FixedWindowConfig, FixedWindowConfig];
  const left = (given: FixedWindowConfig, state: State, nowMs: number) =>
    fixedWindow.decide(given, state, nowMs, 0, 0).remaining;
  let state = fixedWindow.debit(some, undefined, START_MS, 17);
  expect([none, some, much].map((each) => left(each, state, START_MS))).toEqual([0, 3, 23]);
  const next = START_MS + DAY_MS;
  // 7 of the carried units are gone.
  expect([none, some, much].map((each) => left(each, state, next))).toEqual([10, 13, 33]);
  state = fixedWindow.debit(some, state, next, 4);
  expect([none, some, much].map((each) => left(each, state, next))).toEqual([6, 9, 29]);
  // A while without: what was lacking is lacking again.
  const without = fixedWindow.debit(none, state, next, 1);
  expect(left(some, without, next)).toBe(8);
});

test("where units cannot be carried, the policy says so", () => {
  const problems = (fields: object) => {
    const parsed = parsePolicy("p", { algorithm: "fixed-window", limit: 10, window: "1 day", ...fields });
    return "problems" in parsed ? parsed.problems.map(({ detail }) => detail).join() : "";
  };
  expect(problems({ carry: 120 })).toBe("");
  expect(problems({ carry: 121 })).toContain("carry is 121: must be at most 12 times the limit: 120");
  expect(problems({ carry: 0 })).toContain("carry");
  expect(problems({ carry: 5, window: "1h", align: "first" })).toContain('left out with align = "first"');
  expect(problems({ carry: 5, jitter: "1m" })).toContain("left out with jitter");
  expect(problems({ carry: 5, limit: 0 })).toContain("left out with a limit of 0");
  expect(problems({ carry: 5, pool: "redis" })).toContain('left out with algorithm "fixed-window"');
  const bucket = parsePolicy("p", { algorithm: "token-bucket", limit: 10, window: "1s", carry: 5 });
  expect("problems" in bucket && bucket.problems.map(({ detail }) => detail).join()).toContain("carry");
});
