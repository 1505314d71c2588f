/** The calls that read and change policies and overrides, the same over HTTP and RPC. */
import type {
  OverrideAnswer,
  OverrideInCatalog,
  PolicyAnswer,
  PolicyInCatalog,
  Versioned,
} from "../../../core/catalog/calls.ts";
import type { Table } from "../../../core/catalog/overrides.ts";
import { Problem } from "../../../core/protocol/problems.ts";
import { plainProblem } from "../plain-data.ts";
import { notAllowed } from "../validate.ts";
import {
  asked,
  forbidden,
  forbiddenOverride,
  notForAll,
  problemIn,
  write,
  type CatalogCaller,
  type Conditions,
} from "./asking.ts";

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
export async function writtenPolicy(
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
export function tableOf(given: unknown): Table | Problem {
  const stray = plainProblem(given);
  if (stray !== undefined) return stray;
  if (typeof given === "object" && given !== null && !Array.isArray(given)) return given as Table;
  return notAllowed([{ path: [], detail: "the body must be an object" }]);
}
