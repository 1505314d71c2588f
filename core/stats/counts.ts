/**
 * What is counted, as plain data: by a series, how often. A series is the name of a metric and the values of its labels,
 * with spaces between them: `decisions api denied quota object`. Policies and the limiter's own words have no spaces.
 * Series are sent and stored: never rename a metric, and never change the order of its labels.
 */
export type Counts = Readonly<Record<string, number>>;

/** So many policies have counts of their own. */
export const MOST_POLICIES = 1_000;
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

  constructor(most = MOST_POLICIES) {
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
