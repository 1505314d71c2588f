/** The rules of docs/alerts.yaml, as Prometheus evaluates them. */
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";

const RULES = join(import.meta.dirname, "..", "..", "docs", "alerts.yaml");

function promtool(...args: readonly string[]): { status: number | null; output: string } {
  const { status, stdout, stderr } = spawnSync("promtool", args, { encoding: "utf8" });
  return { status, output: stdout + stderr };
}

/** A counter that rises by so many a minute. */
const rising = (perMinute: number) => `0+${perMinute}x60`;
const DECISIONS = 'weir_decisions_total{policy="api",outcome="admitted",reason="ok",source="isolate"}';
const DEGRADED = 'weir_decisions_total{policy="api",outcome="denied",reason="degraded",source="fallback"}';
const COUNTED = 'weir_stats_messages_total{result="counted"}';
/** An hour without trouble: some answers are late, and after 20 minutes there is a deployment. */
const HEALTHY: Readonly<Record<string, string>> = {
  [DECISIONS]: rising(60_000),
  [DEGRADED]: "0+0x20 300+0x40",
  'weir_object_messages_total{kind="batch"}': rising(6_000),
  'weir_object_unanswered_total{kind="batch"}': rising(10),
  weir_object_pauses_total: "0+0x20 3+0x40",
  'weir_calls_dropped_total{policy="api"}': "7+0x20 30+0x40",
  'weir_object_pace_seconds_count{policy="api"}': "7+0x20 30+0x40",
  'weir_catalog_failures_total{in_force="catalog"}': "7+0x20 30+0x40",
  [COUNTED]: rising(6),
  // Some reads find the object on its way from one machine to another.
  weir_stats_up: "1+0x20 0+0x2 1+0x40",
};

test.each<[fires: string | undefined, series: Readonly<Record<string, string>>]>([
  [undefined, {}],
  ["WeirDegraded", { [DEGRADED]: rising(700) }],
  ["WeirObjectsLate", { 'weir_object_unanswered_total{kind="batch"}': rising(100) }],
  ["WeirObjectsPaused", { weir_object_pauses_total: rising(1) }],
  ["WeirCallsDropped", { 'weir_calls_dropped_total{policy="api"}': rising(1) }],
  ["WeirObjectsBehind", { 'weir_object_pace_seconds_count{policy="api"}': rising(1) }],
  ["WeirCatalogAway", { 'weir_catalog_failures_total{in_force="catalog"}': rising(1) }],
  [
    "WeirStatisticsAway",
    {
      weir_stats_up: "0+0x60",
      ...Object.fromEntries(
        Object.keys(HEALTHY)
          .slice(0, -1)
          .map((name) => [name, "_x60"]),
      ),
    },
  ],
  ["WeirStatisticsMissing", { [COUNTED]: "7+0x60" }],
  ["WeirStatisticsMissing", { [COUNTED]: "_x60" }],
])("%s fires, and no other", (fires, series) => {
  const folder = mkdtempSync(join(tmpdir(), "weir-alerts-"));
  const input = Object.entries({ ...HEALTHY, ...series });
  const samples = fires === undefined ? [] : [{ labels: `{alertname="${fires}"}`, value: 1 }];
  const expr = 'count by (alertname) (ALERTS{alertstate="firing"})';
  const times = fires === undefined ? ["22m", "28m", "35m", "59m"] : ["40m"];
  const tests = {
    rule_files: [RULES],
    evaluation_interval: "1m",
    tests: [
      {
        interval: "1m",
        input_series: input.map(([name, values]) => ({ series: name, values })),
        promql_expr_test: times.map((at) => ({ expr, eval_time: at, exp_samples: samples })),
      },
    ],
  };
  // JSON is YAML.
  writeFileSync(join(folder, "tests.yaml"), JSON.stringify(tests));
  try {
    const { status, output } = promtool("test", "rules", join(folder, "tests.yaml"));
    expect([status, output]).toEqual([0, expect.stringContaining("SUCCESS")]);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});

test("Prometheus reads the rules", () => {
  expect(promtool("check", "rules", RULES)).toMatchObject({ status: 0 });
});
