/** What the law suite needs to know of every algorithm in the registry. A new algorithm adds an entry. */
import fc from "fast-check";
import type { AnyAlgorithm } from "../../core/algorithms/algorithm.ts";
import type { Rule } from "../../core/policies/policy.ts";
import { ruleOf } from "./rules.ts";

export interface Specimen {
  /** Fields as a policy gives them, durations in milliseconds; `configure` must accept every one. */
  readonly fields: fc.Arbitrary<Given>;
  /** Whether `units` admitted within `lengthMs` (first to last instant) keep the bound the algorithm promises. */
  keepsBound(fields: Given, units: number, lengthMs: number): boolean;
  /** The distance between calls of cost 1 that the quota always admits, in milliseconds. */
  paceMs(fields: Given): number;
}

export type Given = Readonly<Record<string, number>>;

const DAY_MS = 86_400_000;

export const specimens: Readonly<Record<string, Specimen>> = {
  "token-bucket": {
    // From 1 per 30 days to 1,000,000 per second. Among them are windows that the limit does not divide.
    fields: fc
      .record({
        limit: fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 1_000_000 })),
        window: fc.oneof(
          fc.integer({ min: 1, max: 2_000 }),
          fc.constantFrom(1, 60, 1_000, 60_000, DAY_MS, 30 * DAY_MS),
        ),
        burstShare: fc.constantFrom(0, 1 / 1_000, 1 / 3, 1, 5),
      })
      .map(({ limit, window, burstShare }) => ({
        limit,
        window,
        burst: burstShare === 0 ? limit : Math.max(1, Math.floor(limit * burstShare)),
      }))
      .filter(({ window, burst }) => burst * window <= 2 ** 53),
    keepsBound: ({ limit = 0, window = 0, burst = 0 }, units, lengthMs) =>
      BigInt(units) * BigInt(window) <= BigInt(burst) * BigInt(window) + BigInt(limit) * BigInt(lengthMs),
    paceMs: ({ limit = 0, window = 0 }) => Math.ceil(window / limit),
  },
  "sliding-log": {
    fields: fc
      .record({
        limit: fc.oneof(fc.integer({ min: 1, max: 12 }), fc.integer({ min: 1, max: 1_000_000 })),
        window: fc.oneof(
          fc.integer({ min: 1, max: 200 }),
          fc.constantFrom(1, 60, 1_000, 60_000, DAY_MS, 365 * DAY_MS),
        ),
        // Most policies have none; 0 stands for that.
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
    // No lease is released here: each lasts for all of its ttl.
    keepsBound: ({ limit = 0, ttl = 1 }, units, lengthMs) =>
      units <= limit * (Math.floor(lengthMs / ttl) + 1),
    paceMs: ({ limit = 0, ttl = 0 }) => Math.ceil(ttl / limit),
  },
};

/** A rule with these fields. */
export function ruleWith(algorithm: AnyAlgorithm, fields: Readonly<Record<string, number | boolean>>): Rule {
  return ruleOf({ algorithm: algorithm.name, ...fields });
}
