import type { Conditions } from "../../core/catalog/calls.ts";
/** Answers requests by the records of the calls: who calls, what the address and the body say, and what is answered. */
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { violation } from "../../core/validation.ts";
import type { Call, CatalogCall } from "../api/call.ts";
import { type DenyStatus, toResponse } from "../api/responses.ts";
import { authenticate, boundsOf, type Principal, scopeProblem } from "../auth/tokens.ts";
import { callingFrom, catalogCallerOf, clientOf, freshen } from "../bindings/client.ts";
import { notForAdmin } from "../calls/catalog/catalog-calls.ts";
import { notAllowed } from "../calls/validate.ts";
import {
  addressOf,
  type Ctx,
  isEmpty,
  MAX_QUERY_FIELDS,
  placeIn,
  queryInput,
  readJson,
  strayProblem,
} from "./request-input.ts";

/** The handler of a call. */
export function serve(record: Call | CatalogCall): (c: Ctx) => Promise<Response> {
  const answer = record.kind === "call" ? answerCall : answerCatalogCall;
  return async (c) => {
    const late = record.scopes === undefined ? undefined : freshen(c.env);
    if (late !== undefined) await late;
    const response = await answer(record as never, c);
    return response instanceof Problem ? toResponse(response) : response;
  };
}

/** Who calls, if the call may be made. */
async function callerOf({ scopes = [] }: Call | CatalogCall, c: Ctx): Promise<Principal | Problem> {
  const principal = await authenticate(c.req.raw.headers.get("authorization"), c.env.API_TOKENS);
  if (principal instanceof Problem) return principal;
  return scopeProblem(principal, scopes) ?? callingFrom(principal, c.req.raw);
}

/** The caller of calls that need no token. */
const NOBODY: Principal = { title: "nobody", id: '"nobody"', scopes: [], bounds: boundsOf({}) };

async function answerCall(record: Call, c: Ctx): Promise<Response | Problem> {
  const principal = record.scopes === undefined ? NOBODY : await callerOf(record, c);
  if (principal instanceof Problem) return principal;
  const read = await inputOf(record, c);
  if (read instanceof Problem) return read;
  const context = {
    env: c.env,
    // Only calls that need a token have a client.
    get client() {
      return clientOf(c.env, principal);
    },
    principal,
    request: c.req.raw,
    waitUntil: (work: Promise<unknown>) => c.executionCtx.waitUntil(work),
  };
  const answered = await record.handle(context, read.input);
  return answered instanceof Problem ? answered : record.answer.respond(answered, read.deny);
}

/** What a call says, and the status of its denials. */
interface Read {
  readonly input: unknown;
  readonly deny: DenyStatus;
}

async function inputOf(record: Call, c: Ctx): Promise<Read | Problem> {
  const { body, orQuery } = record;
  if (orQuery !== undefined && isInQuery(c, orQuery.beginning)) return await callInQuery(c, orQuery.numbers);
  if (body === undefined) return inputBesideBody(record, c);
  const deny = denyStatus(c);
  if (deny instanceof Problem) return deny;
  const read = await readJson(c.req.raw, body);
  if (read instanceof Problem) return read;
  const input = withPlace(placeIn(c, record.path), read.value);
  return input instanceof Problem ? input : { input, deny };
}

function inputBesideBody({ path, query, scopes }: Call, c: Ctx): Read | Problem {
  const place = placeIn(c, path);
  if (place instanceof Problem || scopes === undefined) return place instanceof Problem ? place : OPEN;
  const numbers = (query ?? []).filter(({ schema }) => schema.type === "integer").map(({ name }) => name);
  const fields = c.req.raw.url.includes("?") ? queryInput(c, numbers) : {};
  if (fields instanceof Problem) return fields;
  // A call that reads a query says itself which fields it does not know.
  const stray = query === undefined ? strayProblem(fields, []) : undefined;
  return stray ?? { input: { ...fields, ...place }, deny: 200 };
}

/** The input of calls that need no token and read nothing. */
const OPEN: Read = { input: {}, deny: 200 };

/** Whether the call stands in the query. */
function isInQuery(c: Ctx, beginning: readonly string[]): boolean {
  const names = addressOf(c).query.split("&", MAX_QUERY_FIELDS);
  return names.some((part) => beginning.includes(part.split("=", 1)[0] ?? ""));
}

/** A call that stands in the query, beside `deny`: then the body must be empty. */
async function callInQuery(c: Ctx, numbers: readonly string[]): Promise<Read | Problem> {
  const query = queryInput(c, numbers);
  if (query instanceof Problem) return query;
  const { deny: asked, ...input } = query;
  const deny = statusOf(asked);
  if (deny instanceof Problem) return deny;
  return (await isEmpty(c.req.raw)) ? { input, deny } : new Problem(PROBLEMS.malformed, BOTH);
}

const BOTH = "the call stands in the query: leave the body out";

/** The fields of the body, and those of the address, which the body must not have. */
function withPlace(place: Readonly<Record<string, string>> | Problem, input: unknown): unknown {
  const isTable = typeof input === "object" && input !== null && !Array.isArray(input);
  if (place instanceof Problem || !isTable) return place instanceof Problem ? place : input;
  const strays = Object.keys(place).filter((field) => Object.hasOwn(input, field));
  if (strays.length === 0) return { ...input, ...place };
  return notAllowed(
    strays.map((field) => ({ path: [field], detail: `${field} stands in the address: leave it out` })),
  );
}

/**
 * The status of denials: 200, unless the caller is a proxy that reads only the status and asks for `?deny=429`. A query
 * that says anything else is refused: a `?dney=429` that was ignored would let everything through.
 */
function denyStatus(c: Ctx): DenyStatus | Problem {
  // Most calls have no query. Looking for a `?` costs less than parsing an address to find none.
  if (!c.req.raw.url.includes("?")) return 200;
  const query = queryInput(c, []);
  if (query instanceof Problem) return query;
  const { deny, ...others } = query;
  return strayProblem(others, ["deny"]) ?? statusOf(deny);
}

function statusOf(deny: unknown): DenyStatus | Problem {
  if (deny === undefined) return 200;
  if (deny === "429") return 429;
  return notAllowed([{ path: ["deny"], detail: violation(["deny"], deny, "429, or left out") }]);
}

/* Calls on the catalog. */

async function answerCatalogCall(record: CatalogCall, c: Ctx): Promise<Response | Problem> {
  const principal = await callerOf(record, c);
  if (principal instanceof Problem) return principal;
  const caller = catalogCallerOf(c.env, principal);
  if (caller instanceof Problem) return caller;
  const place = placeIn(c, record.path);
  if (place instanceof Problem) return place;
  const said = catalogQuery(record, c);
  if (said instanceof Problem) return said;
  const refusal = record.isOfAll === true ? notForAdmin(principal) : undefined;
  if (refusal !== undefined) return refusal;
  const body = record.body && (await readJson(c.req.raw, { ...record.body, mostBytes: record.mostBytes }));
  if (body instanceof Problem) return body;
  const answered = await record.handle(caller, { place, body: body?.value, ...said });
  return answered instanceof Problem ? answered : record.answer.respond(answered, 200);
}

/** What the query and the headers of a call on the catalog say. */
function catalogQuery(
  { writes, lists }: CatalogCall,
  c: Ctx,
): { readonly conditions: Conditions; readonly cursor?: string } | Problem {
  const query = queryInput(c, []);
  if (query instanceof Problem) return query;
  const { dryRun, cursor, ...others } = query;
  const fields = [...(writes ? ["dryRun"] : []), ...(lists ? ["cursor"] : [])];
  const strays = {
    ...others,
    ...(dryRun !== undefined && !writes && { dryRun }),
    ...(cursor !== undefined && !lists && { cursor }),
  };
  const stray = strayProblem(strays, fields);
  if (stray !== undefined) return stray;
  if (dryRun !== undefined && dryRun !== "true" && dryRun !== "false")
    return notAllowed([
      { path: ["dryRun"], detail: violation(["dryRun"], dryRun, "true, false or left out") },
    ]);
  const conditions = conditionsIn(c.req.raw.headers);
  if (conditions instanceof Problem) return conditions;
  return {
    conditions: { ...conditions, ...(dryRun === "true" && { isDryRun: true }) },
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
