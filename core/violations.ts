/** A problem of an input: its path, and a sentence with the field, the value and the allowed values. */
export interface Violation {
  readonly path: readonly string[];
  readonly detail: string;
}

/** The sentence about one field. `allowed` ends a sentence that begins with "must be". */
export function violation(path: readonly string[], value: unknown, allowed: string): string {
  const field = path.length === 0 ? "the value" : clip(path.join("."));
  if (value === undefined) return `${field} is missing: must be ${allowed}`;
  return `${field} is ${describe(value)}: must be ${allowed}`;
}

/** The problem of one field. */
export function wrong(path: readonly string[], value: unknown, allowed: string): Violation {
  return { path, detail: violation(path, value, allowed) };
}

export function pointerTo(path: readonly string[]): string {
  return path.map((field) => `/${field.replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
}

/** A value for an error: short, and without the contents of arrays and objects. */
export function describe(value: unknown): string {
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === "object" && value !== null) return value instanceof Date ? "a date" : "an object";
  if (typeof value === "function") return "a function";
  return typeof value === "string" ? clip(JSON.stringify(value)) : String(value);
}

/** The hint for an unknown word: the most similar known word; "": there is none. */
export function meant(given: string, known: Iterable<string>): string {
  return didYouMean(nearest(given, known));
}

export function didYouMean(word: string | undefined): string {
  return word === undefined ? "" : ` (did you mean ${word}?)`;
}

/** The most names in an error. The most similar one is always included. */
const MAX_LISTED = 20;

/** The allowed names. Ends a sentence that begins with "must be". */
export function oneOfNames(given: unknown, names: readonly string[]): string {
  const listed = names.slice(0, MAX_LISTED).map((each) => JSON.stringify(each));
  const others = names.length > MAX_LISTED ? ` and ${names.length - MAX_LISTED} more` : "";
  return `one of ${listed.join(", ")}${others}${typeof given === "string" ? meant(given, names) : ""}`;
}

/** The most similar known word; `undefined`: none is similar enough. */
export function nearest(given: string, known: Iterable<string>): string | undefined {
  const word = given.toLowerCase();
  // Longer words are not compared, so an input cannot make this expensive.
  if (word.length > MAX_QUOTED) return undefined;
  let found: string | undefined;
  let least = Math.max(1, Math.floor(word.length / 3)) + 1;
  for (const each of known) {
    const edits =
      Math.abs(each.length - word.length) < least ? editsBetween(word, each.toLowerCase()) : least;
    if (edits < least) [found, least] = [each, edits];
  }
  return found;
}

/** The edit distance: insertions, deletions, substitutions and swaps of neighbours. */
function editsBetween(from: string, to: string): number {
  const at = (cells: readonly number[], index: number) => cells[index] ?? Infinity;
  let before: number[] = [];
  let row = [...Array(to.length + 1).keys()];
  for (let line = 1; line <= from.length; line += 1) {
    const next = [line];
    for (let column = 1; column <= to.length; column += 1) {
      const isSame = from[line - 1] === to[column - 1];
      const isSwapped = line > 1 && from[line - 1] === to[column - 2] && from[line - 2] === to[column - 1];
      const changed = at(row, column - 1) + (isSame ? 0 : 1);
      const swapped = isSwapped ? at(before, column - 2) + 1 : Infinity;
      next.push(Math.min(at(row, column) + 1, at(next, column - 1) + 1, changed, swapped));
    }
    [before, row] = [row, next];
  }
  return at(row, to.length);
}

const MAX_QUOTED = 80;

export function clip(text: string): string {
  return text.length <= MAX_QUOTED ? text : `${text.slice(0, MAX_QUOTED).toWellFormed()}…`;
}

/* Options in code, checked when they are passed rather than at the first call. */

/** An option that is `undefined` counts as absent. @throws TypeError that names an unknown option */
export function requireKnownOptions(
  given: object,
  known: readonly string[],
  synonyms: ReadonlyMap<string, string> = new Map(),
): void {
  if (typeof given !== "object" || given === null)
    throw new TypeError(`the options are ${describe(given)}: must be an object with ${known.join(", ")}`);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || known.includes(name)) continue;
    const hint = didYouMean(synonyms.get(name) ?? nearest(name, known));
    throw new TypeError(`${clip(name)} is not an option: there are ${known.join(", ")}${hint}`);
  }
}

/** @throws TypeError that names the option, its value and the allowed ones, unless it is such an integer or absent */
export function requireInteger(
  name: string,
  value: unknown,
  min: number,
  max = Number.MAX_SAFE_INTEGER,
): void {
  const isAllowed = Number.isInteger(value) && Number(value) >= min && Number(value) <= max;
  const range = max === Number.MAX_SAFE_INTEGER ? `${min} or more` : `from ${min} to ${max}`;
  requireOption(name, value, isAllowed, `an integer, ${range}`);
}

function requireOption(name: string, value: unknown, isAllowed: boolean, allowed: string): void {
  if (value !== undefined && !isAllowed) throw new TypeError(violation([name], value, allowed));
}

export function requireGiven(name: string, value: unknown, allowed: string): void {
  if (value === undefined || value === null) throw new TypeError(violation([name], undefined, allowed));
}

/** @throws TypeError unless the option has these methods or is absent */
export function requireMethods(
  name: string,
  value: unknown,
  methods: readonly string[],
  allowed: string,
): void {
  const found = Object(value) as Readonly<Record<string, unknown>>;
  const isAllowed = methods.every((method) => typeof found[method] === "function");
  requireOption(name, value, isAllowed, allowed);
}

/** @throws TypeError unless the option is text or absent */
export function requireText(name: string, value: unknown, allowed: string): void {
  requireOption(name, value, typeof value === "string", allowed);
}

/** @throws TypeError unless the option has the clock and timers or is absent */
export function requireTime(name: string, value: unknown): void {
  requireMethods(
    name,
    value,
    ["nowMs", "after"],
    "a clock, as manualClock() of weir-limiter/testing makes one",
  );
}
