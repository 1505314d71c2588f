/** Parses the tables POLICIES and LOG of wrangler.toml. */
import * as v from "valibot";
import { number, table, violation, violationsOf } from "../validation.ts";
import { parsePolicy } from "./parse-policy.ts";
import { NAME, NAME_ALLOWED } from "./policy-fields.ts";
import { type Policies, type Policy, publicName } from "./policy.ts";

/**
 * @throws Error that names every bad policy, field and value, and the allowed values. Such a worker does not start:
 * `npm run deploy` rejects it, and the last good deployment continues.
 */
export function parsePolicies(vars: unknown): Policies {
  const problems: string[] = [];
  const policies = new Map<string, Policy>();
  for (const [name, fields] of policyTablesOf(vars)) {
    const parsed = NAME.test(name)
      ? parsePolicy(name, fields)
      : { problems: [violation(["its name"], name, NAME_ALLOWED)] };
    if ("problems" in parsed)
      problems.push(...parsed.problems.map((text) => `policy ${JSON.stringify(name)}: ${text}`));
    else policies.set(name, parsed);
  }
  refuseBad(problems);
  return policies;
}

export function refuseBad(problems: readonly string[]): void {
  if (problems.length > 0) throw badConfiguration(problems);
}

export function badConfiguration(problems: readonly string[]): Error {
  return new Error(`bad configuration, not serving:\n${problems.join("\n")}`);
}

/** Replaces the fields of a removed policy. */
const REMOVAL = '{"removed":true}';

type PolicyTable = [name: string, fields: unknown];

/** The tables of `[vars.POLICIES]`, which may be JSON text. @throws Error when there is none */
export function policyTablesOf(vars: unknown): PolicyTable[] {
  return tablesOf(vars).filter(([, fields]) => !isRemoval(fields));
}

/** Whether a policy has `removed = true` instead of fields. Stored keys of other missing policies are kept. */
export function removedIn(vars: unknown): (name: string) => boolean {
  const removed = new Set(tablesOf(vars).flatMap(([name, fields]) => (isRemoval(fields) ? [name] : [])));
  return (name) => removed.has(publicName(name));
}

function isRemoval(fields: unknown): boolean {
  return typeof fields === "object" && fields !== null && "removed" in fields;
}

function tablesOf(vars: unknown): PolicyTable[] {
  const wanted = "POLICIES must be a table of policies: add one to wrangler.toml as [vars.POLICIES.<name>]";
  const { entries, error } = entriesOf(vars);
  if (entries.length === 0) refuseBad([wanted + (error ? ` (it is text that is not JSON: ${error})` : "")]);
  const bad = entries.filter(([, fields]) => isRemoval(fields) && JSON.stringify(fields) !== REMOVAL);
  const allowed = "removed = true and nothing else, or without removed";
  refuseBad(bad.map(([name, fields]) => `policy ${JSON.stringify(name)}: ${violation([], fields, allowed)}`));
  return entries;
}

/** The entries of a table, which may be JSON text; none of any other value. */
export function entriesOf(vars: unknown): { readonly entries: PolicyTable[]; readonly error?: string } {
  try {
    const tables: unknown = typeof vars === "string" ? JSON.parse(vars) : vars;
    const isTable = typeof tables === "object" && tables !== null && !Array.isArray(tables);
    return { entries: isTable ? Object.entries(tables) : [] };
  } catch (error) {
    return { entries: [], error: String(error) };
  }
}

const LogTable = table({
  denials: v.optional(number(0, 1), 0),
  /** The logged part of the calls without an answer from the object. */
  failures: v.optional(number(0, 1), 1),
  keys: v.optional(v.boolean("true or false"), false),
});

export type LogSettings = Readonly<v.InferOutput<typeof LogTable>>;

/** @throws Error that names each bad field and value, and the allowed values */
export function parseLog(given: unknown): LogSettings {
  const parsed = v.safeParse(LogTable, given ?? {});
  if (!parsed.success) refuseBad(violationsOf(parsed.issues).map(({ detail }) => `LOG: ${detail}`));
  return parsed.output as LogSettings;
}

const [MIN_BACKGROUND_MS, MAX_BACKGROUND_MS] = [50, 10_000];

/** The interval of background work; `undefined`: the default. @throws Error with the allowed numbers */
export function parseBackgroundMs(given: unknown): number | undefined {
  if (given === undefined) return undefined;
  const ms = Number(given);
  if (Number.isInteger(ms) && ms >= MIN_BACKGROUND_MS && ms <= MAX_BACKGROUND_MS) return ms;
  const allowed = `a whole number from ${MIN_BACKGROUND_MS} to ${MAX_BACKGROUND_MS}`;
  throw badConfiguration([`BACKGROUND_MS is ${JSON.stringify(given)}: must be ${allowed}`]);
}
