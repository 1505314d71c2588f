/** What all HTTP handlers share: who calls, and what the address and the body say. */
import type { Context } from "hono";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { clip, meant, violation } from "../../core/validation.ts";
import { callingFrom } from "../auth/caller-region.ts";
import { authenticate, scopeProblem, type Principal, type Scope } from "../auth/tokens.ts";
import type { Env } from "../bindings/env.ts";
import { notAllowed } from "../calls/validate.ts";
import { isEmpty, readJson } from "./body.ts";
import { toResponse } from "./problem-responses.ts";
import type { DenyStatus } from "./responses.ts";

export type Ctx = Context<{ Bindings: Env }>;

const NOT_STORED = { "cache-control": "no-store" };

/** A handler for callers with one of these scopes. */
export function authorized(
  scopes: readonly Scope[],
  handle: (c: Ctx, principal: Principal) => Response | Problem | Promise<Response | Problem>,
): (c: Ctx) => Promise<Response> {
  return async (c) => {
    const authentication = authenticate(c.req.raw.headers.get("authorization"), c.env.API_TOKENS);
    const principal = authentication instanceof Promise ? await authentication : authentication;
    if (principal instanceof Problem) return toResponse(principal);
    const answer = scopeProblem(principal, scopes) ?? (await handle(c, callingFrom(principal, c.req.raw)));
    return answer instanceof Problem ? toResponse(answer) : answer;
  };
}

/** The same for calls that read nothing in the query. What stands there all the same is refused, not ignored. */
export function withoutQuery(
  ...[scopes, handle]: Parameters<typeof authorized>
): (c: Ctx) => Promise<Response> {
  return authorized(scopes, (c, principal) => {
    const query = c.req.raw.url.includes("?") ? queryInput(c, []) : {};
    if (query instanceof Problem) return query;
    return strayProblem(query, []) ?? handle(c, principal);
  });
}

/** The same for calls with a JSON body, which `isOptional` lets the caller leave out. The scope is `limit`, if not said. */
export function withBody(
  handle: (c: Ctx, principal: Principal, input: unknown, deny: DenyStatus) => Promise<Response | Problem>,
  options: { readonly isOptional?: boolean; readonly scopes?: readonly Scope[] } = {},
): (c: Ctx) => Promise<Response> {
  return authorized(options.scopes ?? ["limit"], async (c, principal) => {
    const deny = denyStatus(c);
    if (deny instanceof Problem) return deny;
    const body = await readJson(c.req.raw, options);
    return body instanceof Problem ? body : handle(c, principal, body.value, deny);
  });
}

/**
 * The same, where the call may stand in the query instead, beside `deny`: then the body must be empty. It does if the
 * query has one of the fields `beginning`.
 */
export function withBodyOrQuery(
  handle: (c: Ctx, principal: Principal, input: unknown, deny: DenyStatus) => Promise<Response | Problem>,
  beginning: readonly string[],
  numbers: readonly string[],
  scopes: readonly Scope[],
): (c: Ctx) => Promise<Response> {
  const fromBody = withBody(handle, { scopes });
  const fromQuery = authorized(scopes, async (c, principal) => {
    const query = queryInput(c, numbers);
    if (query instanceof Problem) return query;
    const { deny, ...input } = query;
    const status = statusOf(deny);
    if (status instanceof Problem) return status;
    const isAlone = await isEmpty(c.req.raw);
    return isAlone ? handle(c, principal, input, status) : new Problem(PROBLEMS.malformed, BOTH);
  });
  return (c) => {
    const names = addressOf(c).query.split("&");
    const isInQuery = names.some((part) => beginning.includes(part.split("=", 1)[0] ?? ""));
    return isInQuery ? fromQuery(c) : fromBody(c);
  };
}

const BOTH = "the call stands in the query: leave the body out";

/** The fields of the body and the id of the address. The body must not have an `id`. */
export function withId(c: Ctx, input: unknown): unknown {
  const isTable = typeof input === "object" && input !== null && !Array.isArray(input);
  if (!isTable) return input;
  if ("id" in input) return notAllowed([{ path: ["id"], detail: "id stands in the address: leave it out" }]);
  return { ...input, id: c.req.param("id") };
}

/** The fields of the body, and the policy and the key of the address. The body must not have these two. */
export function withPlace(c: Ctx, input: unknown): unknown {
  const place = pathInput(c);
  const isTable = typeof input === "object" && input !== null && !Array.isArray(input);
  if (place instanceof Problem || !isTable) return place instanceof Problem ? place : input;
  const strays = Object.keys(place).filter((field) => Object.hasOwn(input, field));
  if (strays.length === 0) return { ...input, ...place };
  return notAllowed(
    strays.map((field) => ({ path: [field], detail: `${field} stands in the address: leave it out` })),
  );
}

/**
 * The fields of a query, decoded strictly: a broken escape is an error, and not another key. A field that is given twice
 * becomes a list, which no call accepts.
 *
 * @param numbers fields that become numbers if they look like one
 */
export function queryInput(c: Ctx, numbers: readonly string[]): Record<string, unknown> | Problem {
  const { query } = addressOf(c);
  try {
    // URLSearchParams takes a broken escape as it stands.
    decodeURIComponent(query);
  } catch {
    return new Problem(PROBLEMS.malformed, "the query must be percent-encoded UTF-8");
  }
  const searchParams = new URLSearchParams(query);
  const entries = [...new Set(searchParams.keys())].map((field): [string, unknown] => {
    const values = searchParams.getAll(field);
    const [value = ""] = values;
    if (values.length > 1) return [field, values];
    return [field, numbers.includes(field) && /^\d{1,15}$/.test(value) ? Number(value) : value];
  });
  return Object.fromEntries(entries);
}

/** The answer as JSON, or the problem. */
export function jsonAnswer<Answer extends object>(
  answer: Answer,
): Answer extends Problem ? Problem : Response;
export function jsonAnswer(answer: object): Response | Problem {
  return answer instanceof Problem ? answer : Response.json(answer, { headers: NOT_STORED });
}

/** 204, or the problem. */
export function noContent(c: Ctx, problem: Problem | undefined): Response | Problem {
  return problem ?? c.body(null, 204);
}

/**
 * The status of denials: 200, unless the caller is a proxy that reads only the status and asks for `?deny=429`. A query
 * that says anything else is refused: a `?dney=429` that was ignored would let everything through.
 */
export function denyStatus(c: Ctx): DenyStatus | Problem {
  // Most calls have no query. Looking for a `?` costs less than parsing an address to find none.
  if (!c.req.raw.url.includes("?")) return 200;
  const query = queryInput(c, []);
  if (query instanceof Problem) return query;
  const { deny, ...others } = query;
  return strayProblem(others, ["deny"]) ?? statusOf(deny);
}

/** The problem of a query with fields that the call does not know; `undefined`: there are none. */
function strayProblem(strays: object, known: readonly string[]): Problem | undefined {
  const names = Object.keys(strays);
  if (names.length === 0) return undefined;
  const there = known.length === 0 ? "this call has none" : `there is ${known.join(", ")}`;
  return notAllowed(
    names.map((name) => ({
      path: [name],
      detail: `${clip(name)} is not a field of the query: ${there}${meant(name, known)}`,
    })),
  );
}

function statusOf(deny: unknown): DenyStatus | Problem {
  if (deny === undefined) return 200;
  if (deny === "429") return 429;
  return notAllowed([{ path: ["deny"], detail: violation(["deny"], deny, "429, or left out") }]);
}

/** The policy and the key of an address, decoded strictly: a broken escape is an error, and not another key. */
export function pathInput(c: Ctx): { policy: string; key: string } | Problem {
  const [, , , policy = "", , key = ""] = addressOf(c).path.split("/");
  try {
    return { policy: decodeURIComponent(policy), key: decodeURIComponent(key) };
  } catch {
    return new Problem(PROBLEMS.malformed, "policy and key in the address must be percent-encoded UTF-8");
  }
}

/** The policy of an address that has no key, decoded as strictly. */
export function policyInput(c: Ctx): { policy: string } | Problem {
  const place = pathInput(c);
  return place instanceof Problem ? place : { policy: place.policy };
}

/** What the address says (`place`), and the fields of the query. */
export function withQuery(c: Ctx, place: object | Problem, numbers: readonly string[]): object | Problem {
  const query = queryInput(c, numbers);
  if (place instanceof Problem || query instanceof Problem) return place instanceof Problem ? place : query;
  return { ...query, ...place };
}

/**
 * Path and query as they were sent, and as the router sees them. `URL` would take a `..` or a backslash in a key for a
 * way to another key, and throws when the Host header is odd.
 */
function addressOf(c: Ctx): { path: string; query: string } {
  const [url = ""] = c.req.raw.url.split("#", 1);
  // 4 skips "://" and one character of the host.
  const path = url.slice(url.indexOf("/", url.indexOf(":") + 4));
  const mark = path.indexOf("?");
  return mark < 0 ? { path, query: "" } : { path: path.slice(0, mark), query: path.slice(mark + 1) };
}
