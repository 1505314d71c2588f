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
  const fields = [...Object.keys(entries), ...fieldsReadElsewhere].join(", ");
  return v.strictObject(entries, (issue) => {
    const field = issue.path?.at(-1)?.key;
    if (issue.expected === "never") return `${clip(String(field))} is not a field: there are ${fields}`;
    return typeof field === "string" && issue.input === undefined
      ? allowedIn(entries[field])
      : `an object with the fields ${fields}`;
  });
}

/** A schema for an integer from `least` to `most`, both included. */
export function integer(least: number, most: number) {
  const allowed = `an integer from ${least} to ${most}`;
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
  return typeof message === "string" ? message : "given";
}
