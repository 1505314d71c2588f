import * as v from "valibot";
import { clip, meant, violation, type Violation } from "./violations.ts";

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

/** @param inAddress fields that stand in a call's address over HTTP, and not in its body */
export function table<Entries extends v.ObjectEntries>(entries: Entries, inAddress: readonly string[] = []) {
  const names = Object.keys(entries).filter((name) => !inAddress.includes(name));
  const fields = names.join(", ");
  return v.strictObject(entries, (issue) => {
    const field = issue.path?.at(-1)?.key;
    if (issue.expected === "never")
      return `${clip(String(field))} is not a field: there are ${fields}${meant(String(field), names)}`;
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

/** A part of JSON Schema: what a value is, as callers write it. */
export type Shape = Readonly<Record<string, unknown>>;
const shapes = new WeakMap<v.GenericSchema, Shape>();

/** The schema with its shape in the OpenAPI document, which cannot be read from its code. */
export function shaped<Schema extends v.GenericSchema>(schema: Schema, shape: Shape): Schema {
  shapes.set(schema, shape);
  return schema;
}

export function shapeOf(schema: object): Shape | undefined {
  return shapes.get(schema as v.GenericSchema);
}

/** One of these words, or a table with these fields. */
export const orTable = (
  words: readonly string[],
  properties: Readonly<Record<string, Shape>>,
  required: readonly string[] = [],
): Shape => ({
  anyOf: [
    { type: "string", enum: words },
    { type: "object", properties, required, additionalProperties: false },
  ],
});
/** One, or a list of them. */
export const oneOrMore = (shape: Shape): Shape => ({ anyOf: [shape, { type: "array", items: shape }] });

/** A schema for what `read` returns. `undefined`: the value is not allowed. */
export function readBy<Value>(
  read: (value: unknown) => Value | undefined,
  allowed: v.ErrorMessage<v.CustomIssue>,
  shape: Shape,
) {
  return v.pipe(
    shaped(
      v.custom((value) => read(value) !== undefined, allowed),
      {
        ...shape,
        ...(typeof allowed === "string" && { description: allowed }),
      },
    ),
    v.transform((value) => read(value) as Value),
  );
}

/** What is wrong with a value, or with one in its table or list. */
export class Flaw {
  readonly path: readonly string[];
  readonly value: unknown;
  readonly allowed: string;

  constructor(path: readonly string[], value: unknown, allowed: string) {
    this.path = path;
    this.value = value;
    this.allowed = allowed;
  }
}

/** The same for tables and lists: the error names the value in it that is wrong. */
export function readWith<Value>(read: (value: unknown) => Value | Flaw, shape: Shape) {
  return v.pipe(
    shaped(v.unknown(), shape),
    v.rawTransform<unknown, Value>(({ dataset, addIssue, NEVER }) => {
      const found = read(dataset.value);
      if (!(found instanceof Flaw)) return found;
      const { value, allowed: message } = found;
      const item = {
        type: "object",
        origin: "value",
        input: { ...(dataset.value as object) },
        value,
      } as const;
      const [first, ...others] = found.path.map((key) => ({ ...item, key }));
      addIssue({ message, input: value, ...(first && { path: [first, ...others] }) });
      return NEVER;
    }),
  );
}

/** The first field of a table that is none of these. */
export function strayIn(
  given: Readonly<Record<string, unknown>>,
  known: readonly string[],
): Flaw | undefined {
  const stray = Object.keys(given).find((field) => !known.includes(field));
  const allowed = `left out: there are ${known.join(" and ")}${meant(stray ?? "", known)}`;
  return stray === undefined ? undefined : new Flaw([stray], given[stray], allowed);
}

const RFC_3339 =
  /^(?<year>\d{4})-(?<month>\d\d)-(?<day>\d\d)T(?<hour>\d\d):\d\d:\d\d(?:\.\d+)?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)$/;

/**
 * Parses an instant of RFC 3339; `undefined`: invalid. `Date.parse` alone reads 30 February as 2 March, and 24:00 as
 * the next day.
 */
export function parseInstantMs(text: string): number | undefined {
  const upper = text.toUpperCase();
  const { year, month, day, hour } = RFC_3339.exec(upper)?.groups ?? {};
  const atMs = Date.parse(upper);
  // The days of a month repeat every 400 years.
  const [like, next] = [2_000 + (Number(year) % 400), Number(month)];
  const days = (Date.UTC(like, next) - Date.UTC(like, next - 1)) / 86_400_000;
  return Number(day) <= days && Number(hour) < 24 && !Number.isNaN(atMs) ? atMs : undefined;
}
