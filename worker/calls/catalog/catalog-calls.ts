/** The calls that read and change policies and overrides, the same over HTTP and RPC. */
import type {
  AuditEntry,
  CandidateAnswer,
  CandidateInCatalog,
  CatalogDocument,
  ComparedCandidate,
  Comparison,
  OverrideAnswer,
  OverrideInCatalog,
  Page,
  PolicyAnswer,
  PolicyInCatalog,
  Table,
  Versioned,
} from "../../../core/catalog/calls.ts";
import { instantText, randomId } from "../../../core/clock.ts";
import { Problem } from "../../../core/protocol/problems.ts";
import { comparedSeries, type DeniedBy, keysOfCandidate } from "../../../core/stats/counts.ts";
import { type Principal, scopeProblem, TokenFields } from "../../auth/tokens.ts";
import { askStats } from "../stats.ts";
import { notAllowed, parse, plainProblem, refused } from "../validate.ts";
import {
  asked,
  type CatalogCaller,
  type Conditions,
  forbidden,
  forbiddenOverride,
  notForAdmin,
  notForAll,
  problemIn,
  write,
} from "./catalog-access.ts";
import { DOCUMENT_ALLOWED, isDocument, sizeProblem, tableProblem, tokensProblem } from "./catalog-schemas.ts";

/** The policy as it is in force, for keys without an override. */
export async function readPolicy(
  { catalog, principal }: CatalogCaller,
  name: string,
): Promise<PolicyAnswer | Problem> {
  return forbidden(principal, name) ?? policyAnswer(await asked(catalog.policy(name)));
}

/** Changes a policy, or makes one. */
export async function writePolicy(
  caller: CatalogCaller,
  name: string,
  fields: unknown,
  conditions: Conditions,
): Promise<PolicyAnswer | Problem> {
  const table = tableOf(fields);
  if (table instanceof Problem) return table;
  const written = await write(caller, { kind: "policy", name, fields: table }, conditions);
  return written instanceof Problem ? written : await writtenPolicy(caller, name, written, conditions);
}

/** A policy as a write has made it, or as it would: what was only tried cannot be read. */
async function writtenPolicy(
  caller: CatalogCaller,
  name: string,
  { version, value }: Versioned<unknown>,
  { isDryRun }: Conditions,
): Promise<PolicyAnswer | Problem> {
  const there = await readPolicy(caller, name);
  if (isDryRun !== true) return there;
  const overrides = there instanceof Problem ? 0 : there.overrides;
  return policyAnswer({ version, value: { name, source: "catalog", fields: value as Table, overrides } });
}

/** Takes a policy away: what the file says is in force again, or it is gone. */
export async function deletePolicy(
  caller: CatalogCaller,
  name: string,
  conditions: Conditions,
): Promise<Problem | undefined> {
  return problemIn(await write(caller, { kind: "policy", name, fields: null }, conditions));
}

/** One override. */
export async function readOverride(
  { catalog, principal }: CatalogCaller,
  policy: string,
  pattern: string,
): Promise<OverrideAnswer | Problem> {
  return (
    forbiddenOverride(principal, policy, pattern) ??
    overrideAnswer(await asked(catalog.override(policy, pattern)))
  );
}

/** The overrides of a policy, page by page. */
export async function listOverrides(
  { catalog, principal }: CatalogCaller,
  policy: string,
  cursor?: string,
): Promise<{ overrides: OverrideAnswer[]; cursor?: string } | Problem> {
  const refusal =
    forbidden(principal, policy) ?? (principal.keyPrefix === undefined ? undefined : notForAll(principal));
  if (refusal !== undefined) return refusal;
  const page = await asked(catalog.overrides(policy, cursor));
  if (page instanceof Problem) return page;
  const overrides = page.items.map((each) => overrideAnswer(each) as OverrideAnswer);
  return { overrides, ...(page.next !== undefined && { cursor: page.next }) };
}

/** Sets the override of a pattern. */
export async function writeOverride(
  caller: CatalogCaller,
  policy: string,
  pattern: string,
  fields: unknown,
  conditions: Conditions,
): Promise<OverrideAnswer | Problem> {
  const table = tableOf(fields);
  if (table instanceof Problem) return table;
  const written = await write(caller, { kind: "override", policy, pattern, fields: table }, conditions);
  return written instanceof Problem ? written : overrideAnswer(written as Versioned<OverrideInCatalog>);
}

/** Takes the override of a pattern away. */
export async function deleteOverride(
  caller: CatalogCaller,
  policy: string,
  pattern: string,
  conditions: Conditions,
): Promise<Problem | undefined> {
  return problemIn(await write(caller, { kind: "override", policy, pattern, fields: null }, conditions));
}

function policyAnswer(read: Versioned<PolicyInCatalog> | Problem): PolicyAnswer | Problem {
  if (read instanceof Problem) return read;
  const { version, value } = read;
  const { name, source, fields, overrides } = value;
  return { policy: name, version, source, overrides, ...fields };
}

function overrideAnswer(read: Versioned<OverrideInCatalog> | Problem): OverrideAnswer | Problem {
  if (read instanceof Problem) return read;
  const { version, value } = read;
  return { policy: value.policy, pattern: value.pattern, version, ...value.fields };
}

/** The body as a table, or the problem. */
function tableOf(given: unknown): Table | Problem {
  const stray = plainProblem(given);
  if (stray !== undefined) return stray;
  if (typeof given === "object" && given !== null && !Array.isArray(given)) return given as Table;
  return notAllowed([{ path: [], detail: "the body must be an object" }]);
}

/* The calls on candidates: policies that decide the same calls beside those in force. The same over HTTP and RPC. */

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

/* The calls on what concerns all policies and keys: tokens, the whole catalog, and the audit log. */

/** The tokens that were issued at run time. */
export async function listTokens({
  catalog,
  principal,
}: CatalogCaller): Promise<{ tokens: (Table & { readonly name: string })[] } | Problem> {
  const refusal = notForAdmin(principal);
  if (refusal !== undefined) return refusal;
  const tokens = await asked(catalog.tokens());
  return tokens instanceof Problem
    ? tokens
    : { tokens: tokens.map(({ name, entry }) => ({ ...entry, name })) };
}

/** Issues a token. It is shown this once, and kept as a hash. */
export async function issueToken(
  caller: CatalogCaller,
  fields: unknown,
): Promise<(Table & { readonly token: string }) | Problem> {
  const refusal = notForAdmin(caller.principal) ?? plainProblem(fields);
  if (refusal !== undefined) return refusal;
  const parsed = parse(TokenFields, fields);
  if (parsed instanceof Problem) return parsed;
  const { name, ...entry } = parsed;
  const token = `weir_${randomId()}${randomId()}`;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(token)));
  const sha256 = Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const written = await write(
    caller,
    { kind: "token", name, entry: { sha256, ...entry } },
    { ifNoneMatch: true },
  );
  return written instanceof Problem ? written : { name, token, ...entry };
}

/** Revokes a token that was issued at run time. */
export async function revokeToken(caller: CatalogCaller, name: string): Promise<Problem | undefined> {
  return problemIn(await write(caller, { kind: "token", name, entry: null }, {}));
}

/** All of the catalog, as one document. */
export async function readCatalog({
  catalog,
  principal,
}: CatalogCaller): Promise<Versioned<CatalogDocument> | Problem> {
  return notForAdmin(principal) ?? (await asked(catalog.document()));
}

/** Makes the catalog what a document says. */
export async function writeCatalog(
  caller: CatalogCaller,
  document: unknown,
  conditions: Conditions,
): Promise<Versioned<CatalogDocument> | Problem> {
  const refusal = notForAdmin(caller.principal);
  if (refusal !== undefined) return refusal;
  if (!isDocument(document))
    return notAllowed([{ path: [], detail: `the body must be ${DOCUMENT_ALLOWED}` }]);
  const stray = sizeProblem(document) ?? tableProblem(document) ?? tokensProblem(document);
  if (stray !== undefined) return stray;
  const written = await write(caller, { kind: "catalog", document }, conditions);
  return written instanceof Problem ? written : await readCatalog(caller);
}

/** Who changed what, the latest first, page by page. */
export async function readAudit(
  { catalog, principal }: CatalogCaller,
  cursor?: string,
): Promise<{ entries: readonly AuditEntry[]; cursor?: string } | Problem> {
  const refusal = notForAdmin(principal);
  if (refusal !== undefined) return refusal;
  if (cursor !== undefined && !/^\d{1,15}$/.test(cursor))
    return refused(["cursor"], cursor, "the cursor of an earlier answer");
  const page: Page<AuditEntry> | Problem = await asked(
    catalog.audit(cursor === undefined ? undefined : Number(cursor)),
  );
  if (page instanceof Problem) return page;
  return { entries: page.items, ...(page.next !== undefined && { cursor: page.next }) };
}

/* What the token of the caller may do. */

/** The token's name, and what it may do. Absent: every policy, every key. */
export function describeToken({ id, scopes, policies, keyPrefix }: Principal): object {
  const { token: name } = JSON.parse(id) as { readonly token: string };
  return {
    name,
    scopes,
    ...(policies !== undefined && { policies }),
    ...(keyPrefix !== undefined && { keyPrefix }),
  };
}
