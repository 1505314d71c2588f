/** The specimens of every algorithm in the registry for the law suite. A new algorithm adds an entry. */
import fc from "fast-check";
import type { AnyAlgorithm } from "../../core/algorithms/algorithm.ts";
import { minBurst } from "../../core/algorithms/token-bucket.ts";
import type { Rule } from "../../core/policies/policy.ts";
import { ruleOf } from "./rules.ts";
import { windowSpecimens, type Specimen } from "./specimen.ts";

type Numbers = Readonly<Record<string, number>>;

const DAY_MS = 86_400_000;
/** From 1 per 30 days to 1,000,000 per second, including windows that the limit does not divide. */
const LIMITS = fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 1_000_000 }));
const WINDOWS = fc.oneof(
  fc.integer({ min: 1, max: 2_000 }),
  fc.constantFrom(1, 60, 1_000, 60_000, DAY_MS, 30 * DAY_MS),
);

const DURATIONS = fc.oneof(fc.integer({ min: 1, max: 2_000 }), fc.constantFrom(1_000, 60_000, DAY_MS));

const TOKEN_BUCKET: Specimen<Numbers> = {
  fields: fc
    .record({
      limit: LIMITS,
      window: WINDOWS,
      burstShare: fc.constantFrom(0, 1 / 1_000, 1 / 3, 1, 5),
    })
    .map(({ limit, window, burstShare }) => ({
      limit,
      window,
      burst: burstShare === 0 ? limit : Math.max(minBurst(limit, window), Math.floor(limit * burstShare)),
    }))
    .filter(({ window, burst }) => burst * window <= 2 ** 53),
  keepsBound: ({ limit = 0, window = 0, burst = 0 }, units, lengthMs) =>
    BigInt(units) * BigInt(window) <= BigInt(burst) * BigInt(window) + BigInt(limit) * BigInt(lengthMs),
  paceMs: ({ limit = 0, window = 0 }) => Math.ceil(window / limit),
};

const numeric: Readonly<Record<string, Specimen<Numbers>>> = {
  "token-bucket": TOKEN_BUCKET,
  gcra: TOKEN_BUCKET,
  "sliding-log": {
    fields: fc
      .record({
        limit: fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 1_000_000 })),
        window: fc.oneof(
          fc.integer({ min: 1, max: 200 }),
          fc.constantFrom(1, 60, 1_000, 60_000, DAY_MS, 365 * DAY_MS),
        ),
        // Most policies have none, which 0 means.
        minInterval: fc.oneof({ weight: 3, arbitrary: fc.constant(0) }, fc.integer({ min: 1, max: 60 })),
      })
      .map(({ minInterval, ...fields }) => (minInterval === 0 ? fields : { ...fields, minInterval })),
    keepsBound: ({ limit = 0, window = 1 }, units, lengthMs) =>
      units <= limit * (Math.floor(lengthMs / window) + 1),
    paceMs: ({ limit = 0, window = 0, minInterval = 0 }) => Math.max(Math.ceil(window / limit), minInterval),
  },
  concurrency: {
    fields: fc.record({
      limit: fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 1_000_000 })),
      ttl: fc.oneof(fc.integer({ min: 1, max: 200 }), fc.constantFrom(1, 1_000, 60_000, DAY_MS)),
    }),
    // No lease is released here: each lasts for its full ttl.
    keepsBound: ({ limit = 0, ttl = 1 }, units, lengthMs) =>
      units <= limit * (Math.floor(lengthMs / ttl) + 1),
    paceMs: ({ limit = 0, ttl = 0 }) => Math.ceil(ttl / limit),
  },
  "adaptive-concurrency": {
    // Without reports the limit stays at its start. adaptive-concurrency.test.ts has laws with reports.
    fields: fc
      .record({
        limit: fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 1_000_000 })),
        ttl: fc.oneof(fc.integer({ min: 1, max: 200 }), fc.constantFrom(1, 1_000, 60_000, DAY_MS)),
      })
      .map((fields) => ({ ...fields, initial: fields.limit })),
    keepsBound: ({ limit = 0, ttl = 1 }, units, lengthMs) =>
      units <= limit * (Math.floor(lengthMs / ttl) + 1),
    paceMs: ({ limit = 0, ttl = 0 }) => Math.ceil(ttl / limit),
  },
  "permits-per-cycle": {
    // The laws hold for timeouts of a number of windows. For others see permits-per-cycle.test.ts.
    fields: fc
      .record({ limit: LIMITS, window: WINDOWS, cycles: fc.nat(3) })
      .filter(({ window, cycles }) => cycles * window <= 30 * DAY_MS)
      .map(({ cycles, ...rate }) => (cycles === 0 ? rate : { ...rate, timeout: cycles * rate.window })),
    keepsBound: ({ limit = 0, window = 1, timeout = 0 }, units, lengthMs) =>
      units <= limit * (Math.ceil(lengthMs / window) + 1 + timeout / window),
    delays: {
      keepsPace: ({ limit = 0, window = 1 }, units, lengthMs, largestCost) =>
        units <= limit * (Math.ceil(lengthMs / window) + 1) + largestCost - 1,
      mostMs: ({ timeout = 0 }) => timeout,
    },
    paceMs: ({ limit = 0, window = 0 }) => Math.ceil(window / limit),
  },
  "smooth-bursty": {
    fields: fc
      .record({ limit: LIMITS, window: WINDOWS, maxBurst: DURATIONS, maxDelay: DURATIONS })
      .filter(
        ({ limit, window, maxBurst, maxDelay }) =>
          limit * (maxBurst + maxDelay) >= window && limit * (maxBurst + maxDelay) <= 2 ** 53,
      ),
    keepsBound: ({ limit = 0, window = 0, maxBurst = 0, maxDelay = 0 }, units, lengthMs) =>
      BigInt(units) * BigInt(window) <= BigInt(limit) * BigInt(maxBurst + maxDelay + lengthMs),
    delays: {
      keepsPace: ({ limit = 0, window = 0, maxBurst = 0 }, units, lengthMs, largestCost) =>
        BigInt(units - largestCost) * BigInt(window) <= BigInt(limit) * BigInt(maxBurst + lengthMs + 1),
      mostMs: ({ maxDelay = 0 }) => maxDelay,
    },
    paceMs: ({ limit = 0, window = 0 }) => Math.ceil(window / limit),
  },
  "smooth-warming-up": {
    fields: fc
      .record({
        limit: LIMITS,
        window: WINDOWS,
        warmup: DURATIONS,
        coldFactor: fc.constantFrom(1, 2, 3, 3, 10),
        // The rest of the longest delay when all cold units have been paid.
        warmDelay: DURATIONS,
      })
      .filter(({ limit, window, warmup, coldFactor, warmDelay }) => {
        const isExact = limit * (coldFactor + 5) * (warmup + warmDelay) <= 2 ** 53;
        return isExact && limit * (warmDelay - 1) >= window;
      })
      .map(({ warmDelay, ...rest }) => {
        const coldMs = (rest.warmup * (rest.coldFactor - 1)) / (rest.coldFactor + 1);
        return { ...rest, maxDelay: warmDelay + Math.ceil(coldMs) };
      }),
    keepsBound: ({ limit = 0, window = 0, warmup = 0, coldFactor = 0, maxDelay = 0 }, units, lengthMs) => {
      const [times, warmMs] = [BigInt(coldFactor + 1), BigInt(maxDelay + lengthMs)];
      return (
        BigInt(units) * BigInt(window) * times <=
        BigInt(limit) * (warmMs * times - BigInt(warmup) * BigInt(coldFactor - 1))
      );
    },
    delays: {
      keepsPace: ({ limit = 0, window = 0 }, units, lengthMs, largestCost) =>
        BigInt(units - largestCost) * BigInt(window) <= BigInt(limit) * BigInt(lengthMs + 1),
      mostMs: ({ maxDelay = 0 }) => maxDelay,
    },
    roundsWhole: true,
    paceMs: ({ limit = 0, window = 0 }) => Math.ceil(window / limit),
  },
  "leaky-bucket": {
    fields: fc
      .record({
        limit: LIMITS,
        window: WINDOWS,
        burstShare: fc.constantFrom(0, 1 / 3, 1, 5),
        delay: fc.nat(12),
      })
      .map(({ limit, window, burstShare, delay }) => ({
        limit,
        window,
        burst: Math.floor(limit * burstShare),
        delay,
      }))
      .filter(({ window, burst }) => (burst + 1) * window <= 2 ** 53),
    keepsBound: ({ limit = 0, window = 0, burst = 0 }, units, lengthMs) =>
      BigInt(units) * BigInt(window) <= BigInt(burst + 1) * BigInt(window) + BigInt(limit) * BigInt(lengthMs),
    delays: {
      keepsPace: ({ limit = 0, window = 0, delay = 0 }, units, lengthMs, largestCost) =>
        BigInt(units) * BigInt(window) <=
        BigInt(Math.max(delay + 1, largestCost)) * BigInt(window) + BigInt(limit) * BigInt(lengthMs + 1),
      mostMs: ({ limit = 0, window = 0, burst = 0, delay = 0 }) =>
        Math.ceil((Math.max(0, burst - delay) * window) / limit),
    },
    paceMs: ({ limit = 0, window = 0 }) => Math.ceil(window / limit),
  },
  credits: {
    // A key begins with its limit here. The algorithm's own test has keys that begin with less.
    fields: fc.record({
      limit: fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 1_000_000 })),
    }),
    keepsBound: ({ limit = 0 }, units) => units <= limit,
    paceMs: () => 2 ** 52,
    neverRefills: true,
  },
  unlimited: {
    fields: fc.constant({}),
    keepsBound: () => true,
    paceMs: () => 0,
    countsNothing: true,
  },
};

export const specimens: Readonly<Record<string, Specimen>> = { ...numeric, ...windowSpecimens };

export function ruleWith(
  algorithm: AnyAlgorithm,
  fields: Readonly<Record<string, number | boolean | string>>,
): Rule {
  return ruleOf({ algorithm: algorithm.name, ...fields });
}
