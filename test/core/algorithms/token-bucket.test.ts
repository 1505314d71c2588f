import fc from "fast-check";
import { expect, test } from "vitest";
import {
  tokenBucket,
  type TokenBucketConfig,
  type TokenBucketState,
} from "../../../core/algorithms/token-bucket.ts";
import { depth } from "../../support/depth.ts";

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
    const config = configure({ limit, window, burst: 1 });
    const calls = Array.from({ length: 50 }, () => 0);
    expect(trace(config, ...calls)).toBe(`+${"-".repeat(49)}`);
  }
});

test("ten years of calls drift by nothing from exact fractions", () => {
  const TEN_YEARS_MS = 3_653 * DAY_MS;
  const STEPS = 20_000;
  // Each rate takes a quarter of a second, and most drift shows with any.
  const RATES = depth(5, 25);
  const rates = fc.record({
    limit: fc.integer({ min: 1, max: 1_000 }),
    window: fc.integer({ min: 1, max: 100_000 }),
  });
  fc.assert(
    fc.property(rates, fc.integer(), ({ limit, window }, seed) => {
      const config = configure({ limit, window, burst: 3 });
      const random = fc.sample(fc.nat(), { seed, numRuns: STEPS });
      let state: TokenBucketState | undefined;
      // The oracle: what is spent as an exact fraction with denominator `window`, in integers of any size.
      let [spent, atMs] = [0n, 0n];
      let nowMs = 0;
      let admitted = 0;
      for (const number of random) {
        // Mostly about as often as a unit comes back, now and then a leap, ten years in all.
        nowMs +=
          number % 50 === 0
            ? Math.floor((50 * TEN_YEARS_MS) / STEPS)
            : number % Math.ceil((2 * window) / limit + 2);
        const level = spent - BigInt(limit) * (BigInt(nowMs) - atMs);
        const refilled = level > 0n ? level : 0n;
        const decision = tokenBucket.decide(config, state, nowMs, 1, 0);
        expect(decision.allowed).toBe(refilled + BigInt(window) <= 3n * BigInt(window));
        if (!decision.allowed) continue;
        ({ state } = decision);
        [spent, atMs] = [refilled + BigInt(window), BigInt(nowMs)];
        admitted += 1;
      }
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
