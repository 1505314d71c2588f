/** Every query in docs/ is PromQL, about metrics that /metrics has, by labels that these have. */
import { parser } from "@prometheus-io/lezer-promql";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, test } from "vitest";
import { FAMILIES, typeOf } from "../core/stats/counts.ts";
import { readPages } from "./support/docs.ts";

const DOCS = join(import.meta.dirname, "..", "docs");
const ALERTS = readFileSync(join(DOCS, "alerts.yaml"), "utf8");

/** Labels by the name of a sample. */
const SAMPLES: ReadonlyMap<string, readonly string[]> = new Map(
  Object.entries(FAMILIES).flatMap(([metric, { labels }]): [string, readonly string[]][] => {
    const name = `weir_${metric}`;
    if (typeOf(metric) === "gauge") return [[name, labels]];
    if (typeOf(metric) === "counter") return [[`${name}_total`, labels]];
    return [
      [`${name}_bucket`, [...labels, "le"]],
      [`${name}_count`, labels],
      [`${name}_sum`, labels],
    ];
  }),
);

interface Query {
  readonly name: string;
  readonly expr: string;
}

interface Panel {
  readonly id: number;
  readonly type: string;
  readonly title: string;
  readonly description?: string;
  readonly gridPos: { readonly h: number; readonly w: number; readonly x: number; readonly y: number };
  readonly datasource?: { readonly uid: string };
  readonly targets?: readonly {
    readonly expr: string;
    readonly legendFormat: string;
    readonly datasource: { readonly uid: string };
  }[];
}

interface Dashboard {
  readonly templating: { readonly list: readonly { readonly name: string; readonly type: string }[] };
  readonly panels: readonly Panel[];
}

const DASHBOARD = JSON.parse(readFileSync(join(DOCS, "grafana.json"), "utf8")) as Dashboard;
const PANELS = DASHBOARD.panels.filter(({ type }) => type !== "row");

/** An expression is on its line, or folded onto the lines below. */
function ofAlerts(): Query[] {
  const [, ...alerts] = ALERTS.split(/^ +- alert: /m);
  return alerts.map((alert) => {
    const [, below, beside = ""] = /^ +expr: (?:>-\n((?: {10}.*\n)+)|(.*)$)/m.exec(alert) ?? [];
    return { name: alert.split("\n")[0] ?? "", expr: below ?? beside };
  });
}

function ofMetricsPage(): Query[] {
  const page = readPages().find(({ path }) => path === "docs/metrics.md");
  const rows = page?.lines.join("\n").matchAll(/^\| ([^|]+) \| `([^`]*weir_[^`]*\[[^`]*)` \|$/gm) ?? [];
  return [...rows].map(([, name = "", expr = ""]) => ({ name, expr }));
}

function ofDashboard(): Query[] {
  return PANELS.flatMap(({ title, targets = [] }) =>
    // Grafana replaces the interval; the policy's variable is within a string.
    targets.map(({ expr }) => ({ name: title, expr: expr.replaceAll("$__rate_interval", "5m") })),
  );
}

describe.each([
  ["docs/alerts.yaml", ofAlerts(), 6],
  ["docs/metrics.md", ofMetricsPage(), 6],
  ["docs/grafana.json", ofDashboard(), 20],
])("%s", (_, queries, atLeast) => {
  test("has queries", () => {
    expect(queries.length).toBeGreaterThanOrEqual(atLeast);
  });

  test.each(queries)("$name: $expr", ({ expr }) => {
    expect(faultsOf(expr)).toEqual([]);
  });
});

/** What is wrong with a query; none: nothing. */
function faultsOf(expr: string): string[] {
  const tree = parser.parse(expr);
  const textOf = ({ from, to }: { readonly from: number; readonly to: number }) => expr.slice(from, to);
  const faults: string[] = [];
  /** Labels of the expressions that are open, and the samples of those that are closed, from the outermost in. */
  const open: { readonly node: string; readonly labels: string[]; readonly samples: string[] }[] = [
    { node: "", labels: [], samples: [] },
  ];
  tree.iterate({
    enter(node) {
      if (node.type.isError)
        faults.push(`not PromQL at ${node.from}: ${JSON.stringify(expr.slice(node.from))}`);
      if (node.name === "AggregateExpr" || node.name === "VectorSelector")
        open.push({ node: node.name, labels: [], samples: [] });
      const innermost = open.at(-1);
      if (node.name === "LabelName") innermost?.labels.push(textOf(node));
      if (node.name === "Identifier" && innermost?.node === "VectorSelector")
        innermost.samples.push(textOf(node));
    },
    leave(node) {
      if (node.name !== "AggregateExpr" && node.name !== "VectorSelector") return;
      const { labels, samples } = open.pop() ?? { labels: [], samples: [] };
      open.at(-1)?.samples.push(...samples);
      for (const sample of samples) {
        const known = SAMPLES.get(sample);
        if (known === undefined) faults.push(`/metrics has no ${sample}`);
        for (const label of labels)
          if (known?.includes(label) === false) faults.push(`${sample} has no label ${label}`);
      }
      if (samples.length === 0) faults.push(`no metric in ${textOf(node)}`);
    },
  });
  return faults;
}

test("the checks find a wrong query", () => {
  expect(faultsOf("sum by (policy) (rate(weir_decisions_total[5m])")).not.toEqual([]);
  expect(faultsOf("sum(rate(weir_decisions_total[5m]))")).toEqual([]);
  expect(faultsOf("sum(rate(weir_decision_total[5m]))")).toContain("/metrics has no weir_decision_total");
  expect(faultsOf("sum by (kind) (rate(weir_decisions_total[5m]))")).toEqual([
    "weir_decisions_total has no label kind",
  ]);
  expect(faultsOf('rate(weir_rows_read_total{policy="api"}[5m])')).toEqual([
    "weir_rows_read_total has no label policy",
  ]);
  expect(faultsOf("histogram_quantile(0.9, sum by (le) (rate(weir_waited_seconds_count[5m])))")).toEqual([
    "weir_waited_seconds_count has no label le",
  ]);
});

test("each panel of the dashboard says what it shows, by labels of its queries, from the chosen Prometheus", () => {
  const source = DASHBOARD.templating.list.find(({ type }) => type === "datasource");
  for (const { title, description, datasource, targets = [] } of PANELS) {
    expect([title, (description ?? "").length > 10, targets.length > 0]).toEqual([title, true, true]);
    for (const each of [datasource, ...targets.map((target) => target.datasource)])
      expect([title, each?.uid]).toEqual([title, `\${${source?.name}}`]);
    for (const { expr, legendFormat } of targets)
      for (const [, label = ""] of legendFormat.matchAll(/\{\{(\w+)\}\}/g))
        expect([title, expr]).toEqual([
          title,
          expect.stringMatching(new RegExp(`by \\([^)]*\\b${label}\\b`)),
        ]);
  }
});

test("each metric is in a panel of the dashboard, and no two panels overlap", () => {
  const exprs = ofDashboard().map(({ expr }) => expr);
  const absent = Object.keys(FAMILIES).filter(
    (metric) => !exprs.some((expr) => expr.includes(`weir_${metric}`)),
  );
  expect(absent).toEqual([]);
  const cells = DASHBOARD.panels.flatMap(({ gridPos: { h, w, x, y } }) =>
    Array.from({ length: h * w }, (_, cell) => `${x + (cell % w)} ${y + Math.floor(cell / w)}`),
  );
  expect(new Set(cells).size).toBe(cells.length);
  expect(new Set(DASHBOARD.panels.map(({ id }) => id)).size).toBe(DASHBOARD.panels.length);
});
