import { expect, test } from "vitest";
import { metricsText } from "../../core/stats/metrics-text.ts";
import {
  deniedMost,
  hasCounts,
  ratesOf,
  recentRates,
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
    line("api", "admitted", "ok", "isolate", 80) +
    line("api", "admitted", "ok", "process", 5) +
    line("api", "admitted", "ok", "object", 5) +
    line("api", "admitted", "degraded", "fallback", 3) +
    line("api", "denied", "quota", "object", 7) +
    line("login", "denied", "degraded", "fallback", 2);
  expect([...totalsIn(text)]).toEqual([
    ["api", { admitted: 93, denied: 7, local: 85, degraded: 3 }],
    ["login", { admitted: 0, denied: 2, local: 0, degraded: 2 }],
  ]);
  expect(totalsIn(metricsText({}, "openmetrics")).size).toBe(0);
});

test("metrics without counts are not taken for counts of 0", () => {
  expect([metricsText({}, "openmetrics"), metricsText(undefined, "openmetrics")].map(hasCounts)).toEqual([
    true,
    false,
  ]);
});

const reading = (atMs: number, admitted: number, denied = 0): Reading => ({
  atMs,
  totals: new Map([["api", { admitted, denied, local: admitted / 2, degraded: 0 }]]),
});
/** Readings every 5 s of an isolate that sends its counts every 10 s, with 50 calls a second from long before. */
const steady = (sendsAtMs: number, untilMs: number) => {
  let readings: readonly Reading[] = [];
  for (let atMs = 0; atMs <= untilMs; atMs += 5_000) {
    const sent = Math.floor((atMs - sendsAtMs) / 10_000) + 10;
    readings = withReading(readings, reading(atMs, sent * 500));
  }
  return readings;
};

test("a steady rate is measured as it is, whenever the isolate sends, and never as 0 before it can be known", () => {
  for (let sendsAtMs = 0; sendsAtMs < 10_000; sendsAtMs += 500)
    for (let untilMs = 0; untilMs <= 120_000; untilMs += 5_000) {
      const rates = ratesOf(steady(sendsAtMs, untilMs), "api");
      if (untilMs >= 20_000) expect(rates).toBeDefined();
      if (rates !== undefined) expect(rates).toMatchObject({ admittedPerSecond: 50, hitRate: 0.5 });
    }
});

test("counts that never grow are a rate of 0 once those of the first calls would have come, not before", () => {
  const silent = [0, 5_000, 10_000, 15_000].map((atMs) => reading(atMs, 7));
  expect(silent.map((_, index) => ratesOf(silent.slice(0, index + 1), "api")?.admittedPerSecond)).toEqual([
    undefined,
    undefined,
    undefined,
    0,
  ]);
  expect(ratesOf(silent, "other")).toMatchObject({ admittedPerSecond: 0, hitRate: undefined });
});

test("calls that have ended are a rate of 0 when the readings with them are gone", () => {
  let readings = steady(3_000, 60_000);
  const { admitted = 0 } = readings.at(-1)?.totals.get("api") ?? {};
  for (let atMs = 65_000; atMs <= 95_000; atMs += 5_000)
    readings = withReading(readings, reading(atMs, admitted));
  expect(ratesOf(readings, "api")).toMatchObject({ admittedPerSecond: 0 });
});

test("counts that begin anew are no negative rate", () => {
  expect(ratesOf([reading(0, 500), reading(30_000, 3)], "api")).toMatchObject({ admittedPerSecond: 0 });
});

test("the first rates are those of the history: of its last full minute and the one under way", () => {
  const nowMs = Date.parse("2026-11-22T18:00:30Z");
  const point = (at: string, admitted: number, denied: number) => ({ at, admitted, denied, degraded: 1 });
  const before = point("2026-11-22T17:58:00Z", 9_000, 9_000);
  const [last, open] = [point("2026-11-22T17:59:00Z", 600, 120), point("2026-11-22T18:00:00Z", 300, 60)];
  expect(recentRates([before, last, open], nowMs)).toEqual({
    admittedPerSecond: 10,
    deniedPerSecond: 2,
    degraded: 2,
    hitRate: undefined,
  });
  expect(recentRates([open], nowMs)).toMatchObject({ admittedPerSecond: 10, deniedPerSecond: 2 });
  // At the beginning of a minute its counts are of 12 s at the most.
  expect(recentRates([open], Date.parse("2026-11-22T18:00:01Z"))).toMatchObject({ deniedPerSecond: 5 });
  expect(recentRates([before], nowMs)).toBeUndefined();
});

test("policies that deny now come before those that denied more before", () => {
  const at = (atMs: number, now: number): Reading => ({
    atMs,
    totals: new Map(
      Object.entries({ calm: 0, _other: 9, long: 900, now, older: 400 }).map(([name, denied]) => [
        name,
        { admitted: 0, denied, local: 0, degraded: 0 },
      ]),
    ),
  });
  expect(deniedMost([at(0, 1)])).toEqual(["long", "older", "now"]);
  expect(deniedMost([at(0, 1), at(30_000, 60)])).toEqual(["now", "long", "older"]);
  expect(deniedMost([])).toEqual([]);
});

test("readings are kept for as long as rates look back, and one from before", () => {
  let readings: readonly Reading[] = [];
  for (let atMs = 0; atMs <= 100_000; atMs += 5_000) readings = withReading(readings, reading(atMs, atMs));
  expect(readings[0]?.atMs).toBe(100_000 - RATE_OVER_MS);
  expect(readings.length).toBe(RATE_OVER_MS / 5_000 + 1);
  // A page that was hidden for an hour goes on with what it knew before.
  expect(withReading(readings, reading(3_700_000, 0)).map(({ atMs }) => atMs)).toEqual([100_000, 3_700_000]);
});
