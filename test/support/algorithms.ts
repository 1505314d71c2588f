/** For every algorithm of the registry, what the law suite needs to know of it. A new algorithm adds an entry. */
import fc from "fast-check";
import type { AnyAlgorithm } from "../../durable-objects/algorithms/algorithm.ts";

export interface Specimen {
  /** Fields as a policy gives them, durations in milliseconds; `configure` must accept every one. */
  readonly fields: fc.Arbitrary<Record<string, number>>;
  /** Whether `units` admitted within `lengthMs` (first to last instant) keep the bound the algorithm promises. */
  keepsBound(fields: Readonly<Record<string, number>>, units: number, lengthMs: number): boolean;
}

const DAY_MS = 86_400_000;

export const specimens: Readonly<Record<string, Specimen>> = {
  "token-bucket": {
    // From 1 per 30 days to 1,000,000 per second, odd fractions among them, the window never a round number's friend.
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
  },
};

/** A configuration, or the reason there is none, which a specimen must not give. */
export function configured(algorithm: AnyAlgorithm, fields: Readonly<Record<string, number>>): object {
  const config = algorithm.configure(fields);
  if ("problem" in config) throw new Error(`the specimen is refused: ${JSON.stringify({ fields, config })}`);
  return config;
}
