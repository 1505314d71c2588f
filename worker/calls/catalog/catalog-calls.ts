/** The calls that read and change policies, overrides and candidates, and the rights they require. */
import * as v from "valibot";
import type {
  CandidateAnswer,
  CandidateInCatalog,
  CatalogMethods,
  ComparedCandidate,
  Comparison,
  Conditions,
  OverrideAnswer,
  OverrideInCatalog,
  PolicyAnswer,
  PolicyInCatalog,
  Refusal,
  Table,
  Versioned,
  Written,
  CatalogChange,
} from "../../../core/catalog/calls.ts";
import { instantText } from "../../../core/clock.ts";
import { isTable } from "../../../core/policies/changed-tables.ts";
import { type Answered, Problem, LIMITER_PROBLEMS, PROBLEMS } from "../../../core/protocol/problems.ts";
import { comparedSeries, type DeniedBy, keysOfCandidate } from "../../../core/stats/counts.ts";
import type { StatsBindings } from "../../../core/stats/messages.ts";
import { integer, table } from "../../../core/validation.ts";
import { clip, describe } from "../../../core/violations.ts";
import {
  isConfigured,
  patternProblem,
  policyProblem,
  type Principal,
  scopeProblem,
} from "../../auth/tokens.ts";
import { plainProblem } from "../plain-data.ts";
import { askStats } from "../stats.ts";
import { notAllowed, parse, badValue, stray } from "../validate.ts";

export interface CatalogCaller {
  readonly catalog: CatalogMethods;
  readonly principal: Principal;
  /** Reads the catalog at once, so that this isolate knows its own changes. */
  readonly onWritten: () => Promise<void>;
  /** Where decisions of candidates are counted. */
  readonly stats: StatsBindings;
  /** The secret API_TOKENS, whose names no other token may have. */
  readonly secret: string | undefined;
}

export interface CatalogInput {
  readonly place: Readonly<Record<string, string>>;
  readonly body: unknown;
  readonly conditions: Conditions;
  readonly cursor?: string | undefined;
}

/** The write of an entry at a place. Without fields it is deleted. */
type WriteOf = (place: CatalogInput["place"], fields: Table | null) => CatalogChange;

const policyWrite: WriteOf = ({ policy: name = "" }, fields) => ({ kind: "policy", name, fields });
const candidateWrite: WriteOf = ({ policy = "" }, fields) => ({ kind: "candidate", policy, fields });
const overrideWrite: WriteOf = ({ policy = "", pattern = "" }, fields) => ({
  kind: "override",
  policy,
  pattern,
  fields,
});

/** Reads the policy in force for keys without an override. */
export async function readPolicy(
  { catalog, principal }: CatalogCaller,
  { place: { policy = "" } }: Pick<CatalogInput, "place">,
): Answered<PolicyAnswer> {
  const isHinted = principal.policies === undefined;
  const refusal = policyProblem(principal, policy);
  return refusal ?? policyAnswer(await catalogAnswer(catalog.policy(policy, isHinted)));
}

export async function writePolicy(caller: CatalogCaller, input: CatalogInput): Answered<PolicyAnswer> {
  const written = await writeBody(caller, input, policyWrite);
  return written instanceof Problem ? written : await writtenPolicy(caller, input, written);
}

/** Deletes a policy: the file's one is in force again, or there is none. */
export const deletePolicy = deleting(policyWrite);

/** The policy after a write. After a dry run it cannot be read. */
async function writtenPolicy(
  caller: CatalogCaller,
  input: CatalogInput,
  { version, value, removedPlans }: Written,
): Answered<PolicyAnswer> {
  const read = await readPolicy(caller, input);
  const removed = removedPlans && { removedPlans };
  if (input.conditions.isDryRun !== true) return read instanceof Problem ? read : { ...read, ...removed };
  const { policy = "" } = input.place;
  const overrides = read instanceof Problem ? 0 : read.overrides;
  return { policy, version, source: "catalog", overrides, ...(value as Table), ...removed };
}

export async function readOverride(
  { catalog, principal }: CatalogCaller,
  { place: { policy = "", pattern = "" } }: CatalogInput,
): Answered<OverrideAnswer> {
  const refusal = policyProblem(principal, policy) ?? patternProblem(principal, pattern);
  return refusal ?? overrideAnswer(await catalogAnswer(catalog.override(policy, pattern)));
}

export async function listOverrides(
  { catalog, principal }: CatalogCaller,
  { place: { policy = "" }, cursor }: CatalogInput,
): Answered<{ overrides: OverrideAnswer[]; cursor?: string }> {
  const refusal = policyProblem(principal, policy) ?? notForPrefix(principal);
  if (refusal !== undefined) return refusal;
  const page = await catalogAnswer(catalog.overrides(policy, cursor));
  if (page instanceof Problem) return page;
  const overrides = page.items.map((each) => overrideAnswer(each) as OverrideAnswer);
  return { overrides, ...(page.next !== undefined && { cursor: page.next }) };
}

export async function writeOverride(caller: CatalogCaller, input: CatalogInput): Answered<OverrideAnswer> {
  const written = await writeBody(caller, input, overrideWrite);
  return written instanceof Problem ? written : overrideAnswer(written as Versioned<OverrideInCatalog>);
}

export const deleteOverride = deleting(overrideWrite);

/** The candidate of a policy, and both decisions on the same calls. Keys need the scope `admin`. */
export async function readCandidate(
  { catalog, principal, stats }: CatalogCaller,
  { place: { policy = "" } }: CatalogInput,
): Answered<ComparedCandidate> {
  const refusal = policyProblem(principal, policy);
  if (refusal !== undefined) return refusal;
  const read = await catalogAnswer(catalog.candidate(policy));
  if (read instanceof Problem) return read;
  const answer = candidateAnswer(read);
  // The counts are of all keys.
  if (stats.STATS === undefined || principal.keyPrefix !== undefined) return answer;
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

export async function writeCandidate(caller: CatalogCaller, input: CatalogInput): Answered<CandidateAnswer> {
  const written = await writeBody(caller, input, candidateWrite);
  return written instanceof Problem ? written : candidateAnswer(written as Versioned<CandidateInCatalog>);
}

export const deleteCandidate = deleting(candidateWrite);

/** Makes the candidate the policy. Units used under the policy stay used. */
export async function promoteCandidate(caller: CatalogCaller, input: CatalogInput): Answered<PolicyAnswer> {
  if (JSON.stringify(input.body) !== "{}")
    return stray([], "the body must be left out: the candidate is promoted as it is");
  const { policy = "" } = input.place;
  const written = await write(caller, { kind: "promotion", policy }, input.conditions);
  return written instanceof Problem ? written : await writtenPolicy(caller, input, written);
}

function policyAnswer(read: Versioned<PolicyInCatalog> | Problem): PolicyAnswer | Problem {
  if (read instanceof Problem) return read;
  const { name, source, fields, overrides } = read.value;
  return { policy: name, version: read.version, source, overrides, ...fields };
}

function overrideAnswer(read: Versioned<OverrideInCatalog> | Problem): OverrideAnswer | Problem {
  if (read instanceof Problem) return read;
  const { policy, pattern, fields } = read.value;
  return { policy, pattern, version: read.version, ...fields };
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

async function writeBody(
  caller: CatalogCaller,
  { place, body, conditions }: CatalogInput,
  writeOf: WriteOf,
): Answered<Written> {
  const problem = plainProblem(body);
  if (problem !== undefined) return problem;
  if (!isTable(body)) return stray([], "the body must be an object");
  return await write(caller, writeOf(place, body), conditions);
}

function deleting(writeOf: WriteOf) {
  return async (caller: CatalogCaller, { place, conditions }: CatalogInput): Answered<undefined> =>
    asProblem(await write(caller, writeOf(place, null), conditions));
}

export async function write(
  caller: CatalogCaller,
  what: CatalogChange,
  conditions: Conditions,
): Answered<Written> {
  const { catalog, principal, onWritten } = caller;
  const refusal =
    scopeProblem(principal, ["admin"]) ?? rightsProblem(principal, what) ?? takenProblem(caller.secret, what);
  if (refusal !== undefined) return refusal;
  const { title: by, keyPrefix } = principal;
  const written = await catalogAnswer(
    catalog.write({ write: what, by, ...(keyPrefix !== undefined && { keyPrefix }), ...conditions }),
  );
  if (!(written instanceof Problem) && conditions.isDryRun !== true) await onWritten();
  return written;
}

const FREE_NAME = "a name that no token of the secret API_TOKENS has";

/** A token's name identifies its caller: a catalog token with a name of the secret would be that caller. */
function takenProblem(secret: string | undefined, what: CatalogChange): Problem | undefined {
  if (what.kind === "token" && what.entry !== null && isConfigured(secret, what.name))
    return badValue(["name"], what.name, FREE_NAME);
  if (what.kind !== "catalog") return undefined;
  const taken = Object.keys(what.document.tokens).filter((name) => isConfigured(secret, name));
  if (taken.length === 0) return undefined;
  return notAllowed(
    taken.map((name) => {
      const path = ["tokens", name];
      return { path, detail: `${clip(path.join("."))} has the name ${describe(name)}: must be ${FREE_NAME}` };
    }),
  );
}

export async function catalogAnswer<Answer extends object>(
  answer: Promise<Answer | Refusal>,
): Answered<Exclude<Answer, Refusal>> {
  try {
    const value = await answer;
    return "refused" in value ? problemOf(value) : (value as Exclude<Answer, Refusal>);
  } catch (error) {
    console.warn(`the catalog does not answer: ${String(error)}`);
    // The runtime reports this when there is no room, and has undone the complete write.
    const detail = String(error).includes("SQLITE_FULL")
      ? "the storage of the catalog is full, so nothing was changed: make room, and write again"
      : "the catalog did not answer: whether anything was changed is not known, so read it again";
    return new Problem(PROBLEMS.unavailable, detail);
  }
}

function problemOf({ refused: why, detail, violations = [] }: Refusal): Problem {
  if (why === "not-allowed") return violations.length > 0 ? notAllowed(violations) : stray([], detail);
  const kind = {
    missing: LIMITER_PROBLEMS.notInCatalog,
    changed: LIMITER_PROBLEMS.preconditionFailed,
    full: LIMITER_PROBLEMS.bound,
  }[why];
  return new Problem(kind, detail);
}

export function asProblem(answer: unknown): Problem | undefined {
  return answer instanceof Problem ? answer : undefined;
}

const BoundConditions = table({
  ifMatch: v.optional(integer(0, Number.MAX_SAFE_INTEGER)),
  dryRun: v.optional(v.boolean("true or false")),
});

export function readConditions(given: unknown = {}): Conditions | Problem {
  const read = plainProblem(given) ?? parse(BoundConditions, given);
  if (read instanceof Problem) return read;
  const { ifMatch, dryRun } = read;
  return {
    ...(ifMatch !== undefined && { ifMatch: [String(ifMatch)] }),
    ...(dryRun === true && { isDryRun: true as const }),
  };
}

/* A caller limited to some policies or keys may change only those. */

function rightsProblem(principal: Principal, what: CatalogChange): Problem | undefined {
  if (what.kind === "token" || what.kind === "catalog") return notForAll(principal);
  const refusal = policyProblem(principal, what.kind === "policy" ? what.name : what.policy);
  if (refusal !== undefined) return refusal;
  return what.kind === "override" ? patternProblem(principal, what.pattern) : notForPrefix(principal);
}

/** The problem of a caller without rights to all policies and keys. */
export function notForAdmin(principal: Principal): Problem | undefined {
  return scopeProblem(principal, ["admin"]) ?? notForAll(principal);
}

function notForAll(principal: Principal): Problem | undefined {
  if (principal.policies === undefined && principal.keyPrefix === undefined) return undefined;
  return new Problem(
    LIMITER_PROBLEMS.forbidden,
    `${principal.title} may use some policies or keys only, and this concerns all of them`,
  );
}

/** The problem of a caller limited to some keys, in a call on all keys of a policy. */
function notForPrefix(principal: Principal): Problem | undefined {
  return principal.keyPrefix === undefined ? undefined : notForAll(principal);
}
