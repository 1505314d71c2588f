/** The policies of a wrangler.toml, for a limiter in memory. */
import { parse } from "smol-toml";
import { describe, oneOfNames, requireText, violation } from "../core/violations.ts";

type Table = Readonly<Record<string, unknown>>;

/**
 * The policies in the text of a wrangler.toml, for the option `policies` of `memoryLimiter`.
 *
 * @param text what the file contains: this reads no files, so it runs in workers too
 * @param environment the environment of wrangler, whose variables replace those at the top
 * @throws TypeError if the text is no TOML, or has no such environment or no `[vars.POLICIES]`
 */
export function tomlPolicies(text: string, environment?: string): Readonly<Record<string, object>> {
  requireText("text", text, "the text of a wrangler.toml");
  const top = parsed(text);
  const named = tableIn(top, "env");
  if (environment !== undefined && !Object.hasOwn(named, environment))
    throw new TypeError(violation(["environment"], environment, environmentIn(named, environment)));
  const { vars } = environment === undefined ? top : tableIn(named, environment);
  const { POLICIES: policies } = tableIn({ vars }, "vars");
  if (typeof policies !== "object" || policies === null)
    throw new TypeError(
      `POLICIES is ${policies === undefined ? "missing" : describe(policies)}: must be tables [vars.POLICIES.<name>]`,
    );
  return policies as Readonly<Record<string, object>>;
}

function environmentIn(named: Table, given: unknown): string {
  const names = Object.keys(named);
  return names.length === 0 ? "left out, as the file has no environments" : oneOfNames(given, names);
}

function parsed(text: string): Table {
  try {
    return parse(text);
  } catch (error) {
    throw new TypeError(`the text is no TOML: ${(error as Error).message}`, { cause: error });
  }
}

function tableIn(table: Table, name: string): Table {
  const found = table[name];
  return typeof found === "object" && found !== null ? (found as Table) : {};
}
