import * as v from "valibot";
import {
  type CatalogDocument,
  MAX_OVERRIDES,
  MAX_POLICIES,
  MAX_TOKENS,
  type Table,
} from "../../../core/catalog/calls.ts";
import type { Problem } from "../../../core/protocol/problems.ts";
import { clip, violationsOf, type Violation } from "../../../core/validation.ts";
import { CALLER_NAME, StoredToken } from "../../auth/tokens.ts";
import { MAX_PROBLEMS, notAllowed, plainProblem } from "../validate.ts";

/** What errors say that a document is. */
export const DOCUMENT_ALLOWED =
  '{ "policies": { NAME: { ... } }, "overrides": { POLICY: { PATTERN: { ... } } }, "tokens": { NAME: { ... } } }, with "candidates": { POLICY: { ... } } if wanted, and nothing else';

/** Whether a value has the shape of a document. What is in it is checked piece by piece. */
export function isDocument(value: unknown): value is CatalogDocument {
  if (!isTable(value)) return false;
  const { policies, overrides, tokens, candidates = {}, ...others } = value;
  return (
    Object.keys(others).length === 0 &&
    [policies, overrides, tokens, candidates].every(isTableOfTables) &&
    Object.values(overrides as object).every(isTableOfTables)
  );
}

/** The problem of a document with more entries than a catalog may have, found before any of them is looked at. */
export function sizeProblem({
  policies,
  overrides,
  tokens,
  candidates = {},
}: CatalogDocument): Problem | undefined {
  const count = (table: object) => Object.keys(table).length;
  const counted = [
    ["policies", count(policies), MAX_POLICIES],
    ["overrides", Object.values(overrides).reduce((sum, its) => sum + count(its), 0), MAX_OVERRIDES],
    ["tokens", count(tokens), MAX_TOKENS],
    ["candidates", count(candidates), MAX_POLICIES],
  ] as const;
  const over = counted.filter(([, entries, most]) => entries > most);
  if (over.length === 0) return undefined;
  return notAllowed(
    over.map(([name, entries, most]) => ({
      path: [name],
      detail: `${name} has ${entries} entries: must have at most ${most}`,
    })),
  );
}

/** The problem of tokens that are none. It looks for so many problems as an answer lists, and no further. */
export function tokensProblem({ tokens }: CatalogDocument): Problem | undefined {
  const bad: Violation[] = [];
  for (const [name, entry] of Object.entries(tokens)) {
    if (bad.length >= MAX_PROBLEMS) break;
    const [named, parsed] = [v.safeParse(CALLER_NAME, name), v.safeParse(StoredToken, entry)];
    const path = ["tokens", clip(name)];
    if (!named.success) bad.push(...violationsOf(named.issues, path));
    if (!parsed.success) bad.push(...violationsOf(parsed.issues, path));
  }
  return bad.length === 0 ? undefined : notAllowed(bad);
}

/** The problem of a table in a document that is not plain data, or too large; `undefined`: all are. */
export function tableProblem({
  policies,
  overrides,
  tokens,
  candidates = {},
}: CatalogDocument): Problem | undefined {
  const places = [
    ...placesIn(["policies"], policies),
    ...Object.entries(overrides).flatMap(([policy, its]) => placesIn(["overrides", policy], its)),
    ...placesIn(["tokens"], tokens),
    ...placesIn(["candidates"], candidates),
  ];
  for (const [path, table] of places) {
    const stray = plainProblem(table);
    if (stray !== undefined)
      return notAllowed([{ path, detail: `${clip(path.join("."))}: ${stray.detail}` }]);
  }
  return undefined;
}

function placesIn(
  path: readonly string[],
  tables: Readonly<Record<string, Table>>,
): (readonly [path: readonly string[], table: Table])[] {
  return Object.entries(tables).map(([name, table]) => [[...path, name], table] as const);
}

/** A `Map`, which comes over RPC, would be a table without fields, and all that it leaves out would be taken away. */
function isTable(value: unknown): value is Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

function isTableOfTables(value: unknown): boolean {
  return isTable(value) && Object.values(value).every(isTable);
}
