/** The runtime's own binding is in test/system/analytics.test.ts: here one of the same shape stands for it. */
import { expect, test } from "vitest";
import { Analytics, type AnalyticsDataset } from "../../../core/stats/analytics.ts";

type Point = Parameters<AnalyticsDataset["writeDataPoint"]>[0];

test("each policy, outcome, reason and source is a data point, and nothing else is", () => {
  const points: Point[] = [];
  const analytics = new Analytics({ writeDataPoint: (point) => points.push(point) });
  analytics.write({
    "decisions api denied quota object": 3,
    "decisions b admitted ok isolate": 9,
    rows_read: 5,
  });
  expect(points).toEqual([
    { indexes: ["b"], blobs: ["b", "admitted", "ok", "isolate"], doubles: [9] },
    { indexes: ["api"], blobs: ["api", "denied", "quota", "object"], doubles: [3] },
  ]);
});

test("one invocation writes 25 points at most, and what is left over is written later, each decision once", () => {
  let written = 0;
  let total = 0;
  const analytics = new Analytics({
    writeDataPoint: ({ doubles }) => {
      written += 1;
      total += doubles[0] ?? 0;
    },
  });
  const counts = Object.fromEntries(
    Array.from({ length: 60 }, (_, index) => [`decisions p${index} denied quota object`, index + 1]),
  );
  for (const [given, most] of [
    [counts, 25],
    [counts, 25],
    [{}, 25],
    [{}, 25],
  ] as const) {
    const before = written;
    analytics.write(given);
    expect(written - before).toBeLessThanOrEqual(most);
  }
  expect(total).toBe(60 * 61);
});

test("what was written before a refusal is not written again", () => {
  const written: string[] = [];
  let refuses = false;
  const analytics = new Analytics({
    writeDataPoint: ({ blobs }) => {
      if (refuses) throw new Error("too many");
      written.push(blobs.join(" "));
      refuses = written.length === 2;
    },
  });
  analytics.write({
    "decisions a admitted ok object": 3,
    "decisions b admitted ok object": 2,
    "decisions c admitted ok object": 1,
  });
  expect(written).toEqual(["a admitted ok object", "b admitted ok object"]);
  refuses = false;
  analytics.write({});
  expect(new Set(written).size).toBe(written.length);
});

test("a dataset that refuses is no reason to fail", () => {
  const analytics = new Analytics({
    writeDataPoint: () => {
      throw new Error("too many");
    },
  });
  expect(() => analytics.write({ "decisions api denied quota object": 3 })).not.toThrow();
});
