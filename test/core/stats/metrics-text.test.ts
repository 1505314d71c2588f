import { readFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { type Counts, FAMILIES, typeOf } from "../../../core/stats/counts.ts";
import { metricsText } from "../../../core/stats/metrics-text.ts";
import { parsedMetrics } from "../../support/metrics.ts";

const COUNTS: Counts = {
  "decisions api admitted ok isolate": 5,
  "decisions api denied quota object": 2,
  rows_written: 9,
  "waited_seconds export 100": 2,
  "waited_seconds export 5000": 1,
  "waited_seconds export inf": 1,
  "waited_seconds export sum": 41_250,
  "from_another_version api": 3,
  "isolates worker": 4,
  "isolates objects": 0,
};

test("the text has each count, under the names of OpenMetrics", () => {
  const { samples, types } = parsedMetrics(metricsText(COUNTS, "openmetrics"));
  expect(types.get("weir_decisions")).toBe("counter");
  expect(
    samples.get('weir_decisions_total{policy="api",outcome="admitted",reason="ok",source="isolate"}'),
  ).toBe(5);
  expect(
    samples.get('weir_decisions_total{policy="api",outcome="denied",reason="quota",source="object"}'),
  ).toBe(2);
  expect(samples.get("weir_rows_written_total")).toBe(9);
  expect(samples.get("weir_rows_read_total")).toBe(0);
  expect(types.get("weir_isolates")).toBe("gauge");
  expect(["worker", "objects"].map((runs) => samples.get(`weir_isolates{runs="${runs}"}`))).toEqual([4, 0]);
  expect([...samples.keys()].some((name) => name.includes("another"))).toBe(false);
});

test("a histogram's buckets have all that is below them, and the last one has all", () => {
  const { samples } = parsedMetrics(metricsText(COUNTS, "openmetrics"));
  const bucket = (le: string) => samples.get(`weir_waited_seconds_bucket{policy="export",le="${le}"}`);
  expect([
    bucket("0.05"),
    bucket("0.1"),
    bucket("1.0"),
    bucket("5.0"),
    bucket("30.0"),
    bucket("+Inf"),
  ]).toEqual([0, 2, 2, 3, 3, 4]);
  expect(samples.get('weir_waited_seconds_count{policy="export"}')).toBe(4);
  expect(samples.get('weir_waited_seconds_sum{policy="export"}')).toBe(41.25);
});

test("without counts only the gauge says so: no counter begins anew at 0", () => {
  expect(parsedMetrics(metricsText(COUNTS, "openmetrics")).samples.get("weir_stats_up")).toBe(1);
  for (const format of ["openmetrics", "prometheus"] as const) {
    const text = metricsText(undefined, format);
    expect(text.split("\n").filter((line) => line !== "" && !line.startsWith("#"))).toEqual([
      "weir_stats_up 0",
    ]);
  }
  expect(parsedMetrics(metricsText(undefined, "openmetrics")).types.get("weir_stats_up")).toBe("gauge");
});

test("every metric has a type and a help, and histograms have a unit that ends their name", () => {
  const { types, help, units } = parsedMetrics(metricsText({}, "openmetrics"));
  for (const metric of Object.keys(FAMILIES)) {
    const type = typeOf(metric);
    const name = `weir_${metric}`;
    expect(types.get(name)).toBe(type);
    expect(help.get(name)).toMatch(/^[A-Z].*\.$/);
    if (units.has(name)) expect(name.endsWith(`_${units.get(name)}`)).toBe(true);
    expect(units.has(name)).toBe(type === "histogram");
  }
});

test("an older object of the statistics, which finds no isolates, leaves the gauge without samples", () => {
  const { samples } = parsedMetrics(metricsText({ rows_written: 1 }, "openmetrics"));
  expect([...samples.keys()].filter((name) => name.includes("isolates"))).toEqual([]);
});

test("the older format differs in the names of counters, and has no end", () => {
  const text = metricsText(COUNTS, "prometheus");
  expect(text).toContain("# TYPE weir_decisions_total counter\n");
  expect(text).not.toContain("# EOF");
  expect(text).not.toContain("# UNIT");
});

test("the documentation has every metric with its labels, and no other", () => {
  const page = readFileSync(join(import.meta.dirname, "../../../docs/metrics.md"), "utf8");
  const told = [...page.matchAll(/^\| `(weir_\w+)` \|([^|]*)\|/gm)].map(([, name, labels = ""]) => [
    name,
    [...labels.matchAll(/`(\w+)`/g)].map(([, label]) => label),
  ]);
  const known = Object.entries(FAMILIES).map(([metric, { labels }]) => [
    `weir_${metric}${typeOf(metric) === "counter" ? "_total" : ""}`,
    [...labels],
  ]);
  expect(told).toEqual(known);
});
