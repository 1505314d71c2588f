import { expect, test } from "vitest";
import { seriesOf, SPANS, sumsByPlan } from "../../dashboard/plot-series.ts";

const NOW_MS = Date.parse("2026-11-22T18:00:30Z");
const point = (at: string) => ({ at, admitted: 4, denied: 1, degraded: 0 });

test("plots of one span have the same times, whenever their calls began, and end with the bar under way", () => {
  for (const span of SPANS) {
    const [none, ...others] = [
      [],
      ["2026-11-22T17:59:00Z"],
      ["2026-11-22T17:10:00Z", "2026-11-22T18:00:00Z"],
    ].map((at) => seriesOf(span, at.map(point), NOW_MS)[0]);
    expect(others).toEqual([none, none]);
    const last = none?.at(-1) ?? 0;
    expect(NOW_MS / 1_000 - last).toBeGreaterThanOrEqual(0);
    expect(NOW_MS / 1_000 - last).toBeLessThan(span.barSeconds);
    expect(new Set(none?.map((each, index) => each - (none[index - 1] ?? each - span.barSeconds)))).toEqual(
      new Set([span.barSeconds]),
    );
    expect(none?.length).toBe(span.bars);
  }
});

test("every call of a span is in one bar, and steps without traffic are bars of 0", () => {
  const [hour, day] = SPANS;
  const points = ["2026-11-22T17:31:00Z", "2026-11-22T17:33:00Z", "2026-11-22T18:00:00Z"].map(point);
  if (hour === undefined || day === undefined) throw new Error("there are such spans");
  const [, admitted, all] = seriesOf(hour, points, NOW_MS);
  expect(admitted.slice(-31, -26)).toEqual([0, 4, 0, 4, 0]);
  expect([admitted.at(-1), all.at(-1)]).toEqual([4, 5]);
  const [, byQuarter, allByQuarter] = seriesOf(day, points, NOW_MS);
  expect([byQuarter.slice(-3), allByQuarter.slice(-3)]).toEqual([
    [8, 0, 4],
    [10, 0, 5],
  ]);
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
