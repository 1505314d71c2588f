/** Reads a wrangler.toml, or the same as JSON, without wrangler; an error names line, column and what is expected. */
import { existsSync, readFileSync } from "node:fs";
import { basename, join } from "node:path";
import { parse as parseToml, TomlError } from "smol-toml";
import type { Bound } from "./binding-props.ts";

/** The fields that Weir reads of the top, or of one of `env`. */
interface Settings {
  readonly vars?: Readonly<Record<string, unknown>>;
  readonly services?: Bound["services"];
}

export interface WranglerFile extends Settings {
  readonly name?: string;
  readonly env?: Readonly<Record<string, Settings>>;
}

const NAMES = ["wrangler.toml", "wrangler.jsonc", "wrangler.json"];

/** The configuration in a folder, of any name that wrangler reads; `wrangler.toml` where there is none. */
export function findWranglerFile(folder: string): string {
  const paths = NAMES.map((name) => join(folder, name));
  return paths.find((path) => existsSync(path)) ?? join(folder, "wrangler.toml");
}

/** What the file says, also in tables that wrangler does not read. @throws Error with file, line and column */
export function readWranglerFile(file: string): WranglerFile {
  if (!existsSync(file))
    throw new Error(`${file} is not there: name the limiter's wrangler.toml by --config`);
  const text = readFileSync(file, "utf8");
  return (file.endsWith(".toml") ? fromToml(text, file) : fromJson(text, file)) as WranglerFile;
}

/** What TOML wants where its parser stops. */
const EXPECTED: readonly (readonly [found: RegExp, expected: string])[] = [
  [/invalid value|unfinished value/, 'a text in quotes, a number, true, false, "[" or "{"'],
  [/numeric literal|invalid number/, 'a number; all else, also a duration, is in quotes: "60s"'],
  [/control characters|unfinished string/, "a closing quote in the same line"],
  [/comma or end of structure/, 'a comma, or the closing "]" or "}"'],
  [/character in key|incomplete key|empty bare key/, 'a name, and then "=" and a value, or "]" of a table'],
  [/already defined/, "each name only once"],
];

function fromToml(text: string, file: string): unknown {
  try {
    return parseToml(text);
  } catch (error) {
    if (!(error instanceof TomlError)) throw error;
    const [found = ""] = error.message.replace(/^Invalid TOML document: /, "").split("\n");
    const expected = EXPECTED.find(([pattern]) => pattern.test(found))?.[1];
    const what = expected === undefined ? found : `${found}: expected ${expected}`;
    throw syntaxError(text, file, error.line, error.column, what, error);
  }
}

/** JSON with comments and trailing commas, as wrangler reads it. Blanks in their places keep lines and columns. */
function fromJson(text: string, file: string): unknown {
  const blank = (found: string) => (found.startsWith('"') ? found : found.replaceAll(/\S/g, " "));
  const plain = text
    .replaceAll(/"(?:[^"\\\n]|\\.)*"|\/\/.*|\/\*[^]*?\*\//g, blank)
    .replaceAll(/"(?:[^"\\\n]|\\.)*"|,(?=\s*[}\]])/g, blank);
  try {
    return JSON.parse(plain);
  } catch (error) {
    const { message } = error as Error;
    const before = text.slice(0, offsetOf(plain, message)).split("\n");
    const column = (before.at(-1) ?? "").length + 1;
    const what = message.replace(/ in JSON at position.*|, (?:\.\.\.)?".*/s, "");
    throw syntaxError(text, file, before.length, column, what, error);
  }
}

/** Where the parser stopped. Of an unexpected token it does not say so: the shortest text with the token has the error. */
function offsetOf(text: string, message: string): number {
  const position = /at position (\d+)/.exec(message)?.[1];
  if (position !== undefined) return Number(position);
  if (!message.startsWith("Unexpected token")) return text.length;
  let [without, withToken] = [0, text.length];
  while (withToken - without > 1) {
    const middle = (without + withToken) >> 1;
    if (hasUnexpectedToken(text.slice(0, middle))) withToken = middle;
    else without = middle;
  }
  return without;
}

function hasUnexpectedToken(text: string): boolean {
  try {
    JSON.parse(text);
    return false;
  } catch (error) {
    return (error as Error).message.startsWith("Unexpected token");
  }
}

function syntaxError(
  text: string,
  file: string,
  line: number,
  column: number,
  what: string,
  cause: unknown,
): Error {
  const shown = `  ${text.split("\n")[line - 1] ?? ""}\n  ${" ".repeat(column - 1)}^`;
  return new Error(`${basename(file)}:${line}:${column}: ${what}\n${shown}`, { cause });
}
