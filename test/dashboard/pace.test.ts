import { expect, test } from "vitest";
import { intervalMs, isSlow } from "../../dashboard/pace.ts";

const MINUTE_MS = 60_000;
const HOUR_MS = 60 * MINUTE_MS;
const DAY_MS = 24 * HOUR_MS;
/** A day of Cloudflare's free plan (docs/costs.md). */
const FREE_CALLS = 100_000;

test("while the page is used a part calls at its own interval, however short", () => {
  for (const idleMs of [0, 1_000, 3 * MINUTE_MS - 1, -HOUR_MS]) {
    expect(intervalMs(5_000, idleMs)).toBe(5_000);
    expect(isSlow(idleMs)).toBe(false);
  }
});

test("after 3 minutes without input it calls every 30 s, after an hour every 5 minutes, and never more often", () => {
  expect(intervalMs(5_000, 3 * MINUTE_MS)).toBe(30_000);
  expect(intervalMs(45_000, 3 * MINUTE_MS)).toBe(45_000);
  expect(intervalMs(5_000, HOUR_MS - 1)).toBe(30_000);
  expect(intervalMs(5_000, HOUR_MS)).toBe(300_000);
  expect(intervalMs(5_000, 30 * DAY_MS)).toBe(300_000);
  expect(isSlow(3 * MINUTE_MS)).toBe(true);
});

/** The intervals of the page with the most calls, a policy's, and how many calls each makes at a time. */
const POLICY_PAGE: readonly (readonly [everyMs: number, calls: number])[] = [
  [5_000, 1 + 9 + 1 + 1],
  [10_000, 2 + 2],
  [20_000, 1],
];

test("a page left open for a day spends less than a tenth of a free day of calls", () => {
  let calls = 0;
  for (const [everyMs, each] of POLICY_PAGE)
    for (let atMs = 0; atMs < DAY_MS; atMs += intervalMs(everyMs, atMs)) calls += each;
  expect(calls).toBeGreaterThan(5_000);
  expect(calls).toBeLessThan(FREE_CALLS / 10);
});
