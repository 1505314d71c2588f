import { expect, test } from "vitest";
import type { Summary } from "../../../core/stats/messages.ts";
import { mergedKeys, NO_KEYS, TopKeys } from "../../../core/stats/top-keys.ts";
import { seededRandom, seedOr, whole } from "../../support/random.ts";

const STREAMS = 400;

/** A stream in which some keys come far more often than others, and what is true of it. */
function drawn(seed: number): { readonly stream: readonly string[]; readonly most: number } {
  const random = seededRandom(seed);
  const [length, keys, skew] = [whole(random, 800), 1 + whole(random, 60), 1 + random() * 4];
  const stream = Array.from({ length }, () => `k${Math.floor(keys * random() ** skew)}`);
  return { stream, most: 1 + whole(random, 20) };
}

function summaryOf(stream: readonly string[], most: number): Summary {
  const top = new TopKeys(most);
  for (const key of stream) top.count(key);
  return top.summary;
}

/** Holds a summary to what it promises of a stream. */
function expectBounds({ keys, least }: Summary, stream: readonly string[], most: number): void {
  const truth = new Map<string, number>();
  for (const key of stream) truth.set(key, (truth.get(key) ?? 0) + 1);
  expect(keys.length).toBeLessThanOrEqual(most);
  expect(new Set(keys.map(([key]) => key)).size).toBe(keys.length);
  const wrong = keys.filter(([key, count, error]) => {
    const times = truth.get(key) ?? 0;
    return !(times <= count && count - error <= times && error <= stream.length / most);
  });
  expect(wrong).toEqual([]);
  const listed = new Set(keys.map(([key]) => key));
  expect([...truth].filter(([key, times]) => !listed.has(key) && !(times <= least))).toEqual([]);
  expect(least).toBeLessThanOrEqual(stream.length / most);
  expect(keys.map(([, count]) => count)).toEqual(keys.map(([, count]) => count).toSorted((a, b) => b - a));
}

test("of a stream, however it is split and merged, no count is too low, nor too high by more than its error", () => {
  const first = seedOr(1);
  for (let seed = first; seed < first + STREAMS; seed += 1) {
    const { stream, most } = drawn(seed);
    const random = seededRandom(seed + 1);
    const parts: string[][] = Array.from({ length: 1 + whole(random, 6) }, () => []);
    for (const key of stream) parts[whole(random, parts.length)]?.push(key);
    const summaries = parts.map((part) => summaryOf(part, most));
    const inOrder = summaries.reduce((a, b) => mergedKeys(a, b, most), NO_KEYS);
    const backwards = summaries.reduceRight((a, b) => mergedKeys(b, a, most), NO_KEYS);
    for (const summary of [summaryOf(stream, most), inOrder, backwards])
      try {
        expectBounds(summary, stream, most);
      } catch (error) {
        throw new Error(`SEED=${seed}: ${String(error)}`, { cause: error });
      }
  }
});

test("as long as there are counters for all keys, counts are exact", () => {
  const { keys, least } = summaryOf(["a", "b", "a", "c", "a", "b"], 3);
  expect(keys).toEqual([
    ["a", 3, 0],
    ["b", 2, 0],
    ["c", 1, 0],
  ]);
  expect(summaryOf(["a"], 3).least).toBe(0);
  expect(least).toBe(1);
});

test("a key that comes more often than any share of the counters is there, whatever else comes", () => {
  const flood = Array.from({ length: 10_000 }, (_, index) => (index % 40 === 0 ? "hot" : `cold${index}`));
  const hot = summaryOf(flood, 64).keys.find(([key]) => key === "hot");
  expect(hot?.[1]).toBeGreaterThanOrEqual(250);
});

test("merging with nothing changes nothing", () => {
  const summary = summaryOf(["a", "a", "b"], 2);
  expect(mergedKeys(summary, NO_KEYS, 2)).toEqual(summary);
  expect(mergedKeys(NO_KEYS, summary, 2)).toEqual(summary);
});

test("merged keys have the plan of the later summary, and that of the earlier one where only it has the key", () => {
  const earlier: Summary = {
    keys: [
      ["a", 2, 0, "free"],
      ["b", 1, 0, "pro"],
      ["c", 1, 0, "pro"],
    ],
    least: 0,
  };
  const later: Summary = {
    keys: [
      ["a", 1, 0, "pro"],
      ["c", 1, 0],
    ],
    least: 0,
  };
  expect(mergedKeys(earlier, later).keys).toEqual([
    ["a", 3, 0, "pro"],
    ["c", 2, 0],
    ["b", 1, 0, "pro"],
  ]);
});
