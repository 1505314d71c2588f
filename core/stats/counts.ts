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
  for (const [series, count] of Object.entries(other)) addTo(both, series, count);
  return both;
}

export function addTo(counts: Record<string, number>, name: string, count: number): void {
  counts[name] = (counts[name] ?? 0) + count;
}

export function partsOf(series: string): readonly string[] {
  return series.split(" ");
}

export function seriesOf(metric: string, labels: readonly string[]): string {
  return [metric, ...labels].join(" ");
}

/** The plans of all policies that are counted, by policy. */
export const MAX_PLANS = 1_000;
/** All further plans. No plan has such a name. */
export const OTHER_PLANS = "_other";

/** Names of policies, and of their plans, up to a bound; later ones share one name. */
export class PolicyNames {
  readonly #known = new Set<string>();
  readonly #plans = new Set<string>();
  readonly #max: number;

  constructor(max = MAX_POLICIES) {
    this.#max = max;
  }

  of(policy: string): string {
    if (policy === OTHER_POLICIES || this.#known.has(policy)) return policy;
    if (this.#known.size >= this.#max) return OTHER_POLICIES;
    this.#known.add(policy);
    return policy;
  }

  planOf(policy: string, plan: string): string {
    const pair = seriesOf(policy, [plan]);
    if (plan === OTHER_PLANS || this.#plans.has(pair)) return plan;
    if (this.#plans.size >= MAX_PLANS) return OTHER_PLANS;
    this.#plans.add(pair);
    return plan;
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

export interface ComparedCall {
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

/** The name for the groups of a policy's keys, which are counted as keys are. */
export function groupsOf(policy: string): string {
  return `${policy}${MARK}groups`;
}

/** The name for a policy's history by plan. */
export function plansOf(policy: string): string {
  return `${policy}${MARK}plans`;
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

interface MetricFamily {
  readonly labels: readonly string[];
  readonly help: string;
}

/** The first label of most metrics: its values are bounded. */
export const POLICY_LABEL = "policy";

/** All metrics, as in docs/metrics.md. The public name is `weir_` and this; a counter's ends in `_total`. */
export const FAMILIES = {
  stats_up: {
    labels: [],
    help: "Whether the object with the counts has answered: 1, or 0 without all other metrics.",
  },
  decisions: {
    labels: [POLICY_LABEL, "outcome", "reason", "source"],
    help: "Decisions that callers were told. The outcome is admitted or denied.",
  },
  plan_decisions: {
    labels: [POLICY_LABEL, "plan", "outcome"],
    help: "Those by a plan that the call has named.",
  },
  near_limit: {
    labels: [POLICY_LABEL],
    help: "Admitted calls after which a rule had less than a fifth of its limit left.",
  },
  waited_seconds: { labels: [POLICY_LABEL], help: "How long calls waited for their turn." },
  object_messages: {
    labels: ["kind"],
    help: "Messages sent to objects. One of the kind batch has several calls.",
  },
  object_unanswered: {
    labels: ["kind"],
    help: "Messages to objects that had no answer in time, or an error.",
  },
  object_pauses: {
    labels: [],
    help: "Objects that were overloaded, or late three times in a row: calls go without them for a while.",
  },
  object_latency_seconds: {
    labels: ["kind"],
    help: "How long objects took to answer a message. Messages that may wait for a turn are not in it.",
  },
  object_pace_seconds: {
    labels: [POLICY_LABEL],
    help: "Answers of objects that are behind, by how long they ask a sender to wait with its next message.",
  },
  object_calls: { labels: [POLICY_LABEL, "method"], help: "Calls on keys that objects carried out." },
  calls_dropped: {
    labels: [POLICY_LABEL],
    help: "Calls that were not decided, since their callers had stopped waiting.",
  },
  units_reserved: {
    labels: [POLICY_LABEL],
    help: "Units that objects handed out, with which isolates and clients decide.",
  },
  buckets_reserved: {
    labels: [POLICY_LABEL],
    help: "Answers that gave an isolate, or a region's object, a bucket with a part of the rate.",
  },
  plan_changes: { labels: [POLICY_LABEL], help: "Keys whose calls named another plan than before." },
  rows_read: { labels: [], help: "Rows that objects read from their tables." },
  rows_written: { labels: [], help: "Rows that objects wrote, alarms included." },
  leases_granted: { labels: [POLICY_LABEL], help: "Leases that objects granted." },
  leases_released: {
    labels: [POLICY_LABEL],
    help: "Leases that ended since their holders, or a reset, ended them.",
  },
  leases_reclaimed: { labels: [POLICY_LABEL], help: "Leases that ended since nobody renewed them." },
  notices: {
    labels: [POLICY_LABEL, "result"],
    help: "Notices that limits are reached: sent, attempts that failed and come again, and what was dropped.",
  },
  lease_held_seconds: {
    labels: [POLICY_LABEL],
    help: "How long leases were held, until they were released or ended unrenewed.",
  },
  compared: {
    labels: [POLICY_LABEL, "candidate", "denied_by"],
    help: "Calls that a candidate decided beside its policy, by who denied them.",
  },
  stats_messages: {
    labels: ["result"],
    help: "Messages with counts that have arrived: counted, or repeated and not counted again.",
  },
  isolates: {
    labels: ["runs"],
    help: "Isolates that have sent counts in the last two minutes, by what they run.",
  },
  catalog_failures: {
    labels: ["in_force"],
    help: "Messages to the catalog that failed, by what isolates went on with: the catalog as last known, or the file.",
  },
  catalog_age_seconds: {
    labels: [],
    help: "How old the catalog was with which isolates went on after a message to it had failed.",
  },
} as const satisfies Readonly<Record<string, MetricFamily>>;

export type Metric = keyof typeof FAMILIES;

export function familyOf(metric: string): MetricFamily | undefined {
  return Object.hasOwn(FAMILIES, metric) ? FAMILIES[metric as Metric] : undefined;
}

/** Durations are histograms. A gauge is not counted: it is what is found when it is asked for. */
export function typeOf(metric: string): "counter" | "histogram" | "gauge" {
  if (metric === "isolates" || metric.endsWith("_up")) return "gauge";
  return metric.endsWith("_seconds") ? "histogram" : "counter";
}

/** The series of a duration's bucket: the last label is the bucket's upper bound in milliseconds. */
export function bucketOf(metric: string, durationMs: number): string {
  return String(boundsOf(metric).find((boundMs) => durationMs <= boundMs) ?? "inf");
}

/** Instead of a bucket: the sum of all durations, in milliseconds. */
export const SUM = "sum";

/** The upper bounds of a histogram's buckets, in milliseconds. */
export function boundsOf(metric: string): readonly number[] {
  return metric === "lease_held_seconds" ? LEASE_BOUNDS_MS : DURATION_BOUNDS_MS;
}

/** Stored: never remove one. */
const DURATION_BOUNDS_MS = [1, 5, 10, 25, 50, 100, 250, 500, 1_000, 5_000, 30_000] as const;
/** Work under a lease may take hours. Stored: never remove one. */
const LEASE_BOUNDS_MS = [...DURATION_BOUNDS_MS, 60_000, 300_000, 1_800_000, 7_200_000] as const;
