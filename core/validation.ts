import * as v from "valibot";
import { clip, meant, violation, type Violation } from "./violations.ts";

export {
  clip,
  describe,
  didYouMean,
  meant,
  nearest,
  oneOfNames,
  pointerTo,
  violation,
  wrong,
} from "./violations.ts";
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

/** Names of fields that another schema reads, and the page that lists them. */
interface FieldsElsewhere {
  readonly names: readonly string[];
  readonly listed: string;
}

/** @param hintOf ends the error for an unknown field: by default with the most similar known one */
export function table<Entries extends v.ObjectEntries>(
  entries: Entries,
  elsewhere: FieldsElsewhere = { names: [], listed: "" },
  hintOf: (field: string, known: readonly string[]) => string = meant,
) {
  const fields = `${Object.keys(entries).join(", ")}${elsewhere.listed}`;
  const named = [...Object.keys(entries), ...elsewhere.names];
  return v.strictObject(entries, (issue) => {
    const field = issue.path?.at(-1)?.key;
    if (issue.expected === "never")
      return `${clip(String(field))} is not a field: there are ${fields}${hintOf(String(field), named)}`;
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
