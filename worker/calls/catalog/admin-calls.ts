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
import { type Answered, LIMITER_PROBLEMS, Problem } from "../../../core/protocol/problems.ts";
import { violationsOf } from "../../../core/validation.ts";
import { clip, meant, type Violation } from "../../../core/violations.ts";
import { CALLER_NAME, type Principal, StoredToken, TokenFields } from "../../auth/tokens.ts";
import { isPlain, plainProblem } from "../plain-data.ts";
import { MAX_PROBLEMS, notAllowed, parse, badValue, stray } from "../validate.ts";
import { catalogAnswer, type CatalogCaller, type CatalogInput, asProblem, write } from "./catalog-calls.ts";

export function describeOwnToken({ id, scopes, policies, keyPrefix }: Principal): object {
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
}: CatalogCaller): Answered<{ tokens: (Table & { readonly name: string })[] }> {
  const tokens = await catalogAnswer(catalog.tokens());
  if (tokens instanceof Problem) return tokens;
  return { tokens: tokens.map(({ name, entry }) => ({ ...entry, name })) };
}

/** Issues a token. It is shown this once, and stored as a hash. */
export async function issueToken(
  caller: CatalogCaller,
  { body }: CatalogInput,
): Answered<Table & { readonly token: string }> {
  const parsed = plainProblem(body) ?? parse(TokenFields, body);
  if (parsed instanceof Problem) return parsed;
  const { name, ...entry } = parsed;
  const token = `weir_${randomId()}${randomId()}`;
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(token));
  const sha256 = Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
  const issued = { kind: "token", name, entry: { sha256, ...entry } } as const;
  const written = await write(caller, issued, { ifNoneMatch: true });
  if (!(written instanceof Problem)) return { name, token, ...entry };
  if (written.status !== 412) return written;
  const detail = `there is a token ${JSON.stringify(name)}: give another name, or revoke it first`;
  return new Problem(LIMITER_PROBLEMS.tokenExists, detail);
}

export async function revokeToken(
  caller: CatalogCaller,
  { place: { name = "" } }: CatalogInput,
): Promise<Problem | undefined> {
  return asProblem(await write(caller, { kind: "token", name, entry: null }, {}));
}

export async function readCatalog({ catalog }: CatalogCaller): Answered<Versioned<CatalogDocument>> {
  return await catalogAnswer(catalog.document());
}

export async function writeCatalog(
  caller: CatalogCaller,
  { body: document, conditions }: CatalogInput,
): Answered<Versioned<CatalogDocument>> {
  const strays = strayFields(document);
  if (strays !== undefined) return strays;
  if (!isDocument(document)) return stray([], `the body must be ${DOCUMENT_ALLOWED}`);
  const problem = sizeProblem(document) ?? tableProblem(document) ?? tokensProblem(document);
  if (problem !== undefined) return problem;
  const written = await write(caller, { kind: "catalog", document }, conditions);
  return written instanceof Problem ? written : await readCatalog(caller);
}

/** A page of the audit log, the latest first. */
export async function readAudit(
  { catalog }: CatalogCaller,
  { cursor }: CatalogInput,
): Answered<{ entries: readonly AuditEntry[]; cursor?: string }> {
  if (cursor !== undefined && !/^\d{1,15}$/.test(cursor))
    return badValue(["cursor"], cursor, "the cursor of an earlier answer");
  const page = await catalogAnswer(catalog.audit(cursor === undefined ? undefined : Number(cursor)));
  if (page instanceof Problem) return page;
  return { entries: page.items, ...(page.next !== undefined && { cursor: page.next }) };
}

const DOCUMENT_ALLOWED =
  '{ "policies": { NAME: { ... } }, "overrides": { POLICY: { PATTERN: { ... } } }, "tokens": { NAME: { ... } } }, with "candidates": { POLICY: { ... } } if wanted';

/** Whether a value has the shape of a document. Its parts are checked one by one. */
function isDocument(value: unknown): value is CatalogDocument {
  if (!isTable(value)) return false;
  const { policies, overrides, tokens, candidates = {} } = value;
  return (
    [policies, overrides, tokens, candidates].every(isTableOfTables) &&
    Object.values(overrides as object).every(isTableOfTables)
  );
}

const MAX_ENTRIES = {
  policies: MAX_POLICIES,
  overrides: MAX_OVERRIDES,
  tokens: MAX_TOKENS,
  candidates: MAX_POLICIES,
} as const;

function strayFields(document: unknown): Problem | undefined {
  const known = Object.keys(MAX_ENTRIES);
  const strays = isTable(document) ? Object.keys(document).filter((field) => !known.includes(field)) : [];
  if (strays.length === 0) return undefined;
  const violations = strays.slice(0, MAX_PROBLEMS).map((field) => ({
    path: [field],
    detail: `${clip(field)} is not a field: there are ${known.join(", ")}${meant(field, known)}`,
  }));
  return notAllowed(violations, strays.length);
}

/** The tables of a document's entries, each with its place. */
function tablesOf({ policies, overrides, tokens, candidates = {} }: CatalogDocument) {
  const byPolicy = Object.entries(overrides).map(([policy, its]) => [["overrides", policy], its] as const);
  return [[["policies"], policies], ...byPolicy, [["tokens"], tokens], [["candidates"], candidates]] as const;
}

/** The problem of a document with too many entries, found before any of them is read. */
function sizeProblem(document: CatalogDocument): Problem | undefined {
  const counts = { policies: 0, overrides: 0, tokens: 0, candidates: 0 };
  for (const [[kind], entries] of tablesOf(document)) counts[kind] += Object.keys(entries).length;
  const violations = (Object.keys(MAX_ENTRIES) as (keyof typeof MAX_ENTRIES)[])
    .filter((kind) => counts[kind] > MAX_ENTRIES[kind])
    .map((kind) => ({
      path: [kind],
      detail: `${kind} has ${counts[kind]} entries: must have at most ${MAX_ENTRIES[kind]}`,
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

function tableProblem(document: CatalogDocument): Problem | undefined {
  for (const [place, entries] of tablesOf(document))
    for (const [name, entry] of Object.entries(entries)) {
      const path = [...place, name];
      const problem = plainProblem(entry);
      if (problem !== undefined) return stray(path, `${clip(path.join("."))}: ${problem.detail}`);
    }
  return undefined;
}

/** A `Map`, which RPC allows, would count as an empty table, and so remove all entries. */
function isTable(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && isPlain(value);
}

function isTableOfTables(value: unknown): boolean {
  return isTable(value) && Object.values(value).every(isTable);
}
