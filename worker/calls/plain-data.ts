/** Arguments over Workers RPC, or from the same process: only plain data of a bounded size is read. */
import type { Problem } from "../../core/protocol/problems.ts";
import { clip } from "../../core/violations.ts";
import { stray } from "./validate.ts";

/** The most values in one argument. Units held over HTTP reach 1,930, 100 checks 503. */
const MAX_VALUES = 2_000;
/** The longest array, the most levels, and all text in UTF-16 units, which is HTTP's bound in bytes. */
const MAX_ITEMS = 100;
const MAX_LEVELS = 7;
const MAX_TEXT = 16_384;

export function plainProblem(argument: unknown): Problem | undefined {
  return strayIn(argument, [], newBudget());
}

/**
 * The argument without `undefined` fields, which JSON does not have. Workers RPC delivers any value: a `Map`
 * would be an empty cost, a sparse array millions of items. @throws LimiterError for such values
 */
export function plain<Argument>(argument: Argument): Argument {
  const left = newBudget();
  const problem = strayIn(argument, [], left);
  if (problem !== undefined) throw problem.toError();
  return left.hasAbsent ? (withoutAbsent(argument) as Argument) : argument;
}

/** The rest of an argument's bounds, and whether one of its values is `undefined`. */
interface Budget {
  values: number;
  text: number;
  hasAbsent: boolean;
}

function newBudget(): Budget {
  return { values: MAX_VALUES, text: MAX_TEXT, hasAbsent: false };
}

/** Terminates, because plain data has no cycle. */
function withoutAbsent(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutAbsent);
  if (typeof value !== "object" || value === null) return value;
  const fields = Object.entries(value).filter(([, each]) => each !== undefined);
  return Object.fromEntries(fields.map(([name, each]) => [name, withoutAbsent(each)]));
}

function strayIn(value: unknown, path: readonly string[], left: Budget): Problem | undefined {
  left.values -= 1;
  if (typeof value === "string") left.text -= value.length;
  if (left.values < 0) return stray([], `the call has over ${MAX_VALUES} values: must be a smaller one`);
  if (left.text < 0) return stray([], `the call has over ${MAX_TEXT} characters of text: must have fewer`);
  if (value === undefined) left.hasAbsent = true;
  if (value === undefined || value === null || typeof value === "string") return undefined;
  if (typeof value === "number" || typeof value === "boolean") return undefined;
  const field = path.length === 0 ? "the argument" : clip(path.join("."));
  if (path.length >= MAX_LEVELS) return stray(path, `${field} is over ${MAX_LEVELS} levels deep`);
  if (Array.isArray(value) && value.length > MAX_ITEMS)
    return stray(path, `${field} is an array of ${value.length}: must be one of at most ${MAX_ITEMS}`);
  if (typeof value !== "object" || !(Array.isArray(value) || isPlain(value)))
    return stray(
      path,
      `${field} is ${kindOf(value)}: must be plain data (text, numbers, true or false, null, arrays and objects of these)`,
    );
  // An array has an entry for each hole too.
  for (const [name, item] of Array.isArray(value) ? value.entries() : Object.entries(value)) {
    const problem = strayIn(item, [...path, String(name)], left);
    if (problem !== undefined) return problem;
  }
  return undefined;
}

export function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

function kindOf(value: unknown): string {
  if (typeof value !== "object" || value === null) return `a ${typeof value}`;
  return `a ${value.constructor.name}`;
}
