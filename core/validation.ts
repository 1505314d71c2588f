import * as v from "valibot";

/** One thing that is wrong with an input: its path, and a sentence with the field, the value and what is allowed. */
export interface Violation {
  readonly path: readonly string[];
  readonly detail: string;
}

/**
 * Turns the issues that valibot found into violations. Every schema's message must say what that schema allows.
 *
 * @param below the path of the value that was validated, if it is a part of the input
 */
export function violationsOf(
  issues: readonly v.BaseIssue<unknown>[],
  below: readonly string[] = [],
): Violation[] {
  return issues.map((issue) => {
    const path = [...below, ...(issue.path ?? []).map((item) => String(item.key))];
    return {
      path,
      detail: issue.expected === "never" ? issue.message : violation(path, issue.input, issue.message),
    };
  });
}

/** A JSON pointer (RFC 6901) to a field. */
export function pointerTo(path: readonly string[]): string {
  return path.map((field) => `/${field.replaceAll("~", "~0").replaceAll("/", "~1")}`).join("");
}

/** The sentence for one field. `allowed` ends a sentence that begins with "must be". */
export function violation(path: readonly string[], value: unknown, allowed: string): string {
  const field = path.length === 0 ? "the value" : clip(path.join("."));
  if (value === undefined) return `${field} is missing: must be ${allowed}`;
  return `${field} is ${describe(value)}: must be ${allowed}`;
}

/** A value as an error shows it: short, and without what an array or an object contains. */
export function describe(value: unknown): string {
  if (Array.isArray(value)) return `an array of ${value.length}`;
  if (typeof value === "object" && value !== null) return "an object";
  if (typeof value === "string") return clip(JSON.stringify(value));
  return String(value);
}

/** What an error adds about a word that is not known: the word that was most likely meant; "": none is near. */
export function meant(given: string, known: Iterable<string>): string {
  const near = nearest(given, known);
  return near === undefined ? "" : ` (did you mean ${near}?)`;
}

/** The known word that is nearest to a word that is not known; `undefined`: none is so near that it may be meant. */
export function nearest(given: string, known: Iterable<string>): string | undefined {
  const word = given.toLowerCase();
  // Longer words are not measured, so an input cannot make this dear.
  if (word.length > MOST_QUOTED) return undefined;
  let [found, least] = [undefined as string | undefined, Math.max(1, Math.floor(word.length / 3)) + 1];
  for (const each of known) {
    const edits =
      Math.abs(each.length - word.length) < least ? editsBetween(word, each.toLowerCase()) : least;
    if (edits < least) [found, least] = [each, edits];
  }
  return found;
}

/** So many letters are to be added, left out, changed or swapped with the next one to make one word of the other. */
function editsBetween(from: string, to: string): number {
  let before: number[] = [];
  let row = Array.from({ length: to.length + 1 }, (_, column) => column);
  for (let line = 1; line <= from.length; line += 1) {
    const next = [line];
    for (let column = 1; column <= to.length; column += 1) {
      const isSame = from[line - 1] === to[column - 1];
      const isSwapped = line > 1 && from[line - 1] === to[column - 2] && from[line - 2] === to[column - 1];
      const at = (cells: readonly number[], index: number) => cells[index] ?? Infinity;
      next.push(
        Math.min(
          at(row, column) + 1,
          at(next, column - 1) + 1,
          at(row, column - 1) + (isSame ? 0 : 1),
          isSwapped ? at(before, column - 2) + 1 : Infinity,
        ),
      );
    }
    [before, row] = [row, next];
  }
  return row[to.length] ?? 0;
}

/** An error quotes at most this many UTF-16 units of an input. */
const MOST_QUOTED = 80;

/** Text as an error quotes it. */
export function clip(text: string): string {
  return text.length <= MOST_QUOTED ? text : `${text.slice(0, MOST_QUOTED).toWellFormed()}…`;
}

/**
 * A schema for an object with these fields and no others. Each field's schema says in its message what is allowed.
 *
 * @param fieldsReadElsewhere names of fields that another schema reads; errors list them too
 */
export function table<Entries extends v.ObjectEntries>(
  entries: Entries,
  fieldsReadElsewhere: readonly string[] = [],
) {
  const named = [...Object.keys(entries), ...fieldsReadElsewhere];
  const fields = named.join(", ");
  return v.strictObject(entries, (issue) => {
    const field = issue.path?.at(-1)?.key;
    if (issue.expected === "never")
      return `${clip(String(field))} is not a field: there are ${fields}${meant(String(field), named)}`;
    return typeof field === "string" && issue.input === undefined
      ? allowedIn(entries[field])
      : `an object with the fields ${fields}`;
  });
}

/**
 * A schema for an integer from `least` to `most`, both included.
 *
 * @param whose what an error adds to say where the bound is from
 */
export function integer(least: number, most: number, whose = "") {
  const allowed = `an integer from ${least} to ${most}${whose}`;
  return v.pipe(v.number(allowed), v.integer(allowed), v.minValue(least, allowed), v.maxValue(most, allowed));
}

/** A schema for a number from `least` to `most`, both included. It need not be an integer. */
export function number(least: number, most: number) {
  const allowed = `a number from ${least} to ${most}`;
  return v.pipe(v.number(allowed), v.minValue(least, allowed), v.maxValue(most, allowed));
}

/** A schema for one of a few words. */
export function oneOf<const Words extends readonly string[]>(words: Words) {
  return v.picklist(words, `one of ${words.map((word) => JSON.stringify(word)).join(", ")}`);
}

function allowedIn(schema: v.ObjectEntries[string] | undefined): string {
  const message: unknown = schema !== undefined && "message" in schema ? schema.message : undefined;
  if (typeof message === "function") return String(message({ input: undefined }));
  return typeof message === "string" ? message : "given";
}
