/**
 * What is counted, as plain data: by a series, how often. A series is the name of a metric and the values of its labels,
 * with spaces between them: `decisions api denied quota object`. Policies and the limiter's own words have no spaces.
 * Series are sent and stored: never rename a metric, and never change the order of its labels.
 */
export type Counts = Readonly<Record<string, number>>;

/** So many policies have counts of their own. */
export const MAX_POLICIES = 1_000;
/** All further policies together. No policy of a deployment has such a name. */
export const OTHER_POLICIES = "_other";

/** Both together. The order does not matter, nor what is merged first. */
export function merged(one: Counts, other: Counts): Counts {
  const both: Record<string, number> = { ...one };
  for (const [series, count] of Object.entries(other)) both[series] = (both[series] ?? 0) + count;
  return both;
}

/** The metric of a series, and the values of its labels. */
export function partsOf(series: string): readonly string[] {
  return series.split(" ");
}

/** The series of a metric with these values of its labels. */
export function seriesOf(metric: string, labels: readonly string[]): string {
  return [metric, ...labels].join(" ");
}

/** Names of policies, up to a bound. Those that come later share one name. */
export class PolicyNames {
  readonly #known = new Set<string>();
  readonly #most: number;

  constructor(most = MAX_POLICIES) {
    this.#most = most;
  }

  /** The name under which a policy is counted. */
  of(policy: string): string {
    if (policy === OTHER_POLICIES || this.#known.has(policy)) return policy;
    if (this.#known.size >= this.#most) return OTHER_POLICIES;
    this.#known.add(policy);
    return policy;
  }

  /** All names so far. */
  get all(): ReadonlySet<string> {
    return this.#known;
  }
}

/*
 * What a policy and its candidate decided of the same calls. It is counted as the metric `compared`, under the version of
 * the candidate: another candidate begins anew. The keys that it would hit are the top keys of a name of its own.
 */

/** Who denied a call; `unknown`: one of them could not decide. Sent and stored: never rename one. */
const DENIED_BY = ["none", "policy", "candidate", "both", "unknown"] as const;
export type DeniedBy = (typeof DENIED_BY)[number];

/** No name of a policy has it. Stored: never change it. */
const MARK = "~";

/** Two decisions on one call. */
export interface ComparisonCounts {
  readonly policy: string;
  /** The candidate's. */
  readonly version: number;
  readonly key: string;
  readonly deniedBy: DeniedBy;
}

/** The series of such decisions. */
export function comparedSeries(policy: string, version: number, deniedBy: DeniedBy): string {
  return seriesOf("compared", [policy, String(version), deniedBy]);
}

/** Under which name the keys are counted that a candidate alone would deny. */
export function keysOfCandidate(policy: string, version: number): string {
  return `${policy}${MARK}${version}`;
}

/** The policy whose keys are counted under a name. */
export function policyOfKeys(name: string): string {
  return name.split(MARK)[0] ?? name;
}

/** The counts without those of candidates that came before others: so there are no more of them than policies. */
export function ofLatestCandidates(counts: Counts): Counts {
  const latest = new Map<string, number>();
  const compared = Object.keys(counts).filter((series) => partsOf(series)[0] === "compared");
  for (const series of compared) {
    const [, policy = "", version = ""] = partsOf(series);
    latest.set(policy, Math.max(latest.get(policy) ?? 0, Number(version)));
  }
  const old = compared.filter((series) => {
    const [, policy = "", version = ""] = partsOf(series);
    return Number(version) < (latest.get(policy) ?? 0);
  });
  if (old.length === 0) return counts;
  const others = { ...counts };
  for (const series of old) delete others[series];
  return others;
}
