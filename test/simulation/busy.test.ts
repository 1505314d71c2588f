/** Load shedding for overloaded machines: production clients and objects in virtual time. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { beforeEach, describe, expect, test, vi } from "vitest";
import { drawnShedding, meansOf, shareOf, sheddingFigures } from "../../bench/shedding-plot.ts";
import { depth, inDeepRuns, IS_DEEP } from "../support/depth.ts";
import {
  OVERLOAD_AT_S,
  RELIEF_AT_S,
  simulateBusy,
  turnsOf,
  type BusySecond,
  type Faults,
  type Who,
} from "./busy-machines.ts";

const SEEDS = depth(
  [1],
  Array.from({ length: 4 }, (_, index) => index + 1),
);
const DOCS = join(import.meta.dirname, "..", "..", "docs");
const levelsOf = (seconds: readonly BusySecond[]) => seconds.map(({ level }) => level);

beforeEach(() => void vi.spyOn(console, "warn").mockImplementation(() => undefined));

const runs = new Map<string, Promise<BusySecond[]>>();

/** Simulates once for several tests. */
function run(who: Who, seed: number, faults: Faults = {}): Promise<BusySecond[]> {
  const name = `${who} ${seed} ${JSON.stringify(faults)}`;
  const seconds = runs.get(name) ?? simulateBusy(who, seed, faults);
  runs.set(name, seconds);
  return seconds;
}

/** Holds under any losses and crashes. */
function expectCalm(seconds: readonly BusySecond[]): void {
  const levels = levelsOf(seconds);
  // One overload: it rises once and falls once, and rests in between.
  expect(turnsOf(levels, 0.1)).toBe(1);
  expect(Math.max(...levels.slice(0, OVERLOAD_AT_S + 28))).toBe(0);
  const rest = levels.slice(OVERLOAD_AT_S + 300, RELIEF_AT_S);
  expect(Math.max(...rest) - Math.min(...rest)).toBeLessThan(0.2);
  for (const second of seconds) {
    expect(second.shed.critical).toBe(0);
    // The least important first.
    if (shareOf(second, "normal") > 0.1) expect(shareOf(second, "low")).toBeGreaterThan(0.9);
  }
  const means = meansOf(
    seconds.slice(OVERLOAD_AT_S + 300, RELIEF_AT_S).map(({ utilization }) => utilization),
  );
  expect(Math.max(...means)).toBeLessThan(0.9);
  expect(Math.min(...means)).toBeGreaterThan(0.6);
  expect(levels.at(-1)).toBe(0);
  expect(seconds.at(-1)?.shed.low).toBe(0);
}

describe.each(SEEDS)("seed %i", (seed) => {
  const faults: Record<string, Faults> = {
    "nothing goes wrong": {},
    ...(IS_DEEP && {
      "a tenth of the messages is lost": { lost: 0.1 },
      "the object forgets everything, again and again": {
        crashesAtS: [200, 230, 260, 300, 500, 700, 870, 900],
      },
    }),
  };
  test.each(Object.entries(faults))("it neither flaps nor oscillates: %s", async (_, what) => {
    expectCalm(await run("weir", seed, what));
  });
});

test("isolates ask once a second each, however many calls there are", async () => {
  const seconds = await run("weir", 1);
  const sum = (counts: readonly number[]) => counts.reduce((all, each) => all + each, 0);
  expect(sum(seconds.map(({ messages }) => messages))).toBeLessThanOrEqual(4 * seconds.length + 4);
  expect(sum(seconds.flatMap(({ offered }) => Object.values(offered)))).toBeGreaterThan(400_000);
});

inDeepRuns("an overload that is shorter than `after` sheds nothing", async () => {
  const seconds = await simulateBusy("weir", 1, { shed: { after: "10m" } });
  expect(Math.max(...levelsOf(seconds.slice(0, OVERLOAD_AT_S + 590)))).toBe(0);
});

inDeepRuns("a shedder that acts at once flaps: the laws above would find it", async () => {
  const seconds = await run("at-once", 1);
  const overload = seconds.slice(OVERLOAD_AT_S, RELIEF_AT_S).map((second) => shareOf(second, "low"));
  expect(turnsOf(overload, 0.5)).toBeGreaterThan(100);
});

inDeepRuns("the plot and the rows in the docs are what happens", async () => {
  const [weir, atOnce] = [await run("weir", 1), await run("at-once", 1)];
  expect(readFileSync(join(DOCS, "images", "load-shedding.svg"), "utf8")).toBe(drawnShedding(weir, atOnce));
  const page = readFileSync(join(DOCS, "load-shedding.md"), "utf8");
  expect(page).toContain(`| by default | ${sheddingFigures(weir)} |`);
  expect(page).toContain(`| at once | ${sheddingFigures(atOnce)} |`);
});
