/** What the headers and the query of a call on the catalog say. */
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { violation } from "../../core/validation.ts";
import type { Conditions } from "../calls/catalog/asking.ts";
import { notAllowed } from "../calls/validate.ts";
import { queryInput, strayProblem, type Ctx } from "./addresses.ts";

/** The conditions of a write, and where a list goes on. */
export interface Query extends Conditions {
  readonly cursor?: string | undefined;
}

/**
 * What a call says beside its body.
 *
 * @param fields the fields that its query may have
 */
export function queryOf(c: Ctx, fields: readonly ("dryRun" | "cursor")[]): Query | Problem {
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
