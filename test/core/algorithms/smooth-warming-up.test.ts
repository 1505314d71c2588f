import fc from "fast-check";
import { expect, test } from "vitest";
import {
  smoothWarmingUp,
  type SmoothWarmingUpConfig,
  type SmoothWarmingUpState,
} from "../../../core/algorithms/ported/smooth-warming-up.ts";
import { depth } from "../../support/depth.ts";
import { ruleOf } from "../../support/rules.ts";

const configure = (fields: Record<string, number>): SmoothWarmingUpConfig => {
  const config = smoothWarmingUp.configure(fields);
  if ("problem" in config) throw new Error(JSON.stringify(config));
  return config;
};
const guava = (limit: number, warmup: number, coldFactor: number) =>
  configure({ limit, window: 1_000, warmup, coldFactor, maxDelay: 3_600_000 });

/**
 * Plays calls as Guava's tests do, and writes what they write: a number is a call of so many permits, that sleeps as
 * it is told (`R`, in seconds), and a text is a pause of so many milliseconds (`U`).
 */
function events(config: SmoothWarmingUpConfig, ...steps: (number | string)[]): string {
  let [state, nowMs] = [undefined as SmoothWarmingUpState | undefined, 0];
  const told = steps.map((step) => {
    const seconds = (durationMs: number) => (durationMs / 1_000).toFixed(2);
    if (typeof step === "string") {
      nowMs += Number(step);
      return `U${seconds(Number(step))}`;
    }
    const decision = smoothWarmingUp.decide(config, state, nowMs, step, 0);
    if (!decision.allowed) throw new Error("all pass here");
    ({ state } = decision);
    nowMs += decision.delayMs ?? 0;
    return `R${seconds(decision.delayMs ?? 0)}`;
  });
  return told.join(" ");
}

const EIGHT = Array.from({ length: 8 }, () => 1);

test("Guava's numbers at 2 per second, warm after 4 seconds: cold, cold again, and half cold", () => {
  expect(events(guava(2, 4_000, 3), ...EIGHT, "500", "4000", ...EIGHT, "500", "2000", ...EIGHT)).toBe(
    [
      "R0.00 R1.38 R1.13 R0.88 R0.63 R0.50 R0.50 R0.50",
      "U0.50 U4.00",
      "R0.00 R1.38 R1.13 R0.88 R0.63 R0.50 R0.50 R0.50",
      "U0.50 U2.00",
      "R0.00 R0.50 R0.50 R0.50 R0.50 R0.50 R0.50 R0.50",
    ].join(" "),
  );
});

test("Guava's numbers at 5 per second with a cold factor of 10, and with 1, which is never cold", () => {
  expect(events(guava(5, 4_000, 10), ...EIGHT, "200", "4000", ...EIGHT, "200", "1000", ...EIGHT)).toBe(
    [
      "R0.00 R1.75 R1.26 R0.76 R0.30 R0.20 R0.20 R0.20",
      "U0.20 U4.00",
      "R0.00 R1.75 R1.26 R0.76 R0.30 R0.20 R0.20 R0.20",
      "U0.20 U1.00",
      "R0.00 R0.20 R0.20 R0.20 R0.20 R0.20 R0.20 R0.20",
    ].join(" "),
  );
  expect(events(guava(5, 4_000, 1), ...EIGHT, "340", ...EIGHT)).toBe(
    [
      "R0.00 R0.20 R0.20 R0.20 R0.20 R0.20 R0.20 R0.20",
      "U0.34",
      "R0.00 R0.20 R0.20 R0.20 R0.20 R0.20 R0.20 R0.20",
    ].join(" "),
  );
});

test("Guava's numbers at 4 and at 10 per second, from the cold", () => {
  const eleven = [...EIGHT, 1, 1, 1];
  expect(events(guava(4, 4_000, 3), ...eleven)).toBe(
    "R0.00 R0.72 R0.66 R0.59 R0.53 R0.47 R0.41 R0.34 R0.28 R0.25 R0.25",
  );
  expect(events(guava(10, 4_000, 10), ...eleven)).toBe(
    "R0.00 R0.94 R0.81 R0.69 R0.57 R0.44 R0.32 R0.20 R0.10 R0.10 R0.10",
  );
});

test("warming up takes the warm-up, in calls of 1 as in calls of more", () => {
  for (const coldFactor of [2, 3, 10])
    for (const weights of [[1], [2], [3, 1], [4]]) {
      const config = guava(10, 4_000, coldFactor);
      // The upper part of the storage takes as long as the warm-up.
      const permits = (2 * 4_000) / (100 * (1 + coldFactor));
      let [state, left, owedMs] = [undefined as SmoothWarmingUpState | undefined, permits, 0];
      for (let index = 0; left >= 1; index += 1) {
        const cost = Math.min(weights[index % weights.length] ?? 1, Math.floor(left));
        const decision = smoothWarmingUp.decide(config, state, 0, cost, 0);
        if (!decision.allowed) throw new Error("all pass here");
        ({ state } = decision);
        left -= cost;
        owedMs = (state?.owedParts ?? 0) / config.limit;
      }
      // What is left is less than a permit, which costs at most twice the stable interval: the line is low there.
      expect(owedMs).toBeLessThanOrEqual(4_001);
      expect(owedMs).toBeGreaterThan(4_000 - left * 100 * coldFactor - 1);
    }
});

interface Fields {
  readonly limit: number;
  readonly window: number;
  readonly warmup: number;
  readonly coldFactor: number;
  readonly maxDelay: number;
}

/** Guava's description in fractions: permits stored, the free instant, and the area under the line by its corners. */
class RateLimiter {
  readonly #fields: Fields;
  readonly #stable: number;
  readonly #half: number;
  readonly #all: number;
  readonly #capacity: number;
  #stored: number;
  /** When the next call is free to go on, in milliseconds. */
  freeMs: number;
  /** The bucket that says whether a call passes: units times `window`. */
  #spent = 0;
  #atMs = 0;

  /** @param missing permits that are not stored at `freeMs` */
  constructor(policy: Fields, freeMs = 0, missing = 0) {
    const { limit, window, warmup, coldFactor, maxDelay } = policy;
    this.#fields = policy;
    this.#stable = window / limit;
    this.#half = warmup / this.#stable / 2;
    this.#all = this.#half + (2 * warmup) / (this.#stable + coldFactor * this.#stable);
    this.#stored = this.#all - missing;
    this.freeMs = freeMs;
    const warmDelay = maxDelay * (coldFactor + 1) - warmup * (coldFactor - 1);
    this.#capacity = Math.floor((limit * warmDelay) / (window * (coldFactor + 1)));
  }

  /** The delay in milliseconds as a fraction; `undefined`: denied. */
  reserve(nowMs: number, cost: number): number | undefined {
    const { limit, window } = this.#fields;
    this.#spent = Math.max(0, this.#spent - limit * (nowMs - this.#atMs));
    this.#atMs = nowMs;
    if (this.#spent + cost * window > this.#capacity * window) return undefined;
    this.#spent += cost * window;
    return this.take(nowMs, cost);
  }

  /** Takes permits, and says how long they wait for those of before. */
  take(nowMs: number, cost: number): number {
    const fillMs = this.#fields.warmup / this.#all;
    if (nowMs > this.freeMs) {
      this.#stored = Math.min(this.#all, this.#stored + (nowMs - this.freeMs) / fillMs);
      this.freeMs = nowMs;
    }
    const delayMs = this.freeMs - nowMs;
    const taken = Math.min(cost, this.#stored);
    this.freeMs += this.#timeOf(this.#stored, taken) + (cost - taken) * this.#stable;
    this.#stored -= taken;
    return delayMs;
  }

  #timeOf(stored: number, taken: number): number {
    const cold = Math.min(taken, Math.max(0, stored - this.#half));
    const trapezoid = (cold * (this.#intervalAt(stored) + this.#intervalAt(stored - cold))) / 2;
    return (cold > 0 ? trapezoid : 0) + (taken - cold) * this.#stable;
  }

  #intervalAt(stored: number): number {
    const steep = (this.#stable * (this.#fields.coldFactor - 1)) / (this.#all - this.#half);
    return this.#stable + Math.max(0, stored - this.#half) * steep;
  }
}

const fields = fc
  .record({
    limit: fc.integer({ min: 1, max: 200 }),
    window: fc.integer({ min: 1, max: 1_500 }),
    warmup: fc.integer({ min: 1, max: 5_000 }),
    coldFactor: fc.integer({ min: 1, max: 12 }),
    warmDelay: fc.nat(5_000),
  })
  .map(({ warmDelay, ...rest }) => ({ ...rest, maxDelay: rest.warmup + warmDelay }))
  .filter(({ limit, window, maxDelay, warmup }) => limit * (maxDelay - warmup) >= window);
const costs = fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 20 }));
const calls = fc.array(
  fc.record({ afterMs: fc.oneof(fc.constant(0), fc.nat(60), fc.nat(5_000)), cost: costs }),
  { minLength: 1, maxLength: 60 },
);

test("random histories are told what Guava's description tells, rounded up to a millisecond", () => {
  // Of limits that are large a part is a small part of a millisecond, and so is all that is rounded on the way.
  const fast = fc
    .record({
      limit: fc.integer({ min: 1_000, max: 20_000 }),
      window: fc.integer({ min: 1_000, max: 1_000_000 }),
      warmup: fc.integer({ min: 1, max: 5_000 }),
      coldFactor: fc.integer({ min: 1, max: 3 }),
      warmDelay: fc.integer({ min: 1_000, max: 5_000 }),
    })
    .map(({ warmDelay, ...rest }) => ({ ...rest, maxDelay: rest.warmup + warmDelay }));
  let [delayed, cold] = [0, 0];
  fc.assert(
    fc.property(fast, calls, (policy, history) => {
      const [config, limiter] = [configure({ ...policy }), new RateLimiter(policy)];
      let [state, nowMs] = [undefined as SmoothWarmingUpState | undefined, 1_000];
      for (const [index, { afterMs, cost }] of history.entries()) {
        nowMs += afterMs;
        const decision = smoothWarmingUp.decide(config, state, nowMs, cost, 0);
        const exactMs = limiter.reserve(nowMs, cost);
        expect(decision.allowed).toBe(exactMs !== undefined);
        if (!decision.allowed || exactMs === undefined) continue;
        const { delayMs = 0 } = decision;
        const roundedMs = (4 * (index + 1)) / policy.limit;
        expect(delayMs).toBeGreaterThan(exactMs - roundedMs);
        expect(delayMs).toBeLessThan(exactMs + 1 + roundedMs);
        const isFilled = (state?.missing ?? 0) < 4 * policy.warmup * policy.limit;
        ({ state } = decision);
        delayed += delayMs > 0 ? 1 : 0;
        cold += isFilled ? 1 : 0;
      }
    }),
    { numRuns: depth(500, 5_000) },
  );
  expect(Math.min(delayed, cold)).toBeGreaterThan(500);
}, 120_000);

test("from one pause to the next what is owed is never less than Guava's, and less than 2 parts more", () => {
  fc.assert(
    fc.property(fields, calls, fc.array(costs, { minLength: 1, maxLength: 5 }), (policy, history, run) => {
      const config = configure({ ...policy });
      let [state, nowMs] = [undefined as SmoothWarmingUpState | undefined, 1_000];
      for (const { afterMs, cost } of history) {
        nowMs += afterMs;
        const decision = smoothWarmingUp.decide(config, state, nowMs, cost, 0);
        if (decision.allowed) ({ state } = decision);
      }
      // A pause, of which the storage is filled to somewhere, and then calls at one instant.
      nowMs += Math.ceil((state?.owedParts ?? 0) / policy.limit) + history.length;
      const { missing = 0, owedParts = 0, atMs = nowMs } = state ?? {};
      const idle = (nowMs - atMs) * policy.limit - owedParts;
      const stored = missing - idle * (policy.coldFactor + 5);
      const limiter = new RateLimiter(
        policy,
        nowMs,
        Math.max(0, stored) / (2 * policy.window * (policy.coldFactor + 1)),
      );
      for (const cost of run) {
        const decision = smoothWarmingUp.decide(config, state, nowMs, cost, 0);
        if (!decision.allowed) break;
        ({ state } = decision);
        limiter.take(nowMs, cost);
        const more = (state?.owedParts ?? 0) - (limiter.freeMs - nowMs) * policy.limit;
        expect(more).toBeGreaterThan(-1e-4);
        expect(more).toBeLessThan(2 + 1e-4);
      }
    }),
    { numRuns: depth(300, 5_000) },
  );
}, 120_000);

test("years of warming up and cooling down drift by nothing: each time costs what the first time cost", () => {
  const config = configure({ limit: 7, window: 997, warmup: 3_001, coldFactor: 4, maxDelay: 60_000 });
  let [state, nowMs] = [undefined as SmoothWarmingUpState | undefined, 0];
  const seen = new Set<number>();
  for (let round = 0; round < 20_000; round += 1) {
    for (let count = 0; count < 12; count += 1) {
      const decision = smoothWarmingUp.decide(config, state, nowMs, 1, 0);
      if (!decision.allowed) throw new Error("all pass here");
      ({ state } = decision);
    }
    seen.add(state?.owedParts ?? 0);
    const { resetAfterMs } = smoothWarmingUp.decide(config, state, nowMs, 0, 0);
    nowMs += resetAfterMs;
  }
  expect(seen.size).toBe(1);
});

test("a charge that comes back is stored again and owed no more, less what time has paid", () => {
  const config = guava(2, 4_000, 3);
  const five = smoothWarmingUp.debit(config, undefined, 0, 5);
  expect(smoothWarmingUp.credit(config, five, 0, 5, 0)).toBeUndefined();
  // 5 s of 8 are owed at first: after 2 s, for two more calls, as much less as has passed.
  const more = smoothWarmingUp.debit(config, five, 2_000, 2);
  const back = smoothWarmingUp.credit(config, more, 2_000, 5, 0);
  const owed = (state: SmoothWarmingUpState | undefined) => (state?.owedParts ?? 0) / 2;
  expect([owed(five), owed(more)]).toEqual([4_500, 3_500]);
  expect(owed(back)).toBeLessThan(owed(more));
  expect(owed(back)).toBeGreaterThan(0);
  // Once all has been paid and has filled the storage again, nothing comes back.
  const late = smoothWarmingUp.debit(config, undefined, 60_000, 4);
  const again = smoothWarmingUp.credit(config, late, 60_000, 5, 0);
  expect([again?.owedParts, again?.missing]).toEqual([late?.owedParts, late?.missing]);
});

test("a hold of which nothing was used changes nothing, not even what rounding knows of the last pause", () => {
  const config = guava(7, 4_001, 4);
  const state = smoothWarmingUp.debit(config, undefined, 0, 3);
  for (const atMs of [0, 1, 2, 100, 571, 572, 1_000, 1_714, 1_715, 3_000]) {
    const after = smoothWarmingUp.debit(config, state, atMs, 0);
    for (const laterMs of [0, 1, 3, 250, 2_000])
      for (const cost of [1, 2, 7]) {
        const told = (of: typeof state) => {
          const { state: _, ...words } = smoothWarmingUp.decide(config, of, atMs + laterMs, cost, 0) as {
            readonly state?: unknown;
          };
          return { atMs, laterMs, cost, ...words };
        };
        expect(told(after)).toEqual(told(state));
      }
  }
});

test("a policy that changes keeps how cold it is and what is owed, as far as its own calls could owe it", () => {
  const slow = configure({ limit: 2, window: 1_000, warmup: 4_000, maxDelay: 30_000 });
  const state = smoothWarmingUp.debit(slow, undefined, 0, 4);
  const told = (config: SmoothWarmingUpConfig) => {
    const decision = smoothWarmingUp.decide(config, state, 0, 1, 0);
    return decision.allowed ? decision.delayMs : `-${decision.retryAfterMs}`;
  };
  expect(told(slow)).toBe(4_000);
  // Four permits are owed, and half of the storage is there.
  expect(told(configure({ limit: 4, window: 1_000, warmup: 4_000, maxDelay: 30_000 }))).toBe(2_000);
  fc.assert(
    fc.property(fields, fields, fc.nat(60), fc.integer({ min: 1, max: 9 }), (given, other, units, cost) => {
      const [before, after] = [configure({ ...given }), configure({ ...other })];
      const taken = smoothWarmingUp.decide(before, undefined, 0, Math.min(units, before.burst), 0);
      if (!taken.allowed) throw new Error("the capacity fits an untouched quota");
      const decision = smoothWarmingUp.decide(after, taken.state, 0, cost, 0);
      if (decision.allowed) expect(decision.delayMs ?? 0).toBeLessThanOrEqual(other.maxDelay);
    }),
    { numRuns: depth(200, 1_000) },
  );
});

test("what a policy may not say is refused by name, and by default a warm key has its limit at once", () => {
  const policy = (more: object) =>
    ruleOf({ algorithm: "smooth-warming-up", limit: 10, window: "1s", warmup: "4s", ...more });
  // 1 s for its permits, and 2 s that 4 s of warming up take longer.
  expect(policy({})).toMatchObject({ capacity: 10, config: { coldFactor: 3, burst: 10 } });
  expect(policy({ maxDelay: "3s" }).capacity).toBe(10);
  expect(policy({ maxDelay: 2_100 }).capacity).toBe(1);
  expect(() => policy({ maxDelay: 2_099 })).toThrow(
    'maxDelay is "2099ms": must be at least 2100ms, so that one unit passes when cold',
  );
  expect(() => policy({ warmup: undefined })).toThrow(
    "warmup is missing: must be a duration of 1 ms or more",
  );
  expect(() => policy({ coldFactor: 0 })).toThrow("coldFactor is 0: must be an integer from 1");
  expect(() => policy({ coldFactor: 1_001 })).toThrow("coldFactor is 1001: must be at most 1000");
  expect(() => policy({ limit: 1_000_000_000, warmup: "1h" })).toThrow(
    'warmup is "1h": must be at most 1125899ms',
  );
  expect(() => policy({ limit: 1_000_000_000, maxDelay: "1h" })).toThrow('maxDelay is "1h": must be at most');
  expect(() => policy({ pool: "redis" })).toThrow('must be left out with algorithm "smooth-warming-up"');
  expect(smoothWarmingUp.localDecisions(configure({ limit: 9, window: 9, warmup: 9 }))).toEqual({
    admits: false,
    denies: true,
  });
});
