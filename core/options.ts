/** Options that a program gives in code. What is wrong with them is said when they are given, and not at the first call. */
import { clip, meant, violation } from "./words.ts";

/** @throws TypeError that names an option which nobody would read, and the one that was meant */
export function requireKnownOptions(given: object, known: readonly string[]): void {
  if (typeof given !== "object" || given === null)
    throw new TypeError(`the options are ${String(given)}: must be an object with ${known.join(", ")}`);
  for (const name of Object.keys(given))
    if (!known.includes(name))
      throw new TypeError(
        `${clip(name)} is not an option: there are ${known.join(", ")}${meant(name, known)}`,
      );
}

/** @throws TypeError that names the option, its value and what is allowed, unless it is such an integer, or absent */
export function requireInteger(
  name: string,
  value: unknown,
  least: number,
  most = Number.MAX_SAFE_INTEGER,
): void {
  if (value === undefined || (Number.isInteger(value) && Number(value) >= least && Number(value) <= most))
    return;
  const range = most === Number.MAX_SAFE_INTEGER ? `${least} or more` : `from ${least} to ${most}`;
  throw new TypeError(violation([name], value, `an integer, ${range}`));
}

/** @throws TypeError that says that the option is missing, unless it is there */
export function requireGiven(name: string, value: unknown, allowed: string): void {
  if (value === undefined || value === null) throw new TypeError(violation([name], undefined, allowed));
}
