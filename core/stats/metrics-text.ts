/** All counts as text: OpenMetrics 1.0, or the older Prometheus format, which differs in names and its end. */
import { boundsOf, type Counts, FAMILIES, partsOf, SUM, typeOf } from "./counts.ts";

export const METRIC_FORMATS = {
  openmetrics: "application/openmetrics-text; version=1.0.0; charset=utf-8",
  prometheus: "text/plain; version=0.0.4; charset=utf-8",
} as const;
type MetricFormat = keyof typeof METRIC_FORMATS;

/** The values of a family's labels, and the rest of a series: of a histogram, the bucket. */
interface Sample {
  readonly labels: readonly string[];
  readonly rest: string | undefined;
  readonly count: number;
}

/**
 * The text of all metrics that this version knows. Other counts are omitted.
 * @param counts absent: they could not be read. No sample stands for that: a lower one would be a counter's new start
 */
export function metricsText(counts: Counts | undefined, format: MetricFormat): string {
  const inOrder = Object.entries(counts ?? {}).toSorted(([a], [b]) => (a < b ? -1 : 1));
  const byMetric = Map.groupBy(inOrder, ([series]) => partsOf(series)[0] ?? "");
  const families = Object.entries(FAMILIES).flatMap(([metric, { labels, help }]) => {
    if (metric === "stats_up")
      return [...headLines(metric, help, format), `weir_${metric} ${counts === undefined ? 0 : 1}`];
    if (counts === undefined) return [];
    const samples = (byMetric.get(metric) ?? []).map(([series, count]): Sample => {
      const [, ...values] = partsOf(series);
      return { labels: values.slice(0, labels.length), rest: values[labels.length], count };
    });
    const linesOf = LINES[typeOf(metric)];
    return [...headLines(metric, help, format), ...linesOf(metric, labels, samples)];
  });
  return [...families, ...(format === "openmetrics" ? ["# EOF"] : []), ""].join("\n");
}

function headLines(metric: string, help: string, format: MetricFormat): string[] {
  const type = typeOf(metric);
  // In the older format a counter has the name of its sample.
  const name = `weir_${metric}${type === "counter" && format === "prometheus" ? "_total" : ""}`;
  const units = type === "histogram" && format === "openmetrics" ? [`# UNIT ${name} seconds`] : [];
  return [`# TYPE ${name} ${type}`, ...units, `# HELP ${name} ${help}`];
}

function counterLines(metric: string, labels: readonly string[], samples: readonly Sample[]): string[] {
  // A counter without labels exists from the start, which makes its first increase visible.
  const all = labels.length === 0 && samples.length === 0 ? [{ labels: [], count: 0 }] : samples;
  return all.map((sample) => `weir_${metric}_total${labelText(labels, sample.labels)} ${sample.count}`);
}

function gaugeLines(metric: string, labels: readonly string[], samples: readonly Sample[]): string[] {
  return samples.map((sample) => `weir_${metric}${labelText(labels, sample.labels)} ${sample.count}`);
}

/** Counts are stored per bucket; the text has cumulative ones. */
function histogramLines(metric: string, labels: readonly string[], samples: readonly Sample[]): string[] {
  const byLabels = Map.groupBy(samples, (sample) => sample.labels.join(" "));
  return [...byLabels.values()].flatMap((ofOne) => {
    const values = ofOne[0]?.labels ?? [];
    const countOf = (rest: string) => ofOne.find((sample) => sample.rest === rest)?.count ?? 0;
    let below = 0;
    const buckets = [...boundsOf(metric).map(String), "inf"].map((bound): string => {
      below += countOf(bound);
      const text = labelText(
        [...labels, "le"],
        [...values, bound === "inf" ? "+Inf" : secondsText(Number(bound))],
      );
      return `weir_${metric}_bucket${text} ${below}`;
    });
    const plain = labelText(labels, values);
    return [
      ...buckets,
      `weir_${metric}_count${plain} ${below}`,
      `weir_${metric}_sum${plain} ${countOf(SUM) / 1_000}`,
    ];
  });
}

const LINES = { counter: counterLines, gauge: gaugeLines, histogram: histogramLines } as const;

/** OpenMetrics has bounds as floats. */
function secondsText(ms: number): string {
  const text = String(ms / 1_000);
  return text.includes(".") ? text : `${text}.0`;
}

function labelText(names: readonly string[], values: readonly string[]): string {
  if (names.length === 0) return "";
  return `{${names.map((name, index) => `${name}="${escaped(values[index] ?? "")}"`).join(",")}}`;
}

function escaped(value: string): string {
  return value.replaceAll("\\", "\\\\").replaceAll('"', '\\"').replaceAll("\n", "\\n");
}
