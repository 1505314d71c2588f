/** The calls on candidates: policies that decide the same calls beside those in force. The same over HTTP and RPC. */
import type {
  CandidateAnswer,
  CandidateInCatalog,
  ComparedCandidate,
  Comparison,
  PolicyAnswer,
  Versioned,
} from "../../../core/catalog/calls.ts";
import { instantText } from "../../../core/clock.ts";
import { Problem } from "../../../core/protocol/problems.ts";
import { comparedSeries, keysOfCandidate, type DeniedBy } from "../../../core/stats/compared.ts";
import { scopeProblem } from "../../auth/tokens.ts";
import { askStats } from "../stats.ts";
import { asked, forbidden, problemIn, write, type CatalogCaller, type Conditions } from "./asking.ts";
import { tableOf, writtenPolicy } from "./catalog-calls.ts";

/** The candidate of a policy, with what it decided beside it. Keys are for the scope `admin`. */
export async function readCandidate(
  { catalog, principal, stats }: CatalogCaller,
  policy: string,
): Promise<ComparedCandidate | Problem> {
  const refusal = forbidden(principal, policy);
  if (refusal !== undefined) return refusal;
  const read = await asked(catalog.candidate(policy));
  if (read instanceof Problem) return read;
  const answer = candidateAnswer(read);
  // What was decided is counted of all keys.
  if (stats === undefined || principal.keyPrefix !== undefined) return answer;
  const totals = await askStats(stats, (object) => object.totals());
  if (totals instanceof Problem) return totals;
  const { version } = answer;
  const compared = comparisonOf((by) => totals.counts[comparedSeries(policy, version, by)] ?? 0);
  if (scopeProblem(principal, ["admin"]) !== undefined) return { ...answer, compared };
  const name = keysOfCandidate(policy, version);
  const top = await askStats(stats, (object) => object.topKeys({ policy: name, by: "denied" }));
  if (top instanceof Problem) return top;
  return { ...answer, compared, keys: top.keys.map(([key, count, error]) => ({ key, count, error })) };
}

/** Sets a policy's candidate. */
export async function writeCandidate(
  caller: CatalogCaller,
  policy: string,
  fields: unknown,
  conditions: Conditions,
): Promise<CandidateAnswer | Problem> {
  const table = tableOf(fields);
  if (table instanceof Problem) return table;
  const written = await write(caller, { kind: "candidate", policy, fields: table }, conditions);
  return written instanceof Problem ? written : candidateAnswer(written as Versioned<CandidateInCatalog>);
}

/** Takes a policy's candidate away. */
export async function deleteCandidate(
  caller: CatalogCaller,
  policy: string,
  conditions: Conditions,
): Promise<Problem | undefined> {
  return problemIn(await write(caller, { kind: "candidate", policy, fields: null }, conditions));
}

/** Makes the candidate the policy. What was consumed under the policy stays consumed. */
export async function promoteCandidate(
  caller: CatalogCaller,
  policy: string,
  conditions: Conditions,
): Promise<PolicyAnswer | Problem> {
  const written = await write(caller, { kind: "promotion", policy }, conditions);
  return written instanceof Problem ? written : await writtenPolicy(caller, policy, written, conditions);
}

function candidateAnswer({ version, value }: Versioned<CandidateInCatalog>): CandidateAnswer {
  return { policy: value.policy, version, candidate: value.fields, since: instantText(value.sinceMs) };
}

function comparisonOf(count: (by: DeniedBy) => number): Comparison {
  const [none, policy, candidate, both] = [count("none"), count("policy"), count("candidate"), count("both")];
  return {
    calls: none + policy + candidate + both,
    admittedByBoth: none,
    deniedByBoth: both,
    deniedByPolicyAlone: policy,
    deniedByCandidateAlone: candidate,
    undecided: count("unknown"),
  };
}
