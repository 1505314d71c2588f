/** What all HTTP handlers share: who calls, and what the address and the body say. */
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { violation } from "../../core/validation.ts";
import { callingFrom } from "../auth/caller-region.ts";
import { authenticate, type Principal, type Scope, scopeProblem } from "../auth/tokens.ts";
import { freshen } from "../bindings/client.ts";
import { notAllowed } from "../calls/validate.ts";
import { addressOf, MAX_QUERY_FIELDS, pathInput, queryInput, strayProblem, type Ctx } from "./addresses.ts";
import { isEmpty, readJson } from "./body.ts";
import { type DenyStatus, toResponse } from "./responses.ts";

const NOT_STORED = { "cache-control": "no-store" };

/** A handler for callers with one of these scopes. */
export function authorized(
  scopes: readonly Scope[],
  handle: (c: Ctx, principal: Principal) => Response | Problem | Promise<Response | Problem>,
): (c: Ctx) => Promise<Response> {
  return async (c) => {
    const late = freshen(c.env);
    if (late !== undefined) await late;
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
    const names = addressOf(c).query.split("&", MAX_QUERY_FIELDS);
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

function statusOf(deny: unknown): DenyStatus | Problem {
  if (deny === undefined) return 200;
  if (deny === "429") return 429;
  return notAllowed([{ path: ["deny"], detail: violation(["deny"], deny, "429, or left out") }]);
}
