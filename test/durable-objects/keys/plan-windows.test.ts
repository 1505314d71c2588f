/**
 * Laws of a key whose plans have several windows, and of plans with other `carry`: each call is decided as by a list of all
 * units that were admitted, whatever plans were named between.
 */
import { describe, expect, test } from "vitest";
import { planOf } from "../../../core/policies/seen-policy.ts";
import type { Decided } from "../../../core/protocol/answers.ts";
import { depth } from "../../support/depth.ts";
import { Key } from "../../support/planned-keys.ts";
import { announcedSeed, pick, seededRandom, whole } from "../../support/random.ts";

interface Plan {
  readonly limit: number;
  readonly window: number;
  readonly carry?: number;
}
type Plans = Readonly<Record<string, Plan>>;

/** Decides by all units that were admitted. */
interface Model {
  free(plan: string, atMs: number): number;
  name(plan: string, atMs: number): void;
  take(plan: string, atMs: number, units: number): void;
}

interface Taken {
  readonly atMs: number;
  readonly units: number;
  readonly plan: string;
}

/** Counts in the windows of all plans. */
class Listed implements Model {
  readonly taken: Taken[] = [];
  readonly #plans: Plans;
  readonly #algorithm: keyof typeof COUNTS;

  constructor(algorithm: keyof typeof COUNTS, plans: Plans) {
    this.#algorithm = algorithm;
    this.#plans = plans;
  }

  free(plan: string, atMs: number): number {
    const { limit, window } = this.#plans[plan] as Plan;
    const left = windowsOf(this.#plans).map((longer) => {
      if (longer < window) return Infinity;
      const most = longer === window ? limit : this.mostIn(plan, longer);
      return Math.floor((most * longer - this.#parts(atMs, longer)) / longer);
    });
    return Math.max(0, Math.min(...left));
  }

  count(atMs: number, window: number): number {
    return this.#parts(atMs, window) / window;
  }

  /** A unit is as many parts as the window has milliseconds. */
  #parts(atMs: number, window: number): number {
    return COUNTS[this.#algorithm](this.taken, atMs, window);
  }

  /** As the documentation has it: the largest limit with that window, or what the plan admits there by itself. */
  mostIn(plan: string, longer: number): number {
    const { limit, window } = this.#plans[plan] as Plan;
    const same = Object.values(this.#plans).filter((each) => each.window === longer);
    return Math.max(
      Math.floor(limit * TIMES[this.#algorithm](window, longer)),
      ...same.map((each) => each.limit),
    );
  }

  name(): void {}

  take(plan: string, atMs: number, units: number): void {
    this.taken.push({ atMs, units, plan });
  }
}

const sum = (taken: readonly Taken[]) => taken.reduce((all, { units }) => all + units, 0);

const COUNTS = {
  "sliding-log": (taken: readonly Taken[], nowMs: number, window: number) =>
    window * sum(taken.filter(({ atMs }) => atMs > nowMs - window)),
  "fixed-window": (taken: readonly Taken[], nowMs: number, window: number) =>
    window * sum(taken.filter(({ atMs }) => Math.floor(atMs / window) === Math.floor(nowMs / window))),
  "sliding-window-counter"(taken: readonly Taken[], nowMs: number, window: number) {
    const now = Math.floor(nowMs / window);
    const of = (number: number) => sum(taken.filter(({ atMs }) => Math.floor(atMs / window) === number));
    return of(now - 1) * (window - (nowMs % window)) + of(now) * window;
  },
};

/** How often a plan may take its limit in a longer window. */
const TIMES = {
  "sliding-log": (window: number, longer: number) => Math.ceil(longer / window),
  "fixed-window"(window: number, longer: number) {
    let most = 0;
    for (let from = 0; from < window * longer; from += longer)
      most = Math.max(most, Math.floor((from + longer - 1) / window) - Math.floor(from / window) + 1);
    return most;
  },
  "sliding-window-counter": (window: number, longer: number) =>
    longer % window === 0 ? longer / window : 1 + longer / window,
};

/** Fixed windows of one length that carry units: each returns the limit of the plan in force at its end. */
class Carried implements Model {
  readonly #plans: Plans;
  readonly #window: number;
  #plan = "";
  #now: { number: number; taken: number; lacking: number; most: number };

  constructor(plans: Plans) {
    this.#plans = plans;
    this.#window = this.#of("").window;
    this.#now = { number: 0, taken: 0, lacking: 0, most: 0 };
  }

  #of(plan: string): Plan {
    return this.#plans[plan] as Plan;
  }

  #at(atMs: number): { number: number; taken: number; lacking: number; most: number } {
    const now = { ...this.#now };
    const { limit, carry = 0 } = this.#of(this.#plan);
    const number = Math.floor(atMs / this.#window);
    while (now.number < number && now.taken + now.lacking > 0) {
      const most = Math.max(now.most, carry, now.lacking);
      now.lacking = Math.min(most, Math.max(0, now.taken + now.lacking - limit));
      now.number += 1;
      now.taken = now.most = 0;
    }
    return { ...now, number };
  }

  free(plan: string, atMs: number): number {
    const { limit, carry = 0 } = this.#of(plan);
    const { taken, lacking } = this.#at(atMs);
    return Math.max(0, limit + carry - Math.min(carry, lacking) - taken);
  }

  name(plan: string, atMs: number): void {
    this.#now = this.#at(atMs);
    this.#plan = plan;
  }

  take(plan: string, _: number, units: number): void {
    this.#now.taken += units;
    this.#now.most = Math.max(this.#now.most, this.#of(plan).carry ?? 0);
  }
}

function windowsOf(plans: Plans): readonly number[] {
  return [...new Set(Object.values(plans).map(({ window }) => window))];
}

function keyOf(algorithm: string, { "": own, ...plans }: Plans): Key {
  return new Key({ algorithm, ...own, plans });
}

/** Fixed windows that begin within others meet more of them than fit. */
function areNested(algorithm: string, plans: Plans): boolean {
  const windows = windowsOf(plans);
  return (
    algorithm !== "fixed-window" ||
    windows.every((one) => windows.every((other) => one % other === 0 || other % one === 0))
  );
}

const WINDOWS = [1_000, 2_000, 3_000, 5_000, 6_000];

/** What a plan does not say is as in the policy. */
function drawnPlans(random: () => number, isCarried: boolean): Plans {
  const draw = (): Plan => {
    // Of less than 50 units memory is never ahead of storage, so crashes change nothing.
    const limit = 3 + whole(random, isCarried ? 9 : 13);
    if (!isCarried) return { limit, window: pick(random, WINDOWS) };
    const carry = whole(random, 3 * limit);
    return { limit, window: 1_000, ...(random() < 0.7 && carry > 0 && { carry }) };
  };
  const own = draw();
  return { "": own, a: { ...own, ...draw() }, b: { ...own, ...draw() } };
}

/** One history: each answer is as the model has it. @param note each call that names a plan, with what it took */
function history(
  random: () => number,
  key: Key,
  plans: Plans,
  model: Model,
  note: (plan: string, units: number) => void,
) {
  const names = Object.keys(plans);
  for (let step = 0; step < 60; step += 1) {
    key.nowMs += random() < 0.4 ? 0 : whole(random, 1_500);
    if (random() < 0.1) key.crash();
    const { nowMs } = key;
    const plan = pick(random, names);
    const seen = (answer: object) => ({ plans, step, plan, ...answer });
    const { limit, carry = 0 } = plans[plan] as Plan;
    const free = model.free(plan, nowMs);
    const looks = random() < 0.3 ? key.peek(plan) : undefined;
    if (looks) expect(seen({ remaining: looks.rules[0]?.remaining })).toEqual(seen({ remaining: free }));
    const cost = whole(random, 9);
    const { rules } = key.call(plan, { op: "limit", cost }) as Decided;
    const { success, remaining, resetAfterMs = 0, retryAfterMs = 0 } = rules[0] ?? {};
    if (cost > 0) model.name(plan, nowMs);
    const isIn = cost <= free;
    expect(seen({ success, remaining })).toEqual(
      seen({ success: isIn, remaining: isIn ? free - cost : free }),
    );
    if (isIn && cost > 0) model.take(plan, nowMs, cost);
    if (cost > 0) note(plan, isIn ? cost : 0);
    // What is told of the time from now on is so if this plan is in force.
    if (cost === 0) continue;
    if (!isIn && retryAfterMs !== null)
      expect(seen({ retryAfterMs, early: model.free(plan, nowMs + retryAfterMs - 1) < cost })).toEqual(
        seen({
          retryAfterMs: model.free(plan, nowMs + retryAfterMs) < cost ? "more" : retryAfterMs,
          early: true,
        }),
      );
    const fullMs = nowMs + resetAfterMs;
    const [all, early] = [model.free(plan, fullMs), model.free(plan, fullMs - 1)];
    const isFull = resetAfterMs === 0 || early < limit + carry;
    expect(seen({ resetAfterMs, all, isFull })).toEqual(
      seen({ resetAfterMs, all: limit + carry, isFull: true }),
    );
  }
}

describe.each(["sliding-log", "fixed-window", "sliding-window-counter"] as const)("%s", (algorithm) => {
  test("a call, a look, the wait and the reset are those of all units that were admitted, whatever plans were named", () => {
    const random = seededRandom(announcedSeed("windows of plans"));
    for (let round = 0; round < depth(4, 300); round += 1) {
      const plans = drawnPlans(random, false);
      const model = new Listed(algorithm, plans);
      const key = keyOf(algorithm, plans);
      const named: Taken[] = [];
      history(random, key, plans, model, (plan, units) => {
        named.push({ atMs: key.nowMs, plan, units });
        if (units === 0 || algorithm === "sliding-window-counter" || !areNested(algorithm, plans)) return;
        for (const window of windowsOf(plans)) {
          const fromMs =
            algorithm === "sliding-log" ? key.nowMs - window + 1 : key.nowMs - (key.nowMs % window);
          const most = named
            .filter(({ atMs }) => atMs >= fromMs)
            .map((each) =>
              (plans[each.plan] as Plan).window > window
                ? (plans[each.plan] as Plan).limit
                : model.mostIn(each.plan, window),
            );
          expect(model.count(key.nowMs, window)).toBeLessThanOrEqual(Math.max(...most));
        }
      });
    }
  });
});

test.each(["sliding-log", "fixed-window", "sliding-window-counter"] as const)(
  "%s: where memory is ahead of storage, a crash only denies",
  (algorithm) => {
    const random = seededRandom(announcedSeed("windows of plans, and crashes"));
    for (let round = 0; round < depth(3, 200); round += 1) {
      const few = drawnPlans(random, false);
      const larger = Object.entries(few).map(([name, each]) => [name, { ...each, limit: 60 * each.limit }]);
      const plans = Object.fromEntries(larger) as Plans;
      const model = new Listed(algorithm, plans);
      const key = keyOf(algorithm, plans);
      for (let step = 0; step < 200; step += 1) {
        key.nowMs += random() < 0.7 ? 0 : whole(random, 1_000);
        if (random() < 0.05) key.crash();
        const plan = random() < 0.9 ? "" : pick(random, Object.keys(plans));
        const cost = 1 + whole(random, random() < 0.1 ? 400 : 4);
        const free = model.free(plan, key.nowMs);
        const seen = { plans, step, plan, free };
        if (!key.takes(plan, cost)) continue;
        expect({ ...seen, isIn: cost <= free }).toEqual({ ...seen, isIn: true });
        model.take(plan, key.nowMs, cost);
      }
    }
  },
);

test("with other carries a call, a look, the wait and the reset are those of all windows before", () => {
  const random = seededRandom(announcedSeed("carries of plans"));
  for (let round = 0; round < depth(7, 600); round += 1) {
    const plans = drawnPlans(random, true);
    const key = keyOf("fixed-window", plans);
    const named: Taken[] = [];
    history(random, key, plans, new Carried(plans), (plan, units) => {
      named.push({ atMs: Math.floor(key.nowMs / 1_000), plan, units });
      let [taken, limit, carry] = [0, 0, 0];
      for (const each of named.toReversed()) {
        taken += each.units;
        limit = Math.max(limit, (plans[each.plan] as Plan).limit);
        carry = Math.max(carry, (plans[each.plan] as Plan).carry ?? 0);
        const windows = Math.floor(key.nowMs / 1_000) - each.atMs + 1;
        expect(taken).toBeLessThanOrEqual(windows * limit + carry);
      }
    });
  }
});

const DAY = 86_400_000;
const DAILY = {
  algorithm: "fixed-window",
  limit: 1_000,
  window: "1 day",
  plans: { pro: { limit: 5_000 }, ent: { limit: 100_000, window: "1 month" } },
};

/** On the first of a month. */
function onTheFirst(table: object): Key {
  const key = new Key(table);
  key.nowMs = Date.UTC(2026, 0, 1);
  return key;
}

test("an upgrade charges nothing of earlier days to today, and going back takes nothing", () => {
  const key = onTheFirst(DAILY);
  for (const _ of [0, 1, 2, 3, 4]) {
    key.nowMs += DAY;
    expect(key.takes("", 900)).toBe(true);
  }
  expect(key.takes("pro", 1)).toBe(true);
  expect(["", "pro", "ent"].map((plan) => key.remaining(plan))).toEqual([99, 4_099, 95_499]);
  key.crash();
  expect(key.takes("ent", 1)).toBe(true);
  expect(["", "pro", "ent"].map((plan) => key.remaining(plan))).toEqual([98, 4_098, 95_498]);
  expect(key.takes("", 98)).toBe(true);
});

test("beside a longer window a plan has what it admits there by itself, and no more", () => {
  const log = onTheFirst({
    algorithm: "sliding-log",
    limit: 7,
    window: 2_000,
    plans: { a: { limit: 18, window: 4_000 } },
  });
  expect(log.takes("a", 18)).toBe(true);
  log.nowMs += 2_050;
  expect(log.takes("", 1)).toBe(false);
  log.nowMs += 1_950;
  expect(log.takes("", 7)).toBe(true);
  const month = onTheFirst({ ...DAILY, limit: 10, plans: { a: { limit: 305, window: "1 month" } } });
  expect(month.takes("a", 305)).toBe(true);
  month.nowMs += DAY;
  expect(month.takes("", 5)).toBe(true);
  expect(month.takes("", 1)).toBe(false);
});

test("a reset is when the plan's limit is free, not when the longest window ends", () => {
  const key = onTheFirst(DAILY);
  const { rules } = key.call("", { op: "limit", cost: 10 }) as Decided;
  expect(rules[0]?.resetAfterMs).toBe(DAY);
  expect((key.call("ent", { op: "limit", cost: 1 }) as Decided).rules[0]?.resetAfterMs).toBe(31 * DAY);
});

test("what a larger carry lacks is not forgotten under a smaller one", () => {
  const fields = { algorithm: "fixed-window", limit: 10, window: 4_000, carry: 5 };
  const taken = (table: object, plans: readonly string[]) => {
    const key = new Key(table);
    return plans.map((plan) => {
      const free = key.remaining(plan);
      expect(key.takes(plan, free)).toBe(true);
      key.nowMs += 4_000;
      return free;
    });
  };
  const pro = { limit: 20, carry: 30 };
  expect(taken({ ...fields, plans: { pro } }, ["pro", "", "pro"])).toEqual([50, 10, 20]);
  expect(taken({ ...fields, plans: { pro } }, ["", "pro"])).toEqual([15, 45]);
  expect(taken({ ...fields, plans: { pro: { carry: 30 } } }, ["pro", "", "pro", "", "pro"])).toEqual([
    40, 10, 10, 10, 10,
  ]);
});

test("a record of an earlier version, which has the longest window alone, counts in all windows", () => {
  const [rule] = planOf(onTheFirst(DAILY).policy, "pro").rules;
  const state = rule.algorithm.unpack(rule.config, { units: 40, startMs: 0, lastMs: 5 }, []);
  expect(rule.algorithm.decide(rule.config, state, 10, 0, 0)).toMatchObject({ remaining: 4_960 });
  const { record } = rule.algorithm.pack(rule.config, state, 10, undefined);
  expect(record).toMatchObject({ units: 40, startMs: 0, lastMs: 5 });
  expect(rule.algorithm.unpack(rule.config, JSON.parse(JSON.stringify(record)), [])).toEqual(state);
});

test("a record has to cover each window, also where a longer one has begun anew since", () => {
  const table = { algorithm: "fixed-window", limit: 100, window: 3_000, plans: { a: { window: 5_000 } } };
  const { algorithm, config } = planOf(new Key(table).policy, "").rules[0];
  const written = algorithm.debit(config, undefined, 3_000, 10);
  const { record } = algorithm.pack(config, written, 3_000, undefined);
  const before = algorithm.debit(config, written, 4_000, 2);
  expect(algorithm.covers(config, record, 2, before, 0, 4_000)).toBe(true);
  expect(algorithm.covers(config, record, 2, algorithm.debit(config, before, 5_000, 2), 0, 5_000)).toBe(
    false,
  );
});
