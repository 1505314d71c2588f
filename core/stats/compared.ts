/**
 * What a policy and its candidate decided of the same calls. It is counted as the metric `compared`, under the version of
 * the candidate: another candidate begins anew. The keys that it would hit are the top keys of a name of its own.
 */
import { partsOf, seriesOf, type Counts } from "./counts.ts";

/** Who denied a call; `unknown`: one of them could not decide. Sent and stored: never rename one. */
export const DENIED_BY = ["none", "policy", "candidate", "both", "unknown"] as const;
export type DeniedBy = (typeof DENIED_BY)[number];

/** No name of a policy has it. Stored: never change it. */
const MARK = "~";

/** Two decisions on one call. */
export interface Compared {
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
