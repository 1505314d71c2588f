/** What a message can carry. What it cannot is bad input, and no outage. */
import { PROBLEMS, Problem, type LimiterError } from "../../core/protocol/problems.ts";
import { clip, pointerTo } from "../../core/words.ts";

/** Nothing that is sent has so many levels. What has more may be without an end. */
const MOST_LEVELS = 32;

/** A message as JSON. @throws LimiterError that names a field which JSON cannot carry, or would carry as another value */
export function jsonOf(body: object): string {
  requirePlain(body);
  return JSON.stringify(body);
}

/** @throws LimiterError that names the first field that is no plain data */
export function requirePlain(value: unknown, path: readonly string[] = []): void {
  const refuse = (found: string, allowed: string) => {
    const field = path.length === 0 ? "the argument" : clip(path.join("."));
    return refusedField(path, `${field} is ${found}: must be ${allowed}`);
  };
  if (typeof value === "number" && !Number.isFinite(value)) throw refuse(String(value), "a finite number");
  if (["bigint", "function", "symbol"].includes(typeof value))
    throw refuse(`a ${typeof value}`, "plain data, as JSON has it");
  if (typeof value !== "object" || value === null) return;
  const prototype: unknown = Object.getPrototypeOf(value);
  if (!Array.isArray(value) && prototype !== null && Object.getPrototypeOf(prototype) !== null)
    throw refuse(
      "constructor" in value ? `a ${value.constructor.name}` : "no plain object",
      "plain data, as JSON has it",
    );
  if (path.length === MOST_LEVELS) throw refusedField([], `a field is over ${MOST_LEVELS} levels deep`);
  for (const [name, item] of Object.entries(value)) requirePlain(item, [...path, name]);
}

/** The error of a call with one field that is not allowed. */
export function refusedField(
  path: readonly string[],
  detail: string,
  kind: (typeof PROBLEMS)[keyof typeof PROBLEMS] = PROBLEMS.notAllowed,
): LimiterError {
  const errors = [{ pointer: pointerTo(path), detail }];
  return new Problem(kind, "one value is not allowed", { errors }).toError();
}
