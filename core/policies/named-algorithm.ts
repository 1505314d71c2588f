/** The algorithm that a rule names. */
import type { AnyAlgorithm } from "../algorithms/algorithm.ts";
import { algorithms } from "../algorithms/registry.ts";
import { clip, meant, violation } from "../validation.ts";

/** The algorithm of a rule as its policy gives it; `undefined`: it names none that there is. */
export function algorithmOf(given: unknown): AnyAlgorithm | undefined {
  const name = algorithmNameOf(given);
  return typeof name === "string" ? algorithms.get(name) : undefined;
}

/** What is wrong with a rule that names no algorithm that there is. */
export function algorithmProblems(path: readonly string[], given: unknown): string[] {
  const misspelt = misspeltIn(path, given);
  if (misspelt.length > 0) return misspelt;
  const [name, known] = [algorithmNameOf(given), [...algorithms.keys()]];
  const near = typeof name === "string" ? meant(name, known) : "";
  const allowed = `one of ${known.map((each) => JSON.stringify(each)).join(", ")}${near}`;
  return [violation([...path, "algorithm"], name, allowed)];
}

/** Fields that are `algorithm`, or the `rules` of a policy, with a wrong letter. */
function misspeltIn(path: readonly string[], given: unknown): string[] {
  if (algorithmNameOf(given) !== undefined || typeof given !== "object" || given === null) return [];
  const words = path.length === 0 ? ["algorithm", "rules"] : ["algorithm"];
  return Object.keys(given).flatMap((field) => {
    const near = meant(field, words);
    return near === "" ? [] : `${clip([...path, field].join("."))} is not a field${near}`;
  });
}

function algorithmNameOf(given: unknown): unknown {
  return typeof given === "object" && given !== null && "algorithm" in given ? given.algorithm : undefined;
}
