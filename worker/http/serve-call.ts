import type { Context } from "hono";
import type { Conditions } from "../../core/catalog/calls.ts";
import { DEFAULT_BOUNDS } from "../../core/policies/policy.ts";
import { Problem, LIMITER_PROBLEMS, type Answered } from "../../core/protocol/problems.ts";
import { clip, describe, meant } from "../../core/violations.ts";
import type { Call, CallContext, CatalogCall } from "../api/call.ts";
import { type DenyStatus, responseOf } from "../api/responses.ts";
import { type Principal, scopeProblem } from "../auth/tokens.ts";
import { authenticated, callingFrom, catalogCallerOf, clientOf } from "../bindings/client.ts";
import type { Env } from "../bindings/env.ts";
import { notForAdmin } from "../calls/catalog/catalog-calls.ts";
import { notAllowed, badValue, stray } from "../calls/validate.ts";

/** The handler of a call: finds the caller, reads the input by the call's record, and writes the answer. */
export function serve(record: Call | CatalogCall): (c: Ctx) => Promise<Response> {
  const answer = record.kind === "call" ? answerCall : answerCatalogCall;
  return async (c) => {
    return responseOf(await answer(record as never, c));
  };
}

async function callerOf({ scopes = [], needed }: Call | CatalogCall, c: Ctx): Answered<Principal> {
  const principal = await authenticated(c.env, c.req.raw.headers.get("authorization"));
  if (principal instanceof Problem) return principal;
  return scopeProblem(principal, scopes, needed) ?? callingFrom(principal, c.req.raw);
}

const NOBODY: Principal = { title: "nobody", id: '"nobody"', scopes: [], bounds: DEFAULT_BOUNDS };

async function answerCall(record: Call, c: Ctx): Answered<Response> {
  const principal = record.scopes === undefined ? NOBODY : await callerOf(record, c);
  if (principal instanceof Problem) return principal;
  const read = await inputOf(record, c);
  if (read instanceof Problem) return read;
  const waitUntil = (work: Promise<unknown>) => c.executionCtx.waitUntil(work);
  return await carryOut(record, { env: c.env, principal, request: c.req.raw, waitUntil }, read);
}

/** Makes a call whose caller has one of its scopes, and whose input was read. */
export async function carryOut(
  record: Call,
  call: Pick<CallContext, "env" | "principal" | "request" | "waitUntil">,
  { input, deny }: Read,
): Answered<Response> {
  const { env, principal } = call;
  const context = {
    ...call,
    // Only calls that need a token have a client.
    get client() {
      return clientOf(env, principal);
    },
  };
  const answered = await record.handle(context, input);
  return answered instanceof Problem ? answered : record.answer.respond(answered, deny);
}

interface Read {
  readonly input: unknown;
  readonly deny: DenyStatus;
}

async function inputOf(record: Call, c: Ctx): Answered<Read> {
  const { body, orQuery, path, query, scopes } = record;
  if (orQuery !== undefined && isInQuery(c, orQuery.beginning)) return await callInQuery(c, orQuery);
  if (body !== undefined) {
    // A `?dney=429` is refused: ignored, it would admit everything.
    const beside = queryInput(c, [], ["deny"]);
    const deny = beside instanceof Problem ? beside : statusOf(beside["deny"]);
    if (deny instanceof Problem) return deny;
    const read = await readJson(c.req.raw, body);
    if (read instanceof Problem) return read;
    const place = placeIn(c, path);
    const input = place instanceof Problem ? place : withPlace(place, read.value);
    return input instanceof Problem ? input : { input, deny };
  }
  const place = placeIn(c, path);
  if (place instanceof Problem) return place;
  if (scopes === undefined) return { input: {}, deny: 200 };
  const numbers = (query ?? []).filter(({ schema }) => schema.type === "integer").map(({ name }) => name);
  // A call that reads a query checks its fields itself.
  const fields = queryInput(c, numbers, query === undefined ? [] : undefined);
  const input = fields instanceof Problem ? fields : withPlace(place, fields);
  return input instanceof Problem ? input : { input, deny: 200 };
}

function isInQuery(c: Ctx, beginning: readonly string[]): boolean {
  const names = pathAndQueryOf(c).query.split("&", MAX_QUERY_FIELDS);
  return names.some((part) => beginning.includes(part.split("=", 1)[0] ?? ""));
}

/** A call in the query, beside `deny`: then the body must be empty. */
async function callInQuery(c: Ctx, { typed, known }: NonNullable<Call["orQuery"]>): Answered<Read> {
  const query = queryInput(c, typed, known);
  if (query instanceof Problem) return query;
  const { deny, ...input } = query;
  const status = statusOf(deny);
  if (status instanceof Problem) return status;
  if (await isEmpty(c.req.raw)) return { input, deny: status };
  return malformed("the call stands in the query: leave the body out");
}

/** The fields of the body, and those of the address, which the body must not have. */
export function withPlace(place: Readonly<Record<string, string>>, input: unknown): unknown {
  if (typeof input !== "object" || input === null || Array.isArray(input)) return input;
  const strays = Object.keys(place).filter((field) => Object.hasOwn(input, field));
  if (strays.length === 0) return { ...input, ...place };
  return notAllowed(
    strays.map((field) => ({ path: [field], detail: `${field} stands in the address: leave it out` })),
  );
}

/** 200, or 429 with `?deny=429`, for proxies that read only the status. */
function statusOf(deny: unknown): DenyStatus | Problem {
  if (deny === undefined) return 200;
  if (deny === "429") return 429;
  return badValue(["deny"], deny, "429, or left out");
}

async function answerCatalogCall(record: CatalogCall, c: Ctx): Answered<Response> {
  const principal = await callerOf(record, c);
  if (principal instanceof Problem) return principal;
  const caller = catalogCallerOf(c.env, principal);
  if (caller instanceof Problem) return caller;
  const place = placeIn(c, record.path);
  if (place instanceof Problem) return place;
  const query = catalogQuery(record, c);
  if (query instanceof Problem) return query;
  const refusal = record.isOfAll === true ? notForAdmin(principal) : undefined;
  if (refusal !== undefined) return refusal;
  const body = record.body && (await readJson(c.req.raw, { ...record.body, maxBytes: record.maxBytes }));
  if (body instanceof Problem) return body;
  const answered = await record.handle(caller, { place, body: body?.value, ...query });
  return answered instanceof Problem ? answered : record.answer.respond(answered, 200);
}

function catalogQuery(
  { writes, lists }: CatalogCall,
  c: Ctx,
): { readonly conditions: Conditions; readonly cursor?: string } | Problem {
  const query = queryInput(c, [], [...(writes ? ["dryRun"] : []), ...(lists ? ["cursor"] : [])]);
  if (query instanceof Problem) return query;
  const { dryRun, cursor } = query;
  if (dryRun !== undefined && dryRun !== "true" && dryRun !== "false")
    return badValue(["dryRun"], dryRun, "true, false or left out");
  const conditions = conditionsIn(c.req.raw.headers);
  if (conditions instanceof Problem) return conditions;
  return {
    conditions: { ...conditions, ...(dryRun === "true" && { isDryRun: true }) },
    ...(typeof cursor === "string" && { cursor }),
  };
}

function conditionsIn(headers: Headers): Conditions | Problem {
  const [match, noneMatch] = [headers.get("if-match"), headers.get("if-none-match")];
  if (noneMatch !== null && noneMatch.trim() !== "*")
    return malformed(`If-None-Match is ${describe(noneMatch)}: must be *, or left out`);
  const only = noneMatch === null ? {} : { ifNoneMatch: true as const };
  if (match === null) return only;
  const tags = match.split(",").map((tag) => /^(?:"(?<tag>[^"]*)"|(?<any>\*))$/.exec(tag.trim())?.groups);
  if (tags.some((tag) => tag === undefined))
    return malformed(`If-Match is ${describe(match)}: must be entity tags, as "3", or *`);
  return { ...only, ifMatch: tags.map((tag) => tag?.["tag"] ?? "*") };
}

function malformed(detail: string): Problem {
  return new Problem(LIMITER_PROBLEMS.malformed, detail);
}

type Ctx = Context<{ Bindings: Env }>;

/** The most fields of a query, more than twice those of any call. */
const MAX_QUERY_FIELDS = 20;

/**
 * The fields of a query, decoded strictly: a broken escape is an error, and not another key. A repeated field
 * becomes a list, which no call accepts.
 * @param typed fields that become numbers, `true` or `false` if they can
 * @param known the fields that there may be. Absent: the call checks them itself
 */
function queryInput(
  c: Ctx,
  typed: readonly string[],
  known?: readonly string[],
): Record<string, unknown> | Problem {
  // Most calls have no query. Searching for a `?` costs less than parsing the address.
  if (!c.req.raw.url.includes("?")) return {};
  const { query } = pathAndQueryOf(c);
  if (query.split("&", MAX_QUERY_FIELDS + 1).length > MAX_QUERY_FIELDS)
    return stray([], `the query has more than ${MAX_QUERY_FIELDS} fields: must have fewer`);
  try {
    // URLSearchParams keeps a broken escape.
    decodeURIComponent(query);
  } catch {
    return malformed("the query must be percent-encoded UTF-8");
  }
  const values = new Map<string, unknown>();
  for (const [field, text] of new URLSearchParams(query)) {
    const earlier = values.get(field);
    const isValue = typed.includes(field) && /^(\d{1,15}|0\.\d{1,15}|true|false)$/.test(text);
    const value: unknown = isValue ? JSON.parse(text.replace(/^0+(?=\d)/, "")) : text;
    values.set(field, earlier === undefined ? value : [earlier, value].flat());
  }
  const problem = known && strayProblem(values.keys(), known);
  return problem ?? Object.fromEntries(values);
}

function strayProblem(given: Iterable<string>, known: readonly string[]): Problem | undefined {
  const strays = [...given].filter((name) => !known.includes(name));
  if (strays.length === 0) return undefined;
  const there = known.length === 0 ? "this call has none" : `there is ${known.join(", ")}`;
  const detailOf = (name: string) =>
    `${clip(name)} is not a field of the query: ${there}${meant(name, known)}`;
  return notAllowed(strays.map((name) => ({ path: [name], detail: detailOf(name) })));
}

/** The named parts of an address: `/v1/policies/api` at `/v1/policies/:policy` is `{ policy: "api" }`. */
function placeIn(c: Ctx, route: string): Readonly<Record<string, string>> | Problem {
  const parts = pathAndQueryOf(c).path.split("/");
  try {
    const named = route.split("/").flatMap((part, index): [string, string][] => {
      const given = parts[index] ?? "";
      return part.startsWith(":") ? [[part.slice(1), decodeURIComponent(given)]] : [];
    });
    return Object.fromEntries(named);
  } catch {
    return malformed("what stands in the address must be percent-encoded UTF-8");
  }
}

/**
 * Path and query as sent. `URL` would resolve a `..` or a backslash in a key to another key, and throws for
 * an odd Host header.
 */
function pathAndQueryOf(c: Ctx): { path: string; query: string } {
  const [url = ""] = c.req.raw.url.split("#", 1);
  // 4 skips "://" and one character of the host.
  const path = url.slice(url.indexOf("/", url.indexOf(":") + 4));
  const mark = path.indexOf("?");
  return mark < 0 ? { path, query: "" } : { path: path.slice(0, mark), query: path.slice(mark + 1) };
}

/** The largest body that is read, in bytes, except for a document of the catalog. */
export const MAX_BODY_BYTES = 16_384;

/** Reads a JSON body. With `isOptional` it may be empty, also without a type, and is `{}` then. */
async function readJson(
  request: Request,
  { isOptional, maxBytes = MAX_BODY_BYTES }: { isOptional?: boolean; maxBytes?: number | undefined },
): Promise<{ readonly value: unknown } | Problem> {
  const contentType = request.headers.get("content-type");
  if (contentType !== "application/json" && !isJson(contentType)) {
    // Only reading shows whether there is a body: an empty one may be announced as a stream.
    if (isOptional === true && contentType === null && (await isEmpty(request))) return NOTHING;
    const detail = `content-type is ${contentType === null ? "missing" : describe(contentType)}: must be application/json`;
    return new Problem(LIMITER_PROBLEMS.unsupportedMediaType, detail, {
      headers: { accept: "application/json" },
    });
  }
  const encoding = request.headers.get("content-encoding");
  if (encoding !== null && encoding !== "identity") {
    const detail = `content-encoding is ${describe(encoding)}: must be left out`;
    return new Problem(LIMITER_PROBLEMS.unsupportedMediaType, detail);
  }
  try {
    const bytes = await readBytes(request, maxBytes);
    if (bytes === undefined)
      return new Problem(LIMITER_PROBLEMS.tooLarge, `the body is over ${maxBytes} bytes`);
    return readBody(bytes, isOptional);
  } catch (error) {
    return malformedBody(error);
  }
}

export function readBody(bytes: ArrayBuffer, isOptional = false): { readonly value: unknown } | Problem {
  if (isOptional && bytes.byteLength === 0) return NOTHING;
  try {
    return { value: JSON.parse(utf8.decode(bytes)) as unknown };
  } catch (error) {
    return malformedBody(error);
  }
}

/** The problem of a body that is not JSON, not UTF-8, or incomplete. */
export function malformedBody(error: unknown): Problem {
  const detail = error instanceof Error ? error.message : String(error);
  return new Problem(LIMITER_PROBLEMS.malformed, "the body must be JSON", {
    errors: [{ pointer: "", detail }],
  });
}

/** Fatal, so that broken UTF-8 is an error and not another key. */
export const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function isJson(contentType: string | null): boolean {
  return contentType !== null && /^application\/json\s*(;\s*charset="?utf-8"?\s*)?$/i.test(contentType);
}

const NOTHING = { value: {} };

async function isEmpty(request: Request): Promise<boolean> {
  try {
    return (await readBytes(request, MAX_BODY_BYTES))?.byteLength === 0;
  } catch {
    return false;
  }
}

async function readBytes(request: Request, maxBytes: number): Promise<ArrayBuffer | undefined> {
  const declared = request.headers.get("content-length");
  if (declared !== null) return Number(declared) > maxBytes ? undefined : request.arrayBuffer();
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of request.body ?? []) {
    length += chunk.length;
    if (length > maxBytes) return undefined;
    chunks.push(chunk);
  }
  return await new Blob(chunks).arrayBuffer();
}
