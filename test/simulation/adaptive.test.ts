/** One adaptive limit for ten machines while the upstream's capacity halves and recovers, in virtual time. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { drawn, figuresOf, TITLES } from "../../bench/adaptive-plots.ts";
import { depth, inDeepRuns, IS_DEEP } from "../support/depth.ts";
import {
  CAPACITY,
  HALVED_AT_S,
  OFFERED_PER_S,
  PATIENCE_MS,
  RECOVERED_AT_S,
  simulate,
  summaryOf,
  type Adapt,
  type Second,
  type Who,
} from "./adaptive-machines.ts";

const DOCS = join(import.meta.dirname, "..", "..", "docs");
const SEEDS = depth([1], [1, 2]);
const HALF_PER_S = 400;

const runs = new Map<string, Second[]>();

function run(adapt: Adapt, who: Who, seed: number): Second[] {
  const name = `${adapt} ${who} ${seed}`;
  const seconds = runs.get(name) ?? simulate(adapt, who, seed);
  runs.set(name, seconds);
  return seconds;
}

/** The least number of timely answers per second, over five consecutive seconds. */
function leastGood(seconds: readonly Second[], fromS: number, toS: number): number {
  const windows = Array.from({ length: toS - fromS - 4 }, (_, index) => fromS + index);
  return Math.min(...windows.map((atS) => summaryOf(seconds, atS, atS + 5).goodPerS));
}

/** Of each limit the largest p99 in milliseconds and the least part that is answered while the upstream is halved. */
const SHARED = [
  ["gradient2", 350, 0.8],
  ["vegas", 150, 0.7],
  ["aimd", PATIENCE_MS, 0.6],
] as const;

describe.each(SEEDS)("seed %i", (seed) => {
  test.each(depth(SHARED.slice(1, 2), [...SHARED]))(
    "%s shared: it comes down in 5 s, p99 stays below %i ms, nothing collapses, it recovers",
    (adapt, mostMs, share) => {
      const seconds = run(adapt, "shared", seed);
      const before = summaryOf(seconds, 20, HALVED_AT_S);
      const halved = summaryOf(seconds, HALVED_AT_S + 5, RECOVERED_AT_S);
      const after = summaryOf(seconds, RECOVERED_AT_S + 10, RECOVERED_AT_S + 60);
      const lows = seconds.slice(HALVED_AT_S, HALVED_AT_S + 5).map(({ limit }) => limit);
      expect(Math.min(...lows)).toBeLessThanOrEqual(CAPACITY);
      expect(before.goodPerS).toBeGreaterThan(0.85 * OFFERED_PER_S);
      expect(halved.p99Ms).toBeLessThan(mostMs);
      expect(halved.goodPerS).toBeGreaterThan(share * HALF_PER_S);
      expect(leastGood(seconds, HALVED_AT_S, RECOVERED_AT_S)).toBeGreaterThan(0.5 * HALF_PER_S);
      expect(halved.lostPerS).toBeLessThan(0.01 * OFFERED_PER_S);
      expect(halved.limit).toBeLessThan(before.limit);
      expect(after.goodPerS).toBeGreaterThan(0.85 * OFFERED_PER_S);
      expect(after.p99Ms).toBeLessThan(150);
    },
  );

  test("without a limit the upstream serves only callers that have gone, and never recovers", () => {
    const seconds = run("gradient2", "none", seed);
    expect(summaryOf(seconds, 20, HALVED_AT_S).goodPerS).toBeGreaterThan(0.95 * OFFERED_PER_S);
    expect(summaryOf(seconds, 70, 180)).toMatchObject({ goodPerS: 0, p50Ms: PATIENCE_MS });
  });

  inDeepRuns(
    "ten limits of their own allow ten queues: Vegas is slow, and Gradient2 takes the queue for the upstream",
    () => {
      const [shared, own] = [run("vegas", "shared", seed), run("vegas", "own", seed)];
      const [one, ten] = [shared, own].map((seconds) => summaryOf(seconds, 70, RECOVERED_AT_S));
      expect(ten?.p50Ms ?? 0).toBeGreaterThan(3 * (one?.p50Ms ?? Infinity));
      if (!IS_DEEP) return;
      const gradient2 = run("gradient2", "own", seed);
      expect(summaryOf(gradient2, 80, RECOVERED_AT_S).goodPerS).toBeLessThan(0.1 * HALF_PER_S);
      expect(gradient2.at(-1)?.limit).toBeGreaterThan(10 * CAPACITY);
    },
  );
});

inDeepRuns(
  "AIMD backs off at every slow call, so in an overload it answers less than ten limits that see fewer of them",
  () => {
    const [shared, own] = (["shared", "own"] as const).map((who) => summaryOf(run("aimd", who, 1), 70, 120));
    expect(shared?.goodPerS ?? Infinity).toBeLessThan(own?.goodPerS ?? 0);
  },
);

test.each(depth<Adapt[]>(["vegas"], ["gradient2", "vegas", "aimd"]))(
  "the plot of %s and its rows in the docs are what happens",
  (adapt) => {
    const [shared, own] = [run(adapt, "shared", 1), run(adapt, "own", 1)];
    const plot = readFileSync(join(DOCS, "images", `adaptive-${adapt}.svg`), "utf8");
    expect(plot).toBe(drawn(TITLES[adapt], shared, own));
    const page = readFileSync(join(DOCS, "adaptive-concurrency.md"), "utf8");
    expect(page).toContain(`| ${TITLES[adapt]} | one limit for all | ${figuresOf(shared)} |`);
    expect(page).toContain(`| ${TITLES[adapt]} | each machine its own | ${figuresOf(own)} |`);
  },
);
