import * as v from "valibot";
import { clip, meant, violation, type Violation } from "./violations.ts";

export { clip, describe, meant, nearest, oneOfNames, pointerTo, violation } from "./violations.ts";
export type { Violation } from "./violations.ts";

/** valibot's issues as violations. Every schema's message must state what it allows. */
export function violationsOf(
  issues: readonly v.BaseIssue<unknown>[],
  below: readonly string[] = [],
): Violation[] {
  return issues.map((issue) => {
    const path = [...below, ...(issue.path ?? []).map((item) => String(item.key))];
    const isUnknown = issue.expected === "never";
    return { path, detail: isUnknown ? issue.message : violation(path, issue.input, issue.message) };
  });
}

/** @param fieldsReadElsewhere names of fields that another schema reads; errors list them too */
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

/** A schema for an integer from `min` to `max`, both included. @param whose the source of the bound */
export function integer(min: number, max: number, whose = "") {
  const allowed = `an integer from ${min} to ${max}${whose}`;
  return v.pipe(v.number(allowed), v.integer(allowed), v.minValue(min, allowed), v.maxValue(max, allowed));
}

/** A schema for a number from `min` to `max`, both included. */
export function number(min: number, max: number) {
  const allowed = `a number from ${min} to ${max}`;
  return v.pipe(v.number(allowed), v.minValue(min, allowed), v.maxValue(max, allowed));
}

/** The schema with a description in the OpenAPI document. */
export function described<Schema extends v.GenericSchema>(schema: Schema, description: string) {
  return v.pipe(schema, v.description(description));
}

export function oneOf<const Words extends readonly string[]>(words: Words) {
  return v.picklist(words, `one of ${words.map((word) => JSON.stringify(word)).join(", ")}`);
}

function allowedIn(schema: v.ObjectEntries[string] | undefined): string {
  const message: unknown = schema !== undefined && "message" in schema ? schema.message : undefined;
  if (typeof message === "function") return String(message({ input: undefined }));
  return typeof message === "string" ? message : "given";
}
