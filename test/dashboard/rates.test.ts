import { expect, test } from "vitest";
import { metricsText } from "../../core/stats/metrics-text.ts";
import {
  hasCounts,
  ratesOf,
  RATE_OVER_MS,
  totalsIn,
  withReading,
  type Reading,
} from "../../dashboard/rates.ts";

const line = (policy: string, outcome: string, reason: string, source: string, count: number) =>
  `weir_decisions_total{policy="${policy}",outcome="${outcome}",reason="${reason}",source="${source}"} ${count}\n`;

test("decisions are added up by policy, and other metrics are left alone", () => {
  const text =
    '# TYPE weir_decisions counter\nweir_rows_read_total 7\nweir_leases_granted_total{policy="api"} 4\n' +
    line("api", "admitted", "ok", "isolate", 90) +
    line("api", "admitted", "degraded", "fallback", 3) +
    line("api", "denied", "quota", "object", 7) +
    line("login", "denied", "degraded", "fallback", 2);
  expect([...totalsIn(text)]).toEqual([
    ["api", { admitted: 93, denied: 7, isolate: 90, degraded: 3 }],
    ["login", { admitted: 0, denied: 2, isolate: 0, degraded: 2 }],
  ]);
  expect(totalsIn(metricsText({}, "openmetrics")).size).toBe(0);
});

test("metrics without counts are not taken for counts of 0", () => {
  expect([metricsText({}, "openmetrics"), metricsText(undefined, "openmetrics")].map(hasCounts)).toEqual([
    true,
    false,
  ]);
});

const reading = (atMs: number, admitted: number): Reading => ({
  atMs,
  totals: new Map([["api", { admitted, denied: 0, isolate: admitted / 2, degraded: 0 }]]),
});

test("a rate is what came between the oldest and the newest reading, by the second", () => {
  const readings = [reading(1_000, 100), reading(6_000, 100), reading(11_000, 150)];
  expect(ratesOf(readings, "api")).toEqual({
    admittedPerSecond: 5,
    deniedPerSecond: 0,
    hitRate: 0.5,
    degraded: 0,
  });
  expect(ratesOf(readings.slice(0, 1), "api")).toBeUndefined();
  expect(ratesOf(readings, "other")).toMatchObject({ admittedPerSecond: 0, hitRate: undefined });
});

test("counts that begin anew are no negative rate", () => {
  expect(ratesOf([reading(0, 500), reading(5_000, 3)], "api")).toMatchObject({ admittedPerSecond: 0 });
});

test("readings are kept for as long as rates look back, and one from before", () => {
  let readings: readonly Reading[] = [];
  for (let atMs = 0; atMs <= 100_000; atMs += 5_000) readings = withReading(readings, reading(atMs, atMs));
  expect(readings[0]?.atMs).toBe(100_000 - RATE_OVER_MS);
  expect(readings.length).toBe(RATE_OVER_MS / 5_000 + 1);
  // A page that was hidden for an hour goes on with what it knew before.
  expect(withReading(readings, reading(3_700_000, 0)).map(({ atMs }) => atMs)).toEqual([100_000, 3_700_000]);
});
