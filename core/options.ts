/** Options that a program gives in code. What is wrong with them is said when they are given, and not at the first call. */
import { clip, describe, didYouMean, meant, violation } from "./words.ts";

/**
 * An option that is `undefined` was left out.
 *
 * @param synonyms what this option is called by others of its kind, and here: no letter of it need be the same
 * @throws TypeError that names an option which nobody would read, and the one that was meant
 */
export function requireKnownOptions(
  given: object,
  known: readonly string[],
  synonyms: ReadonlyMap<string, string> = new Map(),
): void {
  if (typeof given !== "object" || given === null)
    throw new TypeError(`the options are ${describe(given)}: must be an object with ${known.join(", ")}`);
  for (const [name, value] of Object.entries(given)) {
    if (value === undefined || known.includes(name)) continue;
    const here = synonyms.get(name);
    const hint = here === undefined ? meant(name, known) : didYouMean(here);
    throw new TypeError(`${clip(name)} is not an option: there are ${known.join(", ")}${hint}`);
  }
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

/** @throws TypeError that names the option, its value and what is allowed, unless it can be called so, or is absent */
export function requireMethods(
  name: string,
  value: unknown,
  methods: readonly string[],
  allowed: string,
): void {
  if (value === undefined) return;
  const mayHave = typeof value === "object" || typeof value === "function" ? value : null;
  const found = mayHave as Readonly<Record<string, unknown>> | null;
  if (found === null || methods.some((method) => typeof found[method] !== "function"))
    throw new TypeError(violation([name], value, allowed));
}

/** @throws TypeError that names the option, unless it is a text, or absent */
export function requireText(name: string, value: unknown, allowed: string): void {
  if (value !== undefined && typeof value !== "string")
    throw new TypeError(violation([name], value, allowed));
}

/** @throws TypeError that names the option, unless it has the time and timers, or is absent */
export function requireTime(name: string, value: unknown): void {
  requireMethods(name, value, ["nowMs", "after"], "a clock, as manualClock() of weir/testing makes one");
}
