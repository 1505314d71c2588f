/** What callers write into an address, where a wrong value would be another key, or another address. */
import { PROBLEMS } from "../../core/protocol/problems.ts";
import { clip, meant, violation } from "../../core/words.ts";
import { refusedField } from "./plain-json.ts";

/**
 * The field as a part of an address.
 *
 * @param allowed what it must be
 * @param kind of the problem of a text that names nothing
 * @throws LimiterError that names the field, when it is no text, or none that an address can have
 */
export function partOf(
  asked: object,
  field: string,
  allowed: string,
  kind: (typeof PROBLEMS)[keyof typeof PROBLEMS] = PROBLEMS.notAllowed,
): string {
  const value = (asked as Readonly<Record<string, unknown>>)[field];
  const isText = typeof value === "string";
  if (isText && value !== "" && value.isWellFormed()) return encodeURIComponent(value);
  throw refusedField([field], violation([field], value, allowed), isText ? kind : PROBLEMS.notAllowed);
}

/** @throws LimiterError that names a field which the call does not know, and the one that was meant */
export function requireFields(asked: object, known: readonly string[]): void {
  for (const [name, value] of Object.entries(asked))
    if (value !== undefined && !known.includes(name))
      throw refusedField(
        [name],
        `${clip(name)} is not a field: there are ${known.join(", ")}${meant(name, known)}`,
      );
}
