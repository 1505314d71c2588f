/** The fields that a policy gives an algorithm. */

/**
 * `units`: a positive integer; `count`: also 0. `duration`: whole milliseconds, 1 or more. `period`: a duration, or a
 * word of calendar.ts. `text`: not empty. `ratio`: a number above 0. A `?` marks an optional field. A list: one of these
 * words, or left out.
 */
export type FieldKind =
  | "units"
  | "units?"
  | "count?"
  | "duration"
  | "duration?"
  | "period"
  | "boolean?"
  | "text?"
  | "ratio?"
  | readonly string[];

/** The fields of a rule, parsed: units and durations (in milliseconds) are numbers. */
export type Fields = Readonly<Record<string, number | boolean | string | undefined>>;

/** A field whose value is not allowed, and what is allowed there. */
export interface ConfigProblem {
  readonly problem: { readonly field: string; readonly allowed: string };
}
