/** What an address says: its parts and its query, decoded strictly. */
import type { Context } from "hono";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { clip, meant } from "../../core/validation.ts";
import type { Env } from "../bindings/env.ts";
import { notAllowed } from "../calls/validate.ts";

export type Ctx = Context<{ Bindings: Env }>;

/** The most fields that a query may have. No call knows half as many. */
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
  return notAllowed(
    names.map((name) => ({
      path: [name],
      detail: `${clip(name)} is not a field of the query: ${there}${meant(name, known)}`,
    })),
  );
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
 * Path and query as they were sent, and as the router sees them. `URL` would take a `..` or a backslash in a key for a
 * way to another key, and throws when the Host header is odd.
 */
export function addressOf(c: Ctx): { path: string; query: string } {
  const [url = ""] = c.req.raw.url.split("#", 1);
  // 4 skips "://" and one character of the host.
  const path = url.slice(url.indexOf("/", url.indexOf(":") + 4));
  const mark = path.indexOf("?");
  return mark < 0 ? { path, query: "" } : { path: path.slice(0, mark), query: path.slice(mark + 1) };
}
