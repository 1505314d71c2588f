/** The routes that read and change the catalog. */
import { Hono } from "hono";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { violation } from "../../core/validation.ts";
import { type Scope, SCOPES } from "../auth/tokens.ts";
import { catalogCallerOf } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { type CatalogCaller, type Conditions, notForAdmin } from "../calls/catalog/catalog-access.ts";
import {
  deleteCandidate,
  deleteOverride,
  deletePolicy,
  describeToken,
  issueToken,
  listOverrides,
  listTokens,
  promoteCandidate,
  readAudit,
  readCandidate,
  readCatalog,
  readOverride,
  readPolicy,
  revokeToken,
  writeCandidate,
  writeCatalog,
  writeOverride,
  writePolicy,
} from "../calls/catalog/catalog-calls.ts";
import { notAllowed } from "../calls/validate.ts";
import { type Ctx, placeIn, queryInput, strayProblem } from "./addresses.ts";
import { readJson } from "./body.ts";
import { authorized, jsonAnswer, noContent, withoutQuery } from "./handlers.ts";

/** The routes of the catalog, for the app to take in. */
export const catalogRoutes = new Hono<{ Bindings: Env }>();

/** The largest document, in bytes: 10,000 overrides of 800 bytes. */
const MAX_DOCUMENT_BYTES = 8 * 2 ** 20;
const POLICY = "/v1/policies/:policy";
const CANDIDATE = `${POLICY}/candidate`;
const OVERRIDE = `${POLICY}/overrides/:pattern`;

type Handle = (
  caller: CatalogCaller,
  c: Ctx,
  place: readonly string[],
  query: Query,
) => Promise<Response | Problem>;

/**
 * A handler for whoever has one of these scopes, with the parts of the address and what the query says.
 *
 * @param fields the fields that the query may have
 */
function handler(
  scopes: readonly Scope[],
  fields: Parameters<typeof queryOf>[1],
  handle: Handle,
): (c: Ctx) => Promise<Response> {
  return authorized(scopes, async (c, principal) => {
    const caller = catalogCallerOf(c.env, principal);
    if (caller instanceof Problem) return caller;
    const place = placeIn(c);
    const query = queryOf(c, fields);
    if (place instanceof Problem || query instanceof Problem)
      return place instanceof Problem ? place : (query as Problem);
    return await handle(caller, c, place, query);
  });
}

/** The answer, with its version as the entity tag. */
function tagged(answer: (object & { readonly version: number }) | Problem): Response | Problem {
  const response = jsonAnswer(answer);
  if (response instanceof Problem || answer instanceof Problem) return response;
  response.headers.set("etag", `"${answer.version}"`);
  return response;
}

const READING: readonly Scope[] = ["limit", "admin"];
const CHANGING: readonly Scope[] = ["admin"];

/** What is read, written and taken away at one address, which names the policy and, of an override, the pattern. */
interface Thing {
  readonly read: (caller: CatalogCaller, ...place: [string, string]) => Promise<Answer>;
  readonly write: (
    caller: CatalogCaller,
    place: [string, string],
    fields: unknown,
    query: Query,
  ) => Promise<Answer>;
  readonly remove: (
    caller: CatalogCaller,
    place: [string, string],
    query: Query,
  ) => Promise<Problem | undefined>;
}
type Answer = Parameters<typeof tagged>[0];

const THINGS: Readonly<Record<string, Thing>> = {
  [POLICY]: {
    read: readPolicy,
    write: (caller, [policy], fields, query) => writePolicy(caller, policy, fields, query),
    remove: (caller, [policy], query) => deletePolicy(caller, policy, query),
  },
  [OVERRIDE]: {
    read: readOverride,
    write: (caller, [policy, pattern], fields, query) =>
      writeOverride(caller, policy, pattern, fields, query),
    remove: (caller, [policy, pattern], query) => deleteOverride(caller, policy, pattern, query),
  },
  [CANDIDATE]: {
    read: readCandidate,
    write: (caller, [policy], fields, query) => writeCandidate(caller, policy, fields, query),
    remove: (caller, [policy], query) => deleteCandidate(caller, policy, query),
  },
};
for (const [path, { read, write, remove }] of Object.entries(THINGS)) {
  catalogRoutes.get(
    path,
    handler(READING, [], async (caller, _, [policy = "", , pattern = ""]) =>
      tagged(await read(caller, policy, pattern)),
    ),
  );
  catalogRoutes.put(
    path,
    handler(CHANGING, ["dryRun"], async (caller, c, [policy = "", , pattern = ""], query) => {
      const body = await readJson(c.req.raw);
      return body instanceof Problem
        ? body
        : tagged(await write(caller, [policy, pattern], body.value, query));
    }),
  );
  catalogRoutes.delete(
    path,
    handler(CHANGING, ["dryRun"], async (caller, c, [policy = "", , pattern = ""], query) =>
      noContent(c, await remove(caller, [policy, pattern], query)),
    ),
  );
}
catalogRoutes.get(
  `${POLICY}/overrides`,
  handler(READING, ["cursor"], async (caller, _, [policy = ""], { cursor }) =>
    jsonAnswer(await listOverrides(caller, policy, cursor)),
  ),
);
catalogRoutes.post(
  `${CANDIDATE}/promote`,
  handler(CHANGING, ["dryRun"], async (caller, c, [policy = ""], query) => {
    const body = await readJson(c.req.raw, { isOptional: true });
    if (body instanceof Problem) return body;
    if (JSON.stringify(body.value) !== "{}")
      return notAllowed([
        { path: [], detail: "the body must be left out: the candidate is promoted as it is" },
      ]);
    return tagged(await promoteCandidate(caller, policy, query));
  }),
);
catalogRoutes.get(
  "/v1/token",
  withoutQuery(SCOPES, (_, principal) => jsonAnswer(describeToken(principal))),
);
catalogRoutes.get(
  "/v1/tokens",
  handler(CHANGING, [], async (caller) => jsonAnswer(await listTokens(caller))),
);
catalogRoutes.post(
  "/v1/tokens",
  handler(CHANGING, [], async (caller, c) => {
    const refusal = notForAdmin(caller.principal);
    if (refusal !== undefined) return refusal;
    const body = await readJson(c.req.raw);
    return body instanceof Problem ? body : jsonAnswer(await issueToken(caller, body.value));
  }),
);
catalogRoutes.delete(
  "/v1/tokens/:name",
  handler(CHANGING, [], async (caller, c, [name = ""]) => noContent(c, await revokeToken(caller, name))),
);
catalogRoutes.get(
  "/v1/catalog",
  handler(CHANGING, [], async (caller) => document(await readCatalog(caller))),
);
catalogRoutes.put(
  "/v1/catalog",
  handler(CHANGING, ["dryRun"], async (caller, c, _, query) => {
    const refusal = notForAdmin(caller.principal);
    if (refusal !== undefined) return refusal;
    const body = await readJson(c.req.raw, { mostBytes: MAX_DOCUMENT_BYTES });
    return body instanceof Problem ? body : document(await writeCatalog(caller, body.value, query));
  }),
);
catalogRoutes.get(
  "/v1/audit",
  handler(CHANGING, ["cursor"], async (caller, _, __, { cursor }) =>
    jsonAnswer(await readAudit(caller, cursor)),
  ),
);

/** A document is what it says, so that it can be kept and written back; its version is the entity tag alone. */
function document(read: Awaited<ReturnType<typeof readCatalog>>): Response | Problem {
  if (read instanceof Problem) return read;
  const response = jsonAnswer(read.value);
  response.headers.set("etag", `"${read.version}"`);
  return response;
}

/* What the headers and the query of a call on the catalog say. */

/** The conditions of a write, and where a list goes on. */
interface Query extends Conditions {
  readonly cursor?: string | undefined;
}

/**
 * What a call says beside its body.
 *
 * @param fields the fields that its query may have
 */
function queryOf(c: Ctx, fields: readonly ("dryRun" | "cursor")[]): Query | Problem {
  const query = queryInput(c, []);
  if (query instanceof Problem) return query;
  const strays = Object.fromEntries(
    Object.entries(query).filter(([field]) => !fields.some((each) => each === field)),
  );
  const stray = strayProblem(strays, fields);
  if (stray !== undefined) return stray;
  const { dryRun, cursor } = query;
  if (dryRun !== undefined && dryRun !== "true" && dryRun !== "false")
    return notAllowed([
      { path: ["dryRun"], detail: violation(["dryRun"], dryRun, "true, false or left out") },
    ]);
  const conditions = conditionsIn(c.req.raw.headers);
  if (conditions instanceof Problem) return conditions;
  return {
    ...conditions,
    ...(dryRun === "true" && { isDryRun: true }),
    ...(typeof cursor === "string" && { cursor }),
  };
}

/** What If-Match and If-None-Match say. */
function conditionsIn(headers: Headers): Conditions | Problem {
  const [match, noneMatch] = [headers.get("if-match"), headers.get("if-none-match")];
  if (noneMatch !== null && noneMatch.trim() !== "*")
    return new Problem(
      PROBLEMS.malformed,
      `If-None-Match is ${JSON.stringify(noneMatch)}: must be *, or left out`,
    );
  const only = noneMatch === null ? {} : { ifNoneMatch: true as const };
  if (match === null) return only;
  const tags = match.split(",").map((tag) => /^(?:"(?<tag>[^"]*)"|(?<any>\*))$/.exec(tag.trim())?.groups);
  if (tags.some((tag) => tag === undefined))
    return new Problem(
      PROBLEMS.malformed,
      `If-Match is ${JSON.stringify(match)}: must be entity tags, as "3", or *`,
    );
  return { ...only, ifMatch: tags.map((tag) => tag?.["tag"] ?? "*") };
}
