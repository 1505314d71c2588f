import * as v from "valibot";
import type { Policy } from "../../core/policies/policy.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { violationsOf } from "../../core/validation.ts";
import { clip, meant, pointerTo, violation } from "../../core/violations.ts";

/** The most errors in an answer, so that a small request never has a large answer. */
export const MAX_PROBLEMS = 20;

export function parse<Schema extends v.GenericSchema>(
  schema: Schema,
  value: unknown,
): v.InferOutput<Schema> | Problem {
  const parsed = v.safeParse(schema, value, { abortPipeEarly: true });
  return parsed.success
    ? parsed.output
    : notAllowed(violationsOf(parsed.issues.slice(0, MAX_PROBLEMS)), parsed.issues.length);
}

/** The problem of parsed values that are not allowed. @param count their number, if not all are listed */
export function notAllowed(
  violations: readonly { path: readonly string[]; detail: string }[],
  count = violations.length,
): Problem {
  const listed = violations.slice(0, MAX_PROBLEMS);
  const errors = listed.map(({ path, detail }) => ({ pointer: pointerTo(path), detail }));
  const more = count > 1 ? `; and ${count - 1} more` : "";
  const detail = `${listed[0]?.detail ?? "a value is not allowed"}${more}`;
  return new Problem(PROBLEMS.notAllowed, detail, { errors });
}

export function badValue(path: readonly string[], value: unknown, allowed: string): Problem {
  return stray(path, violation(path, value, allowed));
}

/** The problem of one value. */
export function stray(path: readonly string[], detail: string): Problem {
  return notAllowed([{ path, detail }]);
}

/** A field of the input before it was parsed: parsing drops names such as `__proto__`. */
export function given(input: unknown, field: string): unknown {
  return typeof input === "object" && input !== null ? (input as Record<string, unknown>)[field] : undefined;
}

/** A policy and a normalised key, with the caller's right to both. */
export interface Target {
  readonly policy: Policy;
  readonly key: string;
}

export interface TargetAnswer<Answer> {
  readonly policy: Policy;
  readonly answer: Answer;
}

type Counting = readonly { readonly unit: string }[];

export function unitsOf(rules: Counting): readonly string[] {
  return [...new Set(rules.map(({ unit }) => unit))];
}

/** The problem of units that no rule counts. */
export function unknownUnits(rules: Counting, path: readonly string[], cost: object): Problem | undefined {
  const units = unitsOf(rules);
  const unknown = Object.keys(cost).filter((unit) => !units.includes(unit));
  if (unknown.length === 0) return undefined;
  return notAllowed(unknown.map((unit) => ({ path: [...path, unit], detail: unknownUnit(unit, units) })));
}

export function unknownUnit(unit: string, units: readonly string[]): string {
  return `${clip(unit)} is not a unit of this policy: there are ${units.join(", ")}${meant(unit, units)}`;
}
