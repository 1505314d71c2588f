import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  minBurst,
  tokenBucket,
  type TokenBucketConfig,
  type TokenBucketState,
} from "../../../core/algorithms/token-bucket.ts";
import { depth } from "../../support/depth.ts";
import { reachable } from "../../support/rules.ts";

const DAY_MS = 86_400_000;

const configure = (fields: Record<string, number>): TokenBucketConfig => {
  const config = tokenBucket.configure(fields);
  if ("problem" in config) throw new Error(JSON.stringify(config));
  return config;
};

/** Plays calls of cost 1 at these instants and writes + or - for each. */
function trace(config: TokenBucketConfig, ...instantsMs: number[]): string {
  let state: TokenBucketState | undefined;
  return instantsMs
    .map((nowMs) => {
      const decision = tokenBucket.decide(config, state, nowMs, 1, 0);
      if (decision.allowed) ({ state } = decision);
      return decision.allowed ? "+" : "-";
    })
    .join("");
}

test("the example of the essay: 3 per second, the fourth passes after 334 ms", () => {
  const config = configure({ limit: 3, window: 1_000 });
  expect(trace(config, 0, 0, 0, 0, 333, 334, 334)).toBe("+++--+-");
});

test("a limit of 1 admits one, and the next exactly a window later", () => {
  const config = configure({ limit: 1, window: 30 * DAY_MS });
  expect(trace(config, 0, 0, 30 * DAY_MS - 1, 30 * DAY_MS, 30 * DAY_MS)).toBe("+--+-");
});

test("1,000,000 per second is exact within one millisecond", () => {
  const config = configure({ limit: 1_000_000, window: 1_000 });
  const empty = tokenBucket.decide(config, undefined, 0, 1_000_000, 0);
  if (!empty.allowed) throw new Error("a full bucket refused its burst");
  expect(tokenBucket.decide(config, empty.state, 0, 1, 0)).toMatchObject({ allowed: false, retryAfterMs: 1 });
  expect(tokenBucket.decide(config, empty.state, 1, 1_000, 0)).toMatchObject({ allowed: true, remaining: 0 });
  expect(tokenBucket.decide(config, empty.state, 1, 1_001, 0)).toMatchObject({
    allowed: false,
    retryAfterMs: 1,
  });
});

test("an odd fraction limits: 1000 per 60 ms and 60 per 1000 ms (redis-cell #50)", () => {
  for (const [limit, window] of [
    [1_000, 60],
    [60, 1_000],
    [1_000, 7],
  ] as const) {
    // No policy may have so small a burst. A bucket with it counts exactly all the same.
    const config = { limit, windowMs: window, burst: 1 };
    const calls = Array.from({ length: 50 }, () => 0);
    expect(trace(config, ...calls)).toBe(`+${"-".repeat(49)}`);
  }
});

test("ten years of calls drift by nothing from exact fractions", () => {
  const TEN_YEARS_MS = 3_653 * DAY_MS;
  const STEPS = 20_000;
  // Each rate takes a quarter of a second, and most drift shows with any.
  const RATES = depth(2, 25);
  const rates = fc.record({
    limit: fc.integer({ min: 1, max: 1_000 }),
    window: fc.integer({ min: 1, max: 100_000 }),
  });
  fc.assert(
    fc.property(rates, fc.integer(), ({ limit, window }, seed) => {
      const config = configure({ limit, window, burst: Math.max(3, minBurst(limit, window)) });
      const random = fc.sample(fc.nat(), { seed, numRuns: STEPS });
      let state: TokenBucketState | undefined;
      // The oracle: what is spent as an exact fraction with denominator `window`, in integers of any size.
      let [spent, atMs] = [0n, 0n];
      let nowMs = 0;
      let admitted = 0;
      const wrongAtMs: number[] = [];
      for (const number of random) {
        // Mostly about as often as a unit comes back, now and then a leap, ten years in all.
        nowMs +=
          number % 50 === 0
            ? Math.floor((50 * TEN_YEARS_MS) / STEPS)
            : number % Math.ceil((2 * window) / limit + 2);
        const level = spent - BigInt(limit) * (BigInt(nowMs) - atMs);
        const refilled = level > 0n ? level : 0n;
        const decision = tokenBucket.decide(config, state, nowMs, 1, 0);
        const isAllowed = refilled + BigInt(window) <= BigInt(config.burst) * BigInt(window);
        if (decision.allowed !== isAllowed) wrongAtMs.push(nowMs);
        if (!decision.allowed) continue;
        ({ state } = decision);
        [spent, atMs] = [refilled + BigInt(window), BigInt(nowMs)];
        admitted += 1;
      }
      expect(wrongAtMs).toEqual([]);
      expect(nowMs).toBeGreaterThan(TEN_YEARS_MS / 2);
      expect(admitted).toBeGreaterThan(STEPS / 10);
    }),
    { numRuns: RATES },
  );
}, 60_000);

test("what cannot be counted exactly is refused, and says what can", () => {
  expect(tokenBucket.configure({ limit: 1, window: 2 ** 52, burst: 2 })).not.toHaveProperty("problem");
  const refused = tokenBucket.configure({ limit: 1_000_000_000, window: 30 * DAY_MS });
  expect(refused).toMatchObject({
    problem: { field: "limit", allowed: expect.stringContaining("at most 3474") },
  });
  const burst = tokenBucket.configure({ limit: 1, window: 30 * DAY_MS, burst: 10_000_000 });
  expect(burst).toMatchObject({ problem: { field: "burst" } });
});

describe("a caller that waits as it is told", () => {
  const rates = fc.record({
    limit: fc.integer({ min: 1, max: 40 }),
    windowMs: fc.integer({ min: 1, max: 40 }),
  });

  /** Takes units one by one, and waits when it is denied: how many units in how long, until `isOver` says so. */
  function waiting(config: TokenBucketConfig, isOver: (units: number, atMs: number) => boolean) {
    let state: TokenBucketState | undefined;
    let [units, atMs] = [0, 0];
    for (;;) {
      const decision = tokenBucket.decide(config, state, atMs, 1, 0);
      if (decision.allowed) {
        ({ state } = decision);
        units += 1;
        continue;
      }
      if (isOver(units, atMs)) return { units, atMs };
      atMs += decision.retryAfterMs ?? 0;
    }
  }

  test("reaches the rate with the least burst that a policy may have", () => {
    fc.assert(
      fc.property(rates, ({ limit, windowMs }) => {
        const config = configure({ limit, window: windowMs, burst: minBurst(limit, windowMs) });
        waiting(config, (units, atMs) => {
          expect(units * windowMs).toBeGreaterThanOrEqual(limit * atMs);
          return atMs > depth(1_000, 5_000);
        });
      }),
      { numRuns: depth(40, 100) },
    );
  });

  test("falls short with less, and a policy with less is refused with the burst it needs", () => {
    fc.assert(
      fc.property(rates, ({ limit, windowMs }) => {
        const burst = minBurst(limit, windowMs) - 1;
        if (burst === 0) return;
        expect(tokenBucket.configure({ limit, window: windowMs, burst })).toEqual({
          problem: { field: "burst", allowed: expect.stringContaining(`at least ${burst + 1} for`) },
        });
        const short = waiting(
          { limit, windowMs, burst },
          (units, atMs) => units * windowMs < limit * atMs || atMs > 1_000_000,
        );
        expect(short.units * windowMs).toBeLessThan(limit * short.atMs);
      }),
    );
  });

  test("600 a second with a burst of 1 would be 500, so it has to have 2; 10 a second needs no more than 1", () => {
    const over = (_: number, atMs: number) => atMs >= 10_000;
    expect(waiting({ limit: 600, windowMs: 1_000, burst: 1 }, over).units).toBe(5_001);
    expect(waiting(configure({ limit: 600, window: 1_000, burst: 2 }), over).units).toBeGreaterThan(6_000);
    expect(configure({ limit: 10, window: 1_000, burst: 1 })).toMatchObject({ burst: 1 });
  });

  test("what was stored under a burst that is refused now is read, and its consumption stays", () => {
    const stored = { spentParts: 1_000, windowMs: 1_000, burst: 1, atMs: 0 };
    const config = configure({ limit: 600, window: 1_000, burst: 2 });
    const state = tokenBucket.unpack(config, JSON.parse(JSON.stringify(stored)), []);
    expect(tokenBucket.decide(config, state, 0, 0, 0)).toMatchObject({ remaining: 1, resetAfterMs: 2 });
  });
});

test("debt recovers by refill and not before: the wait is exact below zero too", () => {
  const config = configure({ limit: 2, window: 1_000 });
  const state = tokenBucket.debit(config, undefined, 0, 10);
  expect(tokenBucket.decide(config, state, 0, 1, 0)).toMatchObject({
    allowed: false,
    retryAfterMs: 4_500,
    remaining: 0,
  });
  expect(tokenBucket.decide(config, state, 4_499, 1, 0).allowed).toBe(false);
  expect(tokenBucket.decide(config, state, 4_500, 1, 0).allowed).toBe(true);
});

test("a policy that changes keeps the consumption, and its new limit counts", () => {
  const used = (fields: Record<string, number>, units: number) => {
    const decision = tokenBucket.decide(configure(fields), undefined, 0, units, 0);
    return decision.allowed ? decision.state : undefined;
  };
  const remaining = (fields: Record<string, number>, state: TokenBucketState | undefined) =>
    tokenBucket.decide(configure(fields), state, 0, 0, 0).remaining;
  const seven = used({ limit: 10, window: DAY_MS }, 7);
  expect(remaining({ limit: 20, window: DAY_MS }, seven)).toBe(13);
  expect(remaining({ limit: 5, window: DAY_MS }, seven)).toBe(0);
  expect(remaining({ limit: 10, window: 30 * DAY_MS }, seven)).toBe(3);
  expect(remaining({ limit: 10, window: 7 }, seven)).toBe(3);
  // Rounding is never in the caller's favour: 1 part of 3 becomes 1 of 2 and not 0.
  expect(
    remaining({ limit: 1, window: 2, burst: 1 }, { spentParts: 1, windowMs: 3, burst: 1, atMs: 0 }),
  ).toBe(0);
});

test("a policy that shrinks far below the consumption begins empty, and not in debt for years", () => {
  const spent = tokenBucket.debit(configure({ limit: 500, window: 1_000 }), undefined, 0, 400);
  const login = configure({ limit: 5, window: 900_000 });
  expect(tokenBucket.decide(login, spent, 0, 1, 0)).toMatchObject({ allowed: false, retryAfterMs: 180_000 });
});

test("debt of the same policy is owed in full", () => {
  const config = configure({ limit: 5, window: 1_000 });
  expect(tokenBucket.decide(config, tokenBucket.debit(config, undefined, 0, 400), 0, 1, 0)).toMatchObject({
    retryAfterMs: 79_200,
  });
});

test("what is left, and what could still be given back of each charge, are together never over the burst", () => {
  const step = fc.record({
    afterMs: fc.oneof(fc.constant(0), fc.nat(3), fc.nat(5_000)),
    units: fc.integer({ min: 1, max: 20 }),
    back: fc.option(fc.nat(50), { freq: 2 }),
  });
  const fields = fc
    .record({
      limit: fc.integer({ min: 1, max: 30 }),
      window: fc.integer({ min: 1, max: 2_000 }),
      burst: fc.integer({ min: 1, max: 40 }),
    })
    .map(reachable);
  fc.assert(
    fc.property(fields, fc.array(step, { maxLength: 40 }), (given, steps) => {
      const config = configure(given);
      const { limit, windowMs, burst } = config;
      const charges: { units: number; atMs: number }[] = [];
      let [state, nowMs] = [undefined as TokenBucketState | undefined, 1_000];
      for (const { afterMs, units, back } of steps) {
        nowMs += afterMs;
        const decision = tokenBucket.decide(config, state, nowMs, units, 0);
        if (decision.allowed) {
          ({ state } = decision);
          charges.push({ units, atMs: nowMs });
        }
        const charge = back === null ? undefined : charges.splice(back % Math.max(1, charges.length), 1)[0];
        if (charge !== undefined) state = tokenBucket.credit(config, state, nowMs, charge.units, charge.atMs);
        let parts = burst * windowMs;
        if (state !== undefined) parts -= Math.max(0, state.spentParts - limit * (nowMs - state.atMs));
        for (const { units: taken, atMs } of charges)
          parts += Math.max(0, taken * windowMs - limit * (nowMs - atMs));
        expect(parts).toBeLessThanOrEqual(burst * windowMs);
      }
    }),
    { numRuns: depth(400, 20_000) },
  );
});

test("a charge gives back what is not refilled yet: of 10 per second, 5 after half a second and none after one", () => {
  const config = configure({ limit: 10, window: 1_000 });
  const empty = tokenBucket.debit(config, undefined, 0, 10);
  const refill = tokenBucket.debit(config, empty, 500, 5);
  const given = (nowMs: number, units: number) => {
    const state = tokenBucket.credit(config, refill, nowMs, units, 0);
    return tokenBucket.decide(config, state, nowMs, 0, 0).remaining;
  };
  expect([given(500, 10), given(500, 6), given(500, 5), given(1_000, 10)]).toEqual([5, 1, 0, 5]);
});

test("a record that refills while the state does not, since the clock was put back, does not cover it", () => {
  const config = { limit: 10, windowMs: 1_000, burst: 10 };
  const state = { spentParts: 5_000, windowMs: 1_000, burst: 10, atMs: 500 };
  expect(tokenBucket.covers(config, { ...state, atMs: 100 }, 0, state, 0, 100)).toBe(false);
  expect(tokenBucket.covers(config, state, 0, state, 0, 100)).toBe(true);
});

describe("a bucket that shrinks and grows again", () => {
  const large = { limit: 100, windowMs: 1_000, burst: 100 };
  const small = { limit: 10, windowMs: 1_000, burst: 10 };

  test("begins empty and not with a debt, and what was spent before counts when it has grown again", () => {
    const spent = tokenBucket.debit(large, undefined, 0, 90);
    const shrunk = tokenBucket.decide(small, spent, 0, 0, 0);
    expect(shrunk).toMatchObject({ remaining: 0, resetAfterMs: 1_000 });
    const used = tokenBucket.decide(small, spent, 500, 5, 0);
    expect(used).toMatchObject({ allowed: true, remaining: 0 });
    const after = used.allowed ? used.state : undefined;
    // 90 and 5 were taken, and 5 came back.
    expect(tokenBucket.decide(large, after, 500, 0, 0)).toMatchObject({ remaining: 10 });
  });

  test("has nothing to remember once it is whole", () => {
    const spent = tokenBucket.debit(large, undefined, 0, 90);
    const touched = tokenBucket.debit(small, spent, 0, 0);
    expect(tokenBucket.untouchedAtMs(small, touched, undefined)).toBe(1_000);
  });
});
