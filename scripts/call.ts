/** How the scripts were called: what else the command line and the environment say would be ignored, so it is refused. */
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { nearest } from "../core/validation.ts";
import { ROOT } from "./project-folder.ts";

/** The variables of the environment that the scripts read. */
const VARIABLES = ["POLICIES", "REGIONS", "STATE_DIR", "API_TOKENS", "HOST", "PORT"];
/** Those whose names are long enough to be told from other programs' variables by a letter or two. */
const UNLIKE_OTHERS = ["POLICIES", "STATE_DIR"];

/**
 * Refuses flags, and variables with a wrong letter.
 *
 * @param command the command, as its user types it; it has no flags
 * @throws Error that says what to write instead
 */
export function requireNoFlags(command: string): void {
  const given = [...process.argv.slice(2), ...takenByNpm(["port", "host", "ip", "state-dir", "policies"])];
  const [first] = given;
  if (first !== undefined) {
    const flag = first.split("=", 1)[0] ?? first;
    const value = first.split("=")[1] ?? given[1] ?? "VALUE";
    const name = flag.replace(/^--?/, "").replaceAll("-", "_").toUpperCase();
    const variable = name === "IP" ? "HOST" : nearest(name, VARIABLES);
    const instead = variable === undefined ? "" : `: write ${variable}=${value} ${command}`;
    throw new Error(`${flag} is not known: ${command} has no flags${instead}`);
  }
  requireKnownVariables();
}

/** Refuses variables that are one of the limiter's with a wrong letter. */
function requireKnownVariables(): void {
  for (const name of Object.keys(process.env)) {
    const meant = VARIABLES.includes(name) ? undefined : nearest(name, UNLIKE_OTHERS);
    if (meant !== undefined && name === name.toUpperCase())
      throw new Error(`${name} is not a variable that is read (did you mean ${meant}?)`);
  }
}

/** Flags that stood before a `--`: npm takes them for its own, and a script never sees them. */
export function takenByNpm(names: readonly string[]): string[] {
  return names.flatMap((name) => {
    const value = process.env[`npm_config_${name.replaceAll("-", "_")}`];
    return value === undefined || value === "" ? [] : [`--${name}=${value}`];
  });
}

/**
 * The folder that STATE_DIR says, from where its caller stands; `.weir` of the project, if it says none.
 *
 * @throws Error when it would be another folder than in versions that took it from the project, and that one is there:
 * a limiter that begins with an empty folder admits all again
 */
export function readStateDir({ STATE_DIR }: NodeJS.Dict<string> = process.env): string {
  if (STATE_DIR === undefined || STATE_DIR === "") return resolve(ROOT, ".weir");
  const [path, before] = [resolve(calledIn(), STATE_DIR), resolve(ROOT, STATE_DIR)];
  if (path !== before && !existsSync(path) && existsSync(before))
    throw new Error(
      `STATE_DIR is ${JSON.stringify(STATE_DIR)}: from here it is ${path}, which does not exist, and from the project it is ` +
        `${before}, which does: must be an absolute path`,
    );
  return path;
}

/** Where the caller stands: npm runs scripts in the project's folder. */
export function calledIn(): string {
  return process.env["WEIR_CALLED_IN"] ?? process.cwd();
}
