/** The command line and environment of the scripts. Unknown flags and misspelt variables are refused. */
import { existsSync } from "node:fs";
import { resolve } from "node:path";
import { parseArgs, type ParseArgsConfig } from "node:util";
import { meant, nearest } from "../core/violations.ts";
import { ROOT } from "./project-folder.ts";

const VARIABLES = ["POLICIES", "REGIONS", "STATE_DIR", "API_TOKENS", "HOST", "PORT"];
/** Names long enough to differ from other programs' variables by more than a letter or two. */
const UNLIKE_OTHERS = ["POLICIES", "STATE_DIR"];

/** Only this command reads them: the state of the other one is wrangler's. */
export const OF_SERVE = ["STATE_DIR", "API_TOKENS"];
const SERVE = "npm run serve";

/** Refuses flags and misspelt variables. @throws Error with the correct spelling, and the command that reads it */
export function requireNoFlags(command: "npm start" | typeof SERVE): void {
  const given = [...process.argv.slice(2), ...takenByNpm(["port", "host", "ip", "state-dir", "policies"])];
  const [first] = given;
  if (first !== undefined) {
    const flag = first.split("=", 1)[0] ?? first;
    const value = first.split("=")[1] ?? given[1] ?? "VALUE";
    const name = flag.replace(/^--?/, "").replaceAll("-", "_").toUpperCase();
    const variable = name === "IP" ? "HOST" : nearest(name, VARIABLES);
    const reader = variable !== undefined && OF_SERVE.includes(variable) ? SERVE : command;
    const instead = variable === undefined ? "" : `: write ${variable}=${value} ${typed(reader)}`;
    throw new Error(`${flag} is not known: ${typed(command)} has no flags${instead}`);
  }
  requireKnownVariables();
}

/** A command with flags as its user types it: in this project, or in one that has the package. */
export function commandOf(name: string): string {
  return process.env["WEIR_PROJECT"] === undefined ? `npm run ${name} --` : `npx weir ${name}`;
}

/** Runs a command, which may return its exit code; `failed`: that of an error, which is printed without its stack. */
export async function runCommand(main: () => unknown, failed = 1): Promise<void> {
  try {
    const code = await main();
    if (typeof code === "number") process.exitCode = code;
  } catch (error) {
    console.error(error instanceof Error ? error.message : String(error));
    process.exitCode = failed;
  }
}

/** The limiter's address, the only argument, and TOKEN. @throws Error with the usage if one of them is missing or bad */
export function readLimiter([url = "", ...others]: readonly string[], usage: string) {
  const token = process.env["TOKEN"] ?? "";
  if (url === "") throw new Error(`the address is missing\n\n${usage}`);
  if (!/^https?:\/\//.test(url) || others.length > 0)
    throw new Error(`the address is ${url}: must begin with https://\n\n${usage}`);
  if (token === "") throw new Error(`TOKEN is missing in the environment\n\n${usage}`);
  return { url: url.replace(/\/+$/, ""), token };
}

/** The command as it is typed here: the package's own has another name. */
function typed(command: string): string {
  const isOfPackage = process.env["npm_lifecycle_event"] === "npx";
  return isOfPackage ? command.replace(/^npm (?:run )?/, "npx weir ") : command;
}

function requireKnownVariables(): void {
  for (const name of Object.keys(process.env)) {
    const near = VARIABLES.includes(name) ? "" : meant(name, UNLIKE_OTHERS);
    if (near !== "" && name === name.toUpperCase())
      throw new Error(`${name} is not a variable that is read${near}`);
  }
}

/** The arguments. @throws Error that names an unknown flag, the known ones, and the one that was probably meant */
export function readFlags<Config extends ParseArgsConfig>(
  config: Config,
): ReturnType<typeof parseArgs<Config>> {
  try {
    return parseArgs(config);
  } catch (error) {
    const [, given] = /^Unknown option '(-[^']*)'/.exec((error as Error).message) ?? [];
    if (given === undefined) throw error;
    const known = Object.keys(config.options ?? {}).map((name) => `--${name}`);
    throw new Error(`${given} is not a flag: there are ${known.join(", ")}${meant(given, known)}`, {
      cause: error,
    });
  }
}

/** @throws Error that says how to write a flag that npm has taken */
export function requireNotTaken(names: readonly string[], command: string): void {
  const [lost] = takenByNpm(names);
  if (lost !== undefined)
    throw new Error(`${lost} was taken by npm as its own flag: write ${command} ${lost}`);
}

/** Flags before a `--`: npm takes them for its own, and a script never sees them. */
function takenByNpm(names: readonly string[]): string[] {
  return names.flatMap((name) => {
    const value = process.env[`npm_config_${name.replaceAll("-", "_")}`];
    return value === undefined || value === "" ? [] : [`--${name}=${value}`];
  });
}

/**
 * The folder STATE_DIR, relative to the caller's; absent: `.weir` of the project. @throws Error if earlier
 * versions, which took it relative to the project, left one there: with an empty folder all would be admitted
 * again
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

/** The caller's folder: npm runs scripts in the project's. */
export function calledIn(): string {
  return process.env["WEIR_CALLED_IN"] ?? process.cwd();
}
