import { expect, test } from "vitest";
import { seriesOf, SPANS, sumsByPlan } from "../../dashboard/plot-series.ts";

const [HOUR, , MONTH] = SPANS;
const NOW_MS = Date.parse("2026-11-22T18:00:30Z");
const point = (at: string) => ({ at, admitted: 4, denied: 1, degraded: 0 });
const series = (span: typeof HOUR, ...at: readonly string[]) => {
  if (span === undefined) throw new Error("there is such a span");
  return seriesOf(span, at.map(point), NOW_MS);
};

test("a plot has every step, also those without traffic, and begins a step before the counts", () => {
  const [times, admitted, denied] = series(HOUR, "2026-11-22T17:30:00Z", "2026-11-22T17:32:00Z");
  expect([times.length, admitted.length, denied.length]).toEqual([32, 32, 32]);
  expect(admitted.slice(0, 5)).toEqual([0, 4, 0, 4, 0]);
  expect(denied.slice(0, 5)).toEqual([0, 1, 0, 1, 0]);
  expect(times.map((each, index) => each - (times[index - 1] ?? each - 60))).toEqual(times.map(() => 60));
});

test("the minute under way is left out once there is one before it, and the hour under way never is", () => {
  const [first] = series(HOUR, "2026-11-22T18:00:00Z");
  expect(first.at(-1)).toBe(Date.parse("2026-11-22T18:00:00Z") / 1_000);
  const [minutes] = series(HOUR, "2026-11-22T17:59:00Z", "2026-11-22T18:00:00Z");
  expect(minutes.at(-1)).toBe(Date.parse("2026-11-22T17:59:00Z") / 1_000);
  const [hours, admitted] = series(MONTH, "2026-11-22T18:00:00Z");
  expect([hours.at(-1), admitted.at(-1)]).toEqual([Date.parse("2026-11-22T18:00:00Z") / 1_000, 4]);
});

test("it has 15 steps at the least and all of them at the most, and all when there is nothing", () => {
  expect(series(HOUR, "2026-11-22T17:59:00Z")[0].length).toBe(15);
  expect(series(HOUR, "2026-11-22T16:30:00Z")[0].length).toBe(60);
  expect(series(HOUR)[0].length).toBe(60);
});

test("decisions by plan are summed, those by no plan are the rest, and without plans there are no sums", () => {
  const [one, other] = [point("2026-11-22T17:30:00Z"), point("2026-11-22T17:32:00Z")];
  expect(sumsByPlan([one, other])).toEqual([]);
  const pro = (admitted: number, denied: number) => ({ pro: { admitted, denied } });
  expect(sumsByPlan([one, { ...other, plans: pro(1, 1) }])).toEqual([
    { plan: "", admitted: 7, denied: 1 },
    { plan: "pro", admitted: 1, denied: 1 },
  ]);
  expect(sumsByPlan([{ ...other, plans: pro(4, 1) }])).toEqual([{ plan: "pro", admitted: 4, denied: 1 }]);
});
