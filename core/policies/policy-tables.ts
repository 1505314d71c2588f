/** The tables of `[vars.POLICIES]`, before anything in them is read. */
import { violation } from "../validation.ts";
import { publicName } from "./policy.ts";

/** What stands in place of the fields of a policy that was removed, as JSON. */
const REMOVAL = '{"removed":true}';

/** A policy's name, and what the deployment says of it. */
type PolicyTable = [name: string, fields: unknown];

/**
 * The policies that are given.
 *
 * @param vars the table `[vars.POLICIES]`, or the same as JSON text
 * @throws Error when there is none
 */
export function policyTablesOf(vars: unknown): PolicyTable[] {
  return tablesOf(vars).filter(([, fields]) => !isRemoval(fields));
}

/**
 * Which policies were removed on purpose: `removed = true` stands in place of their fields. What is stored of keys of
 * any other policy that is not given stays.
 */
export function removedIn(vars: unknown): (name: string) => boolean {
  const removed = new Set(tablesOf(vars).flatMap(([name, fields]) => (isRemoval(fields) ? [name] : [])));
  return (name) => removed.has(publicName(name));
}

function isRemoval(fields: unknown): boolean {
  return typeof fields === "object" && fields !== null && "removed" in fields;
}

function tablesOf(vars: unknown): PolicyTable[] {
  const wanted = "POLICIES must be a table of policies: add one to wrangler.toml as [vars.POLICIES.<name>]";
  let tables: unknown = vars;
  let found = "";
  try {
    if (typeof vars === "string") tables = JSON.parse(vars) as unknown;
  } catch (error) {
    found = ` (it is text that is not JSON: ${String(error)})`;
  }
  const isTable = typeof tables === "object" && tables !== null && !Array.isArray(tables);
  const entries = isTable ? Object.entries(tables as object) : [];
  if (entries.length === 0) throw new Error(`bad configuration, not serving:\n${wanted}${found}`);
  const bad = entries.filter(([, fields]) => isRemoval(fields) && JSON.stringify(fields) !== REMOVAL);
  const problems = bad.map(
    ([name, fields]) =>
      `policy ${JSON.stringify(name)}: ${violation([], fields, "removed = true and nothing else, or without removed")}`,
  );
  if (problems.length > 0) throw new Error(`bad configuration, not serving:\n${problems.join("\n")}`);
  return entries;
}
