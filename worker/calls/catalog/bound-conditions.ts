/** The conditions of a write, as a caller of the service binding gives them. */
import * as v from "valibot";
import { Problem } from "../../../core/protocol/problems.ts";
import { integer, table } from "../../../core/validation.ts";
import { plainProblem } from "../plain-data.ts";
import { parse } from "../validate.ts";
import type { Conditions } from "./asking.ts";

const BoundConditions = table({
  ifMatch: v.optional(integer(0, Number.MAX_SAFE_INTEGER)),
  dryRun: v.optional(v.boolean("true or false")),
});

/** The conditions; none: they were left out. */
export function readConditions(given: unknown = {}): Conditions | Problem {
  const read = plainProblem(given) ?? parse(BoundConditions, given);
  if (read instanceof Problem) return read;
  const { ifMatch, dryRun } = read;
  return {
    ...(ifMatch !== undefined && { ifMatch: [String(ifMatch)] }),
    ...(dryRun === true && { isDryRun: true as const }),
  };
}
