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
/** What all HTTP handlers share: who calls, and what the address and the body say. */

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

/** The same for calls with a JSON body, which may be left out where nothing in it is needed. */
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

/** An address's id beside the fields of the body, which must not have another. */
export function withId(c: Ctx, input: unknown): unknown {
  const isTable = typeof input === "object" && input !== null && !Array.isArray(input);
  if (!isTable) return input;
  if ("id" in input) return notAllowed([{ path: ["id"], detail: "id stands in the address: leave it out" }]);
  return { ...input, id: c.req.param("id") };
}

/** The fields of a query; one that is given twice is a list, and those that are numbers have to look like one. */
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

export function noContent(c: Ctx, problem: Problem | undefined): Response | Problem {
  return problem ?? c.body(null, 204);
}

/** 200 for every decision, unless the caller is a proxy that only reads the status: then `?deny=429`. */
export function denyStatus(c: Ctx): DenyStatus | Problem {
  // A look at the text first: most calls have no query, and parsing one costs more than finding none.
  const deny = c.req.raw.url.includes("?") ? c.req.query("deny") : undefined;
  if (deny === undefined) return 200;
  if (deny === "429") return 429;
  return notAllowed([{ path: ["deny"], detail: violation(["deny"], deny, "429, or left out") }]);
}

/** Policy and key of an address, decoded strictly: a broken escape is an error and not another key. */
export function pathInput(c: Ctx): { policy: string; key: string } | Problem {
  const [, , , policy = "", , key = ""] = new URL(c.req.url).pathname.split("/");
  try {
    return { policy: decodeURIComponent(policy), key: decodeURIComponent(key) };
  } catch {
    return new Problem(PROBLEMS.malformed, "policy and key in the address must be percent-encoded UTF-8");
  }
}
