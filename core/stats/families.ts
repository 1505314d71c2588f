/** A metric as it is told: its name, what it counts, and its labels. */
export interface Family {
  /** As in series: see counts.ts. It is told as `weir_` and this; a counter's ends in `_total`. */
  readonly metric: string;
  readonly type: "counter" | "histogram";
  readonly unit?: "seconds";
  readonly help: string;
  /** The names of the labels, in the order of their values in a series. */
  readonly labels: readonly string[];
}

/** The label that only some metrics have: its values are bounded (counts.ts). */
export const POLICY_LABEL = "policy";

/** All metrics. docs/metrics.md has the same table. */
export const FAMILIES = [
  {
    metric: "decisions",
    type: "counter",
    help: "Decisions that callers were told. The outcome is admitted or denied.",
    labels: [POLICY_LABEL, "outcome", "reason", "source"],
  },
  {
    metric: "waited_seconds",
    type: "histogram",
    unit: "seconds",
    help: "How long calls waited for their turn.",
    labels: [POLICY_LABEL],
  },
  {
    metric: "object_messages",
    type: "counter",
    help: "Messages sent to objects. One of the kind batch has several calls.",
    labels: ["kind"],
  },
  {
    metric: "object_unanswered",
    type: "counter",
    help: "Messages to objects that had no answer in time, or an error.",
    labels: ["kind"],
  },
  {
    metric: "object_latency_seconds",
    type: "histogram",
    unit: "seconds",
    help: "How long objects took to answer a message. Messages that may wait for a turn are not in it.",
    labels: ["kind"],
  },
  {
    metric: "object_calls",
    type: "counter",
    help: "Calls on keys that objects carried out.",
    labels: [POLICY_LABEL, "method"],
  },
  {
    metric: "rows_read",
    type: "counter",
    help: "Rows that objects read from their tables.",
    labels: [],
  },
  {
    metric: "rows_written",
    type: "counter",
    help: "Rows that objects wrote, alarms included.",
    labels: [],
  },
  {
    metric: "leases_granted",
    type: "counter",
    help: "Leases that objects granted.",
    labels: [POLICY_LABEL],
  },
  {
    metric: "leases_released",
    type: "counter",
    help: "Leases that ended since their holders, or a reset, ended them.",
    labels: [POLICY_LABEL],
  },
  {
    metric: "leases_reclaimed",
    type: "counter",
    help: "Leases that ended since nobody renewed them.",
    labels: [POLICY_LABEL],
  },
  {
    metric: "compared",
    type: "counter",
    help: "Calls that a candidate decided beside its policy, by who denied them.",
    labels: [POLICY_LABEL, "candidate", "denied_by"],
  },
  {
    metric: "stats_messages",
    type: "counter",
    help: "Messages with counts that have arrived: counted, or repeated and not counted again.",
    labels: ["result"],
  },
] as const satisfies readonly Family[];

/** The name of a metric. */
export type Metric = (typeof FAMILIES)[number]["metric"];

const BY_METRIC = new Map<string, Family>(FAMILIES.map((family) => [family.metric, family]));

/** The metric of this name; `undefined`: this version has none. */
export function familyOf(metric: string): Family | undefined {
  return BY_METRIC.get(metric);
}

/** The series of a duration's bucket: the last label is the bucket's upper bound in milliseconds. */
export function bucketOf(durationMs: number): string {
  return String(DURATION_BOUNDS_MS.find((boundMs) => durationMs <= boundMs) ?? "inf");
}

/** In place of a bucket: the sum of all durations, in milliseconds. */
export const SUM = "sum";

/** The upper bounds of the buckets of all histograms, in milliseconds. They are stored: never take one away. */
export const DURATION_BOUNDS_MS = [1, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000] as const;
