import type { AnyAlgorithm } from "../algorithms/algorithm.ts";
import { closed } from "../algorithms/closed.ts";
import type { ConfigProblem, Fields } from "../algorithms/fields.ts";
import type { Rule } from "./policy.ts";

/** An algorithm with its configuration, made of parsed fields. A limit of 0 closes it. */
export function configuredBy(algorithm: AnyAlgorithm, fields: Fields): Configured {
  return fields["limit"] === 0 ? closedBy(algorithm, fields) : openedBy(algorithm, fields);
}

type Configured = Pick<Rule, "algorithm" | "config"> | ConfigProblem;

function openedBy(algorithm: AnyAlgorithm, fields: Fields): Configured {
  const config = algorithm.configure(fields);
  return "problem" in config ? config : { algorithm, config };
}

/** The rule of a limit of 0. Its other fields are checked as if the limit were 1. */
function closedBy(algorithm: AnyAlgorithm, fields: Fields): Configured {
  const stray = ["burst", "initial"].find((field) => fields[field] !== undefined);
  if (stray !== undefined)
    return { problem: { field: stray, allowed: "left out with a limit of 0: nothing passes at all" } };
  const config = algorithm.configure({ ...fields, limit: 1 });
  if ("problem" in config) return config;
  const {
    burst: _,
    initial: __,
    ...others
  } = config as { readonly burst?: number; readonly initial?: number };
  return { algorithm: closed(algorithm), config: { ...others, limit: 0 } };
}
