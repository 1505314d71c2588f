/**
 * Counts by series: a metric's name and the values of its labels, separated by spaces: `decisions api denied quota
 * object`. Sent and stored: never rename a metric or change the order of its labels.
 */
export type Counts = Readonly<Record<string, number>>;

export const MAX_POLICIES = 1_000;
/** All further policies. No policy of a deployment has such a name. */
export const OTHER_POLICIES = "_other";

export function merged(one: Counts, other: Counts): Counts {
  const both: Record<string, number> = { ...one };
  for (const [series, count] of Object.entries(other)) both[series] = (both[series] ?? 0) + count;
  return both;
}

export function partsOf(series: string): readonly string[] {
  return series.split(" ");
}

export function seriesOf(metric: string, labels: readonly string[]): string {
  return [metric, ...labels].join(" ");
}

/** Names of policies, up to a bound; later ones share one name. */
export class PolicyNames {
  readonly #known = new Set<string>();
  readonly #most: number;

  constructor(most = MAX_POLICIES) {
    this.#most = most;
  }

  of(policy: string): string {
    if (policy === OTHER_POLICIES || this.#known.has(policy)) return policy;
    if (this.#known.size >= this.#most) return OTHER_POLICIES;
    this.#known.add(policy);
    return policy;
  }

  get all(): ReadonlySet<string> {
    return this.#known;
  }
}

/*
 * Decisions of a policy and its candidate on the same calls: the metric `compared`, by the candidate's version. Keys
 * that it would deny are the top keys of a name of its own.
 */

/** `unknown`: one of them could not decide. Sent and stored: never rename one. */
const DENIED_BY = ["none", "policy", "candidate", "both", "unknown"] as const;
export type DeniedBy = (typeof DENIED_BY)[number];

/** In no policy's name. Stored: never change it. */
const MARK = "~";

export interface ComparisonCounts {
  readonly policy: string;
  readonly version: number;
  readonly key: string;
  readonly deniedBy: DeniedBy;
}

export function comparedSeries(policy: string, version: number, deniedBy: DeniedBy): string {
  return seriesOf("compared", [policy, String(version), deniedBy]);
}

/** The name for the keys that only a candidate would deny. */
export function keysOfCandidate(policy: string, version: number): string {
  return `${policy}${MARK}${version}`;
}

export function policyOfKeys(name: string): string {
  return name.split(MARK)[0] ?? name;
}

/** The counts without earlier candidates, which leaves at most one per policy. */
export function ofLatestCandidates(counts: Counts): Counts {
  const candidateOf = (series: string) => {
    const [metric, policy = "", version = ""] = partsOf(series);
    return metric === "compared" ? { policy, version: Number(version) } : undefined;
  };
  const latest = new Map<string, number>();
  for (const { policy, version } of Object.keys(counts).flatMap((series) => candidateOf(series) ?? []))
    latest.set(policy, Math.max(latest.get(policy) ?? 0, version));
  const kept = Object.entries(counts).filter(([series]) => {
    const candidate = candidateOf(series);
    return candidate === undefined || candidate.version === latest.get(candidate.policy);
  });
  return kept.length === Object.keys(counts).length ? counts : Object.fromEntries(kept);
}

export interface Family {
  /** As in series. The public name is `weir_` and this; a counter's ends in `_total`. */
  readonly metric: string;
  readonly type: "counter" | "histogram";
  readonly unit?: "seconds";
  readonly help: string;
  readonly labels: readonly string[];
}

/** The first label of most metrics: its values are bounded. */
export const POLICY_LABEL = "policy";

const counter = <const Name extends string>(metric: Name, labels: readonly string[], help: string) => ({
  metric,
  type: "counter" as const,
  labels,
  help,
});
const seconds = <const Name extends string>(metric: Name, labels: readonly string[], help: string) => ({
  metric,
  type: "histogram" as const,
  unit: "seconds" as const,
  labels,
  help,
});

/** All metrics, as in docs/metrics.md. */
export const FAMILIES = [
  counter(
    "decisions",
    [POLICY_LABEL, "outcome", "reason", "source"],
    "Decisions that callers were told. The outcome is admitted or denied.",
  ),
  seconds("waited_seconds", [POLICY_LABEL], "How long calls waited for their turn."),
  counter("object_messages", ["kind"], "Messages sent to objects. One of the kind batch has several calls."),
  counter("object_unanswered", ["kind"], "Messages to objects that had no answer in time, or an error."),
  counter(
    "object_pauses",
    [],
    "Objects that were overloaded, or answered three messages in a row too late: calls go without them for a while.",
  ),
  seconds(
    "object_latency_seconds",
    ["kind"],
    "How long objects took to answer a message. Messages that may wait for a turn are not in it.",
  ),
  counter("object_calls", [POLICY_LABEL, "method"], "Calls on keys that objects carried out."),
  counter(
    "calls_dropped",
    [POLICY_LABEL],
    "Calls that were not decided, since their callers had stopped waiting.",
  ),
  counter("rows_read", [], "Rows that objects read from their tables."),
  counter("rows_written", [], "Rows that objects wrote, alarms included."),
  counter("leases_granted", [POLICY_LABEL], "Leases that objects granted."),
  counter(
    "leases_released",
    [POLICY_LABEL],
    "Leases that ended since their holders, or a reset, ended them.",
  ),
  counter("leases_reclaimed", [POLICY_LABEL], "Leases that ended since nobody renewed them."),
  counter(
    "compared",
    [POLICY_LABEL, "candidate", "denied_by"],
    "Calls that a candidate decided beside its policy, by who denied them.",
  ),
  counter(
    "stats_messages",
    ["result"],
    "Messages with counts that have arrived: counted, or repeated and not counted again.",
  ),
] as const satisfies readonly Family[];

export type Metric = (typeof FAMILIES)[number]["metric"];

const BY_METRIC = new Map<string, Family>(FAMILIES.map((family) => [family.metric, family]));

export function familyOf(metric: string): Family | undefined {
  return BY_METRIC.get(metric);
}

/** The series of a duration's bucket: the last label is the bucket's upper bound in milliseconds. */
export function bucketOf(durationMs: number): string {
  return String(DURATION_BOUNDS_MS.find((boundMs) => durationMs <= boundMs) ?? "inf");
}

/** Instead of a bucket: the sum of all durations, in milliseconds. */
export const SUM = "sum";

/** The upper bounds of the buckets of all histograms. Stored: never remove one. */
export const DURATION_BOUNDS_MS = [1, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000] as const;
