/** The calls on what concerns all policies and keys: tokens, the whole catalog, and the audit log. */
import type { AuditEntry, CatalogDocument, Page, Versioned } from "../../../core/catalog/calls.ts";
import type { Table } from "../../../core/catalog/overrides.ts";
import { randomId } from "../../../core/clock.ts";
import { Problem } from "../../../core/protocol/problems.ts";
import { TokenFields } from "../../auth/token-entries.ts";
import { plainProblem } from "../plain-data.ts";
import { notAllowed, parse, refused } from "../validate.ts";
import { asked, notForAdmin, problemIn, write, type CatalogCaller, type Conditions } from "./asking.ts";
import { DOCUMENT_ALLOWED, isDocument, sizeProblem, tableProblem, tokensProblem } from "./documents.ts";

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
