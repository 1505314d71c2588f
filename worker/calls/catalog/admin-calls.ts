/** The calls on tokens, the catalog as one document, and the audit log. */
import * as v from "valibot";
import {
  type AuditEntry,
  type CatalogDocument,
  MAX_OVERRIDES,
  MAX_POLICIES,
  MAX_TOKENS,
  type Table,
  type Versioned,
} from "../../../core/catalog/calls.ts";
import { randomId } from "../../../core/clock.ts";
import { Problem } from "../../../core/protocol/problems.ts";
import { clip, type Violation, violationsOf } from "../../../core/validation.ts";
import { CALLER_NAME, type Principal, StoredToken, TokenFields } from "../../auth/tokens.ts";
import { plainProblem } from "../plain-data.ts";
import { MAX_PROBLEMS, notAllowed, parse, refused } from "../validate.ts";
import {
  answerOf,
  type CatalogCaller,
  type CatalogInput,
  notForAdmin,
  problemIn,
  write,
} from "./catalog-calls.ts";

export function describeToken({ id, scopes, policies, keyPrefix }: Principal): object {
  const { token: name } = JSON.parse(id) as { readonly token: string };
  return {
    name,
    scopes,
    ...(policies !== undefined && { policies }),
    ...(keyPrefix !== undefined && { keyPrefix }),
  };
}

export async function listTokens({
  catalog,
  principal,
}: CatalogCaller): Promise<{ tokens: (Table & { readonly name: string })[] } | Problem> {
  const tokens = notForAdmin(principal) ?? (await answerOf(catalog.tokens()));
  if (tokens instanceof Problem) return tokens;
  return { tokens: tokens.map(({ name, entry }) => ({ ...entry, name })) };
}

/** Issues a token. It is shown this once, and stored as a hash. */
export async function issueToken(
  caller: CatalogCaller,
  { body }: CatalogInput,
): Promise<(Table & { readonly token: string }) | Problem> {
  const parsed = notForAdmin(caller.principal) ?? plainProblem(body) ?? parse(TokenFields, body);
  if (parsed instanceof Problem) return parsed;
  const { name, ...entry } = parsed;
  const token = `weir_${randomId()}${randomId()}`;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(token));
  const sha256 = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const issued = { kind: "token", name, entry: { sha256, ...entry } } as const;
  const written = await write(caller, issued, { ifNoneMatch: true });
  return written instanceof Problem ? written : { name, token, ...entry };
}

export async function revokeToken(
  caller: CatalogCaller,
  { place: { name = "" } }: CatalogInput,
): Promise<Problem | undefined> {
  return problemIn(await write(caller, { kind: "token", name, entry: null }, {}));
}

export async function readCatalog({
  catalog,
  principal,
}: CatalogCaller): Promise<Versioned<CatalogDocument> | Problem> {
  return notForAdmin(principal) ?? (await answerOf(catalog.document()));
}

export async function writeCatalog(
  caller: CatalogCaller,
  { body: document, conditions }: CatalogInput,
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

/** A page of the audit log, the latest first. */
export async function readAudit(
  { catalog, principal }: CatalogCaller,
  { cursor }: CatalogInput,
): Promise<{ entries: readonly AuditEntry[]; cursor?: string } | Problem> {
  const refusal = notForAdmin(principal);
  if (refusal !== undefined) return refusal;
  if (cursor !== undefined && !/^\d{1,15}$/.test(cursor))
    return refused(["cursor"], cursor, "the cursor of an earlier answer");
  const page = await answerOf(catalog.audit(cursor === undefined ? undefined : Number(cursor)));
  if (page instanceof Problem) return page;
  return { entries: page.items, ...(page.next !== undefined && { cursor: page.next }) };
}

const DOCUMENT_ALLOWED =
  '{ "policies": { NAME: { ... } }, "overrides": { POLICY: { PATTERN: { ... } } }, "tokens": { NAME: { ... } } }, with "candidates": { POLICY: { ... } } if wanted, and nothing else';

/** Whether a value has the shape of a document. Its parts are checked one by one. */
function isDocument(value: unknown): value is CatalogDocument {
  if (!isTable(value)) return false;
  const { policies, overrides, tokens, candidates = {}, ...others } = value;
  return (
    Object.keys(others).length === 0 &&
    [policies, overrides, tokens, candidates].every(isTableOfTables) &&
    Object.values(overrides as object).every(isTableOfTables)
  );
}

/** The problem of a document with too many entries, found before any of them is read. */
function sizeProblem({ policies, overrides, tokens, candidates = {} }: CatalogDocument): Problem | undefined {
  const count = (table: object) => Object.keys(table).length;
  const counted = [
    ["policies", count(policies), MAX_POLICIES],
    ["overrides", Object.values(overrides).reduce((sum, its) => sum + count(its), 0), MAX_OVERRIDES],
    ["tokens", count(tokens), MAX_TOKENS],
    ["candidates", count(candidates), MAX_POLICIES],
  ] as const;
  const violations = counted
    .filter(([, entries, max]) => entries > max)
    .map(([name, entries, max]) => ({
      path: [name],
      detail: `${name} has ${entries} entries: must have at most ${max}`,
    }));
  return violations.length === 0 ? undefined : notAllowed(violations);
}

function tokensProblem({ tokens }: CatalogDocument): Problem | undefined {
  const bad: Violation[] = [];
  for (const [name, stored] of Object.entries(tokens)) {
    if (bad.length >= MAX_PROBLEMS) break;
    const [named, parsed] = [v.safeParse(CALLER_NAME, name), v.safeParse(StoredToken, stored)];
    const path = ["tokens", clip(name)];
    if (!named.success) bad.push(...violationsOf(named.issues, path));
    if (!parsed.success) bad.push(...violationsOf(parsed.issues, path));
  }
  return bad.length === 0 ? undefined : notAllowed(bad);
}

function tableProblem({
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

/** A `Map`, which RPC allows, would count as an empty table, and so remove all entries. */
function isTable(value: unknown): value is Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return false;
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

function isTableOfTables(value: unknown): boolean {
  return isTable(value) && Object.values(value).every(isTable);
}
