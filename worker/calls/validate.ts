/** Parses input, or refuses it and says what is allowed. */
import * as v from "valibot";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { clip, pointerTo, violation, violationsOf } from "../../core/validation.ts";

/** An answer lists at most this many errors, so that a small request never has a large answer. */
export const MAX_PROBLEMS = 20;

/** Parses a value by a schema, or says what is wrong with it. */
export function parse<Schema extends v.GenericSchema>(
  schema: Schema,
  value: unknown,
): v.InferOutput<Schema> | Problem {
  const parsed = v.safeParse(schema, value, { abortPipeEarly: true });
  return parsed.success
    ? parsed.output
    : notAllowed(violationsOf(parsed.issues.slice(0, MAX_PROBLEMS)), parsed.issues.length);
}

/**
 * The problem of values that were understood and are not allowed.
 *
 * @param count how many there are, if more than are listed
 */
export function notAllowed(
  violations: readonly { path: readonly string[]; detail: string }[],
  count = violations.length,
): Problem {
  const listed = violations.slice(0, MAX_PROBLEMS);
  const errors = listed.map(({ path, detail }) => ({ pointer: pointerTo(path), detail }));
  const rest = count > errors.length ? `: the first ${errors.length} are listed` : "";
  const detail = count === 1 ? "one value is not allowed" : `${count} values are not allowed${rest}`;
  return new Problem(PROBLEMS.notAllowed, detail, { errors });
}

/** The problem of one value. */
export function refused(path: readonly string[], value: unknown, allowed: string): Problem {
  return notAllowed([{ path, detail: violation(path, value, allowed) }]);
}

/** A field of the input before it was parsed: parsing drops names such as `__proto__`. */
export function given(input: unknown, field: string): unknown {
  return typeof input === "object" && input !== null ? (input as Record<string, unknown>)[field] : undefined;
}

/**
 * The most values in the argument of one call, those inside arrays and objects included. 16 checks of a policy, a key, a
 * region and a cost by 16 units are 337, and 100 checks of a policy, a key, a region and a cost are 503. A message that
 * holds units has 1,930 values at most in the text that HTTP allows.
 */
const MAX_VALUES = 2_000;
/** The longest array, the most levels, and all text together in UTF-16 units, which is what HTTP allows in bytes. */
const MAX_ITEMS = 100;
const MAX_LEVELS = 7;
const MAX_TEXT = 16_384;

/**
 * The problem of an argument that is not plain data, or too large; `undefined`: it is. Workers RPC delivers what callers
 * pass: a `Map` would count as an empty cost, and an array can have millions of items without being sent.
 */
export function plainProblem(argument: unknown): Problem | undefined {
  return strayIn(argument, [], whole());
}

/**
 * The same argument without the fields that are `undefined`: as JSON, which has none, so that a call says the same in
 * every way. A field that there is not would be refused else.
 *
 * @throws LimiterError when it is not plain data, or too large
 */
export function plain<Argument>(argument: Argument): Argument {
  const left = whole();
  const problem = strayIn(argument, [], left);
  if (problem !== undefined) throw problem.toError();
  return left.hasAbsent ? (withoutAbsent(argument) as Argument) : argument;
}

/** What an argument may still have, and whether one of its values is `undefined`. */
interface Left {
  values: number;
  text: number;
  hasAbsent: boolean;
}

function whole(): Left {
  return { values: MAX_VALUES, text: MAX_TEXT, hasAbsent: false };
}

/** Of plain data, so it ends. */
function withoutAbsent(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(withoutAbsent);
  if (typeof value !== "object" || value === null) return value;
  const fields = Object.entries(value).filter(([, each]) => each !== undefined);
  return Object.fromEntries(fields.map(([name, each]) => [name, withoutAbsent(each)]));
}

function strayIn(value: unknown, path: readonly string[], left: Left): Problem | undefined {
  left.values -= 1;
  if (typeof value === "string") left.text -= value.length;
  if (left.values < 0) return stray([], `the call has over ${MAX_VALUES} values: must be a smaller one`);
  if (left.text < 0) return stray([], `the call has over ${MAX_TEXT} characters of text: must have fewer`);
  if (value === undefined) left.hasAbsent = true;
  if (value === undefined || value === null) return undefined;
  if (["string", "number", "boolean"].includes(typeof value)) return undefined;
  const field = path.length === 0 ? "the argument" : clip(path.join("."));
  if (path.length >= MAX_LEVELS) return stray(path, `${field} is over ${MAX_LEVELS} levels deep`);
  if (Array.isArray(value)) {
    if (value.length > MAX_ITEMS)
      return stray(path, `${field} is an array of ${value.length}: must be one of at most ${MAX_ITEMS}`);
    return firstOf([...value.entries()], ([index, item]) => strayIn(item, [...path, String(index)], left));
  }
  if (typeof value !== "object" || !isPlain(value))
    return stray(
      path,
      `${field} is ${kindOf(value)}: must be plain data (text, numbers, true or false, null, arrays and objects of these)`,
    );
  return firstOf(Object.entries(value), ([name, item]) => strayIn(item, [...path, name], left));
}

function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

function kindOf(value: unknown): string {
  if (typeof value !== "object" || value === null) return `a ${typeof value}`;
  return `a ${value.constructor.name}`;
}

function firstOf<Item, Found>(
  items: readonly Item[],
  find: (item: Item) => Found | undefined,
): Found | undefined {
  for (const item of items) {
    const found = find(item);
    if (found !== undefined) return found;
  }
  return undefined;
}

function stray(path: readonly string[], detail: string): Problem {
  return notAllowed([{ path, detail }]);
}
