/** A wrangler file that cannot be read: the error has its place, and what is expected there. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { unstable_readConfig as readConfig } from "wrangler";
import { readConfiguration } from "../../scripts/configuration.ts";
import { WRANGLER_TOML } from "../../scripts/project.ts";
import { findWranglerFile, readWranglerFile } from "../../scripts/wrangler-file.ts";

let folder = "";
beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), "weir-file-"));
});
afterAll(() => rmSync(folder, { recursive: true, force: true }));

function written(name: string, text: string): string {
  const file = join(folder, name);
  writeFileSync(file, text);
  return file;
}

const TABLE = "[vars.POLICIES.api]\n";

test.each([
  ["algorithm = token-bucket", 13, "invalid value: expected a text in quotes, a number,"],
  [
    "window = 60s",
    12,
    "illegal character in numeric literal: expected a number; all else, also a duration, is in",
  ],
  ['window = "60s', 14, "control characters are not allowed in strings: expected a closing quote"],
  ["limit 5", 7, 'illegal character in key: expected a name, and then "="'],
  [
    "cost = { a = 1 b = 2 }",
    16,
    'expected comma or end of structure: expected a comma, or the closing "]" or "}"',
  ],
  ["a = 1\na = 2", 1, "trying to redefine an already defined table or value: expected each name only once"],
])("TOML: %s", (line, column, said) => {
  const file = written("wrangler.toml", `${TABLE}${line}\n`);
  const at = line.includes("\n") ? 3 : 2;
  const shown = `\n  ${line.split("\n").at(-1)}\n  ${" ".repeat(column - 1)}^`;
  expect(() => readWranglerFile(file)).toThrow(`wrangler.toml:${at}:${column}: ${said}`);
  expect(() => readWranglerFile(file)).toThrow(shown);
});

test.each([
  ['"a": }', 6, "Unexpected token '}'"],
  ['"a" 5', 5, "Expected ':' after property name"],
  ["a: 5", 1, "Expected double-quoted property name"],
  ['"a": 5, "b": treu }', 16, "Unexpected token 'e'"],
  ['"a": 5 "b": 6', 8, "Expected ',' or '}' after property value"],
])("JSON with comments: %s", (line, column, said) => {
  const file = written("wrangler.jsonc", `{ // "one": /* two\n/* , } */ "n": "//",\n${line}`);
  expect(() => readWranglerFile(file)).toThrow(`wrangler.jsonc:3:${column}: ${said}\n`);
});

test("JSON that ends too early: the place is its end", () => {
  const file = written("wrangler.json", '{ "a": 5,\n "b": [1');
  expect(() => readWranglerFile(file)).toThrow("wrangler.json:2:9: Expected ',' or ']' after array element");
});

test("comments, trailing commas and texts that look like them are read as wrangler reads them", () => {
  const text = `{ // the worker
    "name": "weir", /* and
    its "vars", } */
    "vars": { "a": ["// no comment", "/* none */", ",]", "\\", }",], "POLICIES": {}, }, }`;
  const file = written("wrangler.jsonc", text);
  expect(readWranglerFile(file).vars).toEqual(readConfig({ config: file }).vars);
});

test("the policies are those that wrangler reads, of each environment", () => {
  for (const environment of [undefined, "staging"]) {
    const how = [{}, environment, WRANGLER_TOML] as const;
    expect(readConfiguration(...how, { runsOn: "nowhere" })).toEqual(readConfiguration(...how));
  }
});

test("an environment or a file that is not there is named, with what there is", () => {
  const nowhere = { runsOn: "nowhere" } as const;
  expect(() => readConfiguration({}, "stagin", WRANGLER_TOML, nowhere)).toThrow("(did you mean staging?)");
  const absent = join(folder, "none", "wrangler.toml");
  expect(() => readWranglerFile(absent)).toThrow(`${absent} is not there`);
  expect(findWranglerFile(join(folder, "none"))).toBe(absent);
  rmSync(join(folder, "wrangler.toml"), { force: true });
  written("wrangler.jsonc", "{}");
  expect(findWranglerFile(folder)).toBe(join(folder, "wrangler.jsonc"));
});
