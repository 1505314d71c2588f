/** What all HTTP handlers share: who calls, and what the address and the body say. */
import type { Context } from "hono";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { violation } from "../../core/validation.ts";
import { callingFrom } from "../auth/caller-region.ts";
import { authenticate, scopeProblem, type Principal, type Scope } from "../auth/tokens.ts";
import type { Env } from "../bindings/env.ts";
import { notAllowed } from "../calls/validate.ts";
import { readJson } from "./body.ts";
import { toResponse } from "./problem-responses.ts";
import type { DenyStatus } from "./responses.ts";

export type Ctx = Context<{ Bindings: Env }>;

export const NOT_STORED = { "cache-control": "no-store" };

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

/** The same for calls with a JSON body. With `isOptional` the body may be left out. */
export function withBody(
  handle: (c: Ctx, principal: Principal, input: unknown, deny: DenyStatus) => Promise<Response | Problem>,
  options: { readonly isOptional?: boolean } = {},
): (c: Ctx) => Promise<Response> {
  return authorized(["limit"], async (c, principal) => {
    const deny = denyStatus(c);
    if (deny instanceof Problem) return deny;
    const body = await readJson(c.req.raw, options);
    return body instanceof Problem ? body : handle(c, principal, body.value, deny);
  });
}

/** The fields of the body and the id of the address. The body must not have an `id`. */
export function withId(c: Ctx, input: unknown): unknown {
  const isTable = typeof input === "object" && input !== null && !Array.isArray(input);
  if (!isTable) return input;
  if ("id" in input) return notAllowed([{ path: ["id"], detail: "id stands in the address: leave it out" }]);
  return { ...input, id: c.req.param("id") };
}

/**
 * The fields of a query. A field that is given twice becomes a list, which no call accepts.
 *
 * @param numbers fields that become numbers if they look like one
 */
export function queryInput(c: Ctx, numbers: readonly string[]): Record<string, unknown> {
  const { searchParams } = new URL(c.req.raw.url);
  const entries = [...new Set(searchParams.keys())].map((field): [string, unknown] => {
    const values = searchParams.getAll(field);
    const [value = ""] = values;
    if (values.length > 1) return [field, values];
    return [field, numbers.includes(field) && /^\d{1,15}$/.test(value) ? Number(value) : value];
  });
  return Object.fromEntries(entries);
}

/** 204, or the problem. */
export function noContent(c: Ctx, problem: Problem | undefined): Response | Problem {
  return problem ?? c.body(null, 204);
}

/** The status of denials: 200, unless the caller is a proxy that reads only the status and asks for `?deny=429`. */
export function denyStatus(c: Ctx): DenyStatus | Problem {
  // Most calls have no query. Looking for a `?` costs less than parsing an address to find none.
  const deny = c.req.raw.url.includes("?") ? c.req.query("deny") : undefined;
  if (deny === undefined) return 200;
  if (deny === "429") return 429;
  return notAllowed([{ path: ["deny"], detail: violation(["deny"], deny, "429, or left out") }]);
}

/** The policy and the key of an address, decoded strictly: a broken escape is an error, and not another key. */
export function pathInput(c: Ctx): { policy: string; key: string } | Problem {
  const [, , , policy = "", , key = ""] = new URL(c.req.url).pathname.split("/");
  try {
    return { policy: decodeURIComponent(policy), key: decodeURIComponent(key) };
  } catch {
    return new Problem(PROBLEMS.malformed, "policy and key in the address must be percent-encoded UTF-8");
  }
}
