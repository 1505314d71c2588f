/** The input of a request: the parts of its address and its query, decoded strictly, and its body. */
import type { Context } from "hono";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { clip, meant } from "../../core/validation.ts";
import type { Env } from "../bindings/env.ts";
import { notAllowed } from "../calls/validate.ts";

export type Ctx = Context<{ Bindings: Env }>;

/** The most fields that a query may have, more than twice those of any call. */
export const MAX_QUERY_FIELDS = 20;

/**
 * The fields of a query, decoded strictly: a broken escape is an error, and not another key. A field that is given twice
 * becomes a list, which no call accepts.
 *
 * @param numbers fields that become numbers if they look like one
 */
export function queryInput(c: Ctx, numbers: readonly string[]): Record<string, unknown> | Problem {
  const { query } = addressOf(c);
  if (query.split("&", MAX_QUERY_FIELDS + 1).length > MAX_QUERY_FIELDS)
    return notAllowed([
      { path: [], detail: `the query has more than ${MAX_QUERY_FIELDS} fields: must have fewer` },
    ]);
  try {
    // URLSearchParams takes a broken escape as it stands.
    decodeURIComponent(query);
  } catch {
    return new Problem(PROBLEMS.malformed, "the query must be percent-encoded UTF-8");
  }
  const values = new Map<string, string[]>();
  for (const [field, value] of new URLSearchParams(query)) {
    const known = values.get(field);
    if (known === undefined) values.set(field, [value]);
    else known.push(value);
  }
  const entries = [...values].map(([field, [value = "", ...others]]): [string, unknown] => {
    if (others.length > 0) return [field, [value, ...others]];
    return [field, numbers.includes(field) && /^\d{1,15}$/.test(value) ? Number(value) : value];
  });
  return Object.fromEntries(entries);
}

/** The problem of a query with fields that the call does not know; `undefined`: there are none. */
export function strayProblem(strays: object, known: readonly string[]): Problem | undefined {
  const names = Object.keys(strays);
  if (names.length === 0) return undefined;
  const there = known.length === 0 ? "this call has none" : `there is ${known.join(", ")}`;
  const detailOf = (name: string) =>
    `${clip(name)} is not a field of the query: ${there}${meant(name, known)}`;
  return notAllowed(names.map((name) => ({ path: [name], detail: detailOf(name) })));
}

/**
 * The parts of an address that have a name in its route, decoded strictly: a broken escape is an error, and not another
 * key. Of `/v1/policies/api`, at the route `/v1/policies/:policy`, it is `{ policy: "api" }`.
 */
export function placeIn(c: Ctx, route: string): Readonly<Record<string, string>> | Problem {
  const parts = addressOf(c).path.split("/");
  try {
    const named = route.split("/").flatMap((part, index): [string, string][] => {
      const given = parts[index] ?? "";
      return part.startsWith(":") ? [[part.slice(1), decodeURIComponent(given)]] : [];
    });
    return Object.fromEntries(named);
  } catch {
    return new Problem(PROBLEMS.malformed, "what stands in the address must be percent-encoded UTF-8");
  }
}

/**
 * Path and query as they were sent, and as the router sees them. `URL` would resolve a `..` or a backslash in a key to
 * another key, and throws when the Host header is odd.
 */
export function addressOf(c: Ctx): { path: string; query: string } {
  const [url = ""] = c.req.raw.url.split("#", 1);
  // 4 skips "://" and one character of the host.
  const path = url.slice(url.indexOf("/", url.indexOf(":") + 4));
  const mark = path.indexOf("?");
  return mark < 0 ? { path, query: "" } : { path: path.slice(0, mark), query: path.slice(mark + 1) };
}

/** The largest body that is read, in bytes, but for a document of the catalog. */
export const MAX_BODY_BYTES = 16_384;

/** Reads a JSON body. One that `isOptional` may be empty, also without a type, and is `{}` then. */
export async function readJson(
  request: Request,
  { isOptional, mostBytes = MAX_BODY_BYTES }: { isOptional?: boolean; mostBytes?: number | undefined },
): Promise<{ readonly value: unknown } | Problem> {
  const contentType = request.headers.get("content-type");
  if (contentType !== "application/json" && !isJson(contentType)) {
    // Only reading shows whether there is a body: an empty one may be announced as a stream.
    if (isOptional === true && contentType === null && (await isEmpty(request))) return NOTHING;
    const detail = `content-type is ${contentType === null ? "missing" : JSON.stringify(contentType)}: must be application/json`;
    return new Problem(PROBLEMS.unsupportedMediaType, detail, { headers: { accept: "application/json" } });
  }
  const encoding = request.headers.get("content-encoding");
  if (encoding !== null && encoding !== "identity") {
    const detail = `content-encoding is ${JSON.stringify(encoding)}: must be left out`;
    return new Problem(PROBLEMS.unsupportedMediaType, detail);
  }
  try {
    const bytes = await readBytes(request, mostBytes);
    if (bytes === undefined) return new Problem(PROBLEMS.tooLarge, `the body is over ${mostBytes} bytes`);
    if (isOptional === true && bytes.byteLength === 0) return NOTHING;
    return { value: JSON.parse(utf8.decode(bytes)) as unknown };
  } catch (error) {
    return malformed(error);
  }
}

/** The problem of a body that is not JSON or not UTF-8, or that broke off. */
export function malformed(error: unknown): Problem {
  const detail = error instanceof Error ? error.message : String(error);
  return new Problem(PROBLEMS.malformed, "the body must be JSON", { errors: [{ pointer: "", detail }] });
}

/** Fatal, so that broken UTF-8 is an error and not another key. */
export const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function isJson(contentType: string | null): boolean {
  return contentType !== null && /^application\/json\s*(;\s*charset="?utf-8"?\s*)?$/i.test(contentType);
}

const NOTHING = { value: {} };

/** Whether a request has no body. Only reading shows it: an empty one may be announced as a stream. */
export async function isEmpty(request: Request): Promise<boolean> {
  try {
    return (await readBytes(request, MAX_BODY_BYTES))?.byteLength === 0;
  } catch {
    return false;
  }
}

async function readBytes(request: Request, mostBytes: number): Promise<ArrayBuffer | Uint8Array | undefined> {
  const declared = request.headers.get("content-length");
  if (declared !== null) return Number(declared) > mostBytes ? undefined : request.arrayBuffer();
  const chunks: Uint8Array[] = [];
  let length = 0;
  for await (const chunk of request.body ?? []) {
    if (length + chunk.length > mostBytes) return undefined;
    chunks.push(chunk);
    length += chunk.length;
  }
  const bytes = new Uint8Array(length);
  let at = 0;
  for (const chunk of chunks) {
    bytes.set(chunk, at);
    at += chunk.length;
  }
  return bytes;
}
