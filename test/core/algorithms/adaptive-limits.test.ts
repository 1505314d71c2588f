import fc from "fast-check";
import { describe, expect, test } from "vitest";
import {
  type Estimate,
  type LimitTerms,
  nextEstimate,
  type Sample,
} from "../../../core/algorithms/adaptive/adaptive-limits.ts";
import { depth } from "../../support/depth.ts";
import { PlainLimit } from "../../support/plain-limits.ts";

const AIMD: LimitTerms = { adapt: "aimd", backoffRatio: 0.9, timeoutMs: 5_000 };
const VEGAS: LimitTerms = { adapt: "vegas", alpha: 3, beta: 6, smoothing: 1, probeMultiplier: 30 };
const OF_LOGARITHM: LimitTerms = { adapt: "vegas", smoothing: 1, probeMultiplier: 30 };
const GRADIENT2: LimitTerms = {
  adapt: "gradient2",
  rttTolerance: 1.5,
  smoothing: 0.2,
  longWindow: 600,
  queueSize: 4,
};

type Call = readonly [durationMs: number, inFlight: number, isDropped?: "dropped"];

/** The limit after each of these calls, rounded down. */
function limits(terms: LimitTerms, initial: number, ceiling: number, calls: readonly Call[], floor = 1) {
  let estimate: Estimate = { limit: initial };
  return calls.map(([durationMs, inFlight, dropped]) => {
    const sample = { durationMs, inFlight, isDropped: dropped !== undefined };
    estimate = nextEstimate(terms, { floor, ceiling }, estimate, sample);
    return Math.floor(estimate.limit);
  });
}

describe("the numbers of Netflix's own tests", () => {
  test("AIMD: a success adds 1, a drop takes a tenth", () => {
    expect(limits(AIMD, 10, 200, [[1, 10]])).toEqual([11]);
    expect(limits(AIMD, 10, 200, [[1, 1, "dropped"]])).toEqual([9]);
  });

  test("Vegas: it rises by beta without a queue, falls by 1 with a long one, rests in between", () => {
    const first: Call = [10, 10];
    expect(limits(VEGAS, 10, 20, [first, [10, 11]])).toEqual([10, 16]);
    expect(limits(VEGAS, 10, 20, [first, [50, 11]])).toEqual([10, 9]);
    expect(limits(VEGAS, 10, 20, [first, [14, 14]])).toEqual([10, 10]);
  });

  test("Vegas: at 10,000 the steps are 4, so beta is 24", () => {
    const calls: Call[] = [
      [10_000, 5_000],
      [10_000, 6_000],
    ];
    expect(limits(OF_LOGARITHM, 10_000, 20_000, calls)).toEqual([10_000, 10_024]);
  });

  test("Gradient2: ten calls are averaged plainly, then each weighs 2 of 101", () => {
    const terms: LimitTerms = { ...GRADIENT2, longWindow: 100 };
    let estimate: Estimate = { limit: 20 };
    const averages = [10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 100].map((durationMs) => {
      const sample = { durationMs, inFlight: 0, isDropped: false };
      estimate = nextEstimate(terms, { floor: 1, ceiling: 100 }, estimate, sample);
      return estimate.longMs ?? 0;
    });
    const expected = [10, 10.5, 11, 11.5, 12, 12.5, 13, 13.5, 14, 14.5, 16.2];
    for (const [index, each] of expected.entries()) expect(averages[index]).toBeCloseTo(each, 1);
  });
});

test("AIMD: a call over its timeout is a drop, and no success adds while less than half is in flight", () => {
  const calls: Call[] = [
    [5_000, 10],
    [5_001, 10],
    [1, 4],
    [1, 5],
  ];
  expect(limits(AIMD, 10, 200, calls)).toEqual([11, 9, 9, 10]);
});

test("Gradient2: the limit grows by a fifth of queueSize at a steady duration, and falls by a tenth at most", () => {
  const steady: Call = [100, 50];
  expect(limits(GRADIENT2, 50, 100, [steady, steady, steady])).toEqual([50, 51, 52]);
  const slow = limits(GRADIENT2, 50, 100, [...Array.from({ length: 12 }, () => steady), [100_000, 50]]);
  // 59.6 * 0.8 + (59.6 * 0.5 + 4) * 0.2
  expect(slow.slice(-2)).toEqual([59, 54]);
});

test("Vegas measures the duration without a queue anew, also when it has become longer", () => {
  let estimate: Estimate = { limit: 10, noLoadMs: 10, sinceProbe: 0, probes: 0 };
  const sample = { durationMs: 25, inFlight: 1, isDropped: false };
  const probes: number[] = [];
  for (let calls = 1; calls <= 3_000; calls += 1) {
    const next = nextEstimate(OF_LOGARITHM, { floor: 1, ceiling: 100 }, estimate, sample);
    if (next.probes !== estimate.probes) probes.push((estimate.sinceProbe ?? 0) + 1);
    estimate = next;
  }
  expect(estimate.noLoadMs).toBe(25);
  expect(Math.min(...probes)).toBeGreaterThanOrEqual(150);
  expect(Math.max(...probes)).toBeLessThanOrEqual(300);
  expect(new Set(probes).size).toBe(probes.length);
});

const terms: fc.Arbitrary<LimitTerms> = fc.oneof(
  fc.record({
    adapt: fc.constant("aimd" as const),
    backoffRatio: fc.double({ min: 0.5, max: 0.999, noNaN: true }),
    timeoutMs: fc.integer({ min: 1, max: 500 }),
  }),
  fc
    .record({
      adapt: fc.constant("vegas" as const),
      alpha: fc.integer({ min: 1, max: 6 }),
      more: fc.nat(6),
      isGiven: fc.boolean(),
      smoothing: fc.double({ min: 0.05, max: 1, noNaN: true }),
      probeMultiplier: fc.integer({ min: 1, max: 30 }),
    })
    .map(({ alpha, more, isGiven, ...rest }) => ({ ...rest, ...(isGiven && { alpha, beta: alpha + more }) })),
  fc.record({
    adapt: fc.constant("gradient2" as const),
    rttTolerance: fc.double({ min: 1, max: 3, noNaN: true }),
    smoothing: fc.double({ min: 0.05, max: 1, noNaN: true }),
    longWindow: fc.integer({ min: 1, max: 1_000 }),
    queueSize: fc.integer({ min: 1, max: 10 }),
  }),
);
const sample: fc.Arbitrary<Sample> = fc.record({
  durationMs: fc.oneof(fc.integer({ min: 1, max: 30 }), fc.integer({ min: 1, max: 1_000 })),
  inFlight: fc.integer({ min: 0, max: 200 }),
  isDropped: fc.boolean(),
});
const bounds = fc
  .tuple(fc.integer({ min: 1, max: 1_000 }), fc.integer({ min: 1, max: 1_000 }), fc.nat(100))
  .map(([one, other, part]) => {
    const [floor, ceiling] = [Math.min(one, other), Math.max(one, other)];
    return { floor, ceiling, initial: floor + Math.floor(((ceiling - floor) * part) / 100) };
  });

test("each rule is what a naive program makes of the same calls, and keeps between floor and ceiling", () => {
  fc.assert(
    fc.property(terms, bounds, fc.array(sample, { maxLength: 120 }), (given, range, samples) => {
      const { floor, ceiling, initial } = range;
      const plain = new PlainLimit(given, floor, initial, ceiling);
      let estimate: Estimate = { limit: initial };
      for (const each of samples) {
        estimate = nextEstimate(given, range, Object.freeze(estimate), each);
        expect(estimate.limit).toBeCloseTo(plain.add(each), 6);
        expect(estimate.limit).toBeGreaterThanOrEqual(floor);
        expect(estimate.limit).toBeLessThanOrEqual(ceiling);
        // The two round apart in the last bits, which must not add up.
        plain.limit = estimate.limit;
      }
    }),
    { numRuns: depth(1_000, 5_000) },
  );
});
