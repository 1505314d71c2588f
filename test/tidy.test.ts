import { readdirSync, readFileSync } from "node:fs";
import { join, relative } from "node:path";
import { describe, expect, test } from "vitest";
import { algorithms } from "../core/algorithms/registry.ts";
import { specimens } from "./support/algorithms.ts";

const ROOT = join(import.meta.dirname, "..");

/** What may stand at the top: what the layout names, and beside it only what earns its place. */
const TOP = [
  ".ci",
  ".git",
  ".gitignore",
  ".npmrc",
  ".oxfmtrc.json",
  ".oxlintrc.json",
  "CHANGELOG.md",
  "README.md",
  "bench",
  "client",
  "core",
  "docs",
  "durable-objects",
  "examples",
  "package-lock.json",
  "package.json",
  "scripts",
  "test",
  "tsconfig.json",
  "vitest.config.ts",
  "worker",
  "wrangler.toml",
];
/** What working leaves behind; git ignores it. */
const LEFTOVERS = ["node_modules", "dist", ".weir", ".wrangler", ".dev.vars"];

function filesIn(folder: string): string[] {
  return readdirSync(join(ROOT, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(ROOT, join(entry.parentPath, entry.name)));
}
const read = (file: string) => readFileSync(join(ROOT, file), "utf8");
const importsOf = (file: string) =>
  [...read(file).matchAll(/from "([^"]+)"/g)].map(([, specifier]) => String(specifier));
const sources = ["core", "client", "durable-objects", "worker"].flatMap(filesIn);
const everything = [...sources, ...["test", "scripts", "bench", "examples"].flatMap(filesIn)].filter((file) =>
  /\.(ts|mjs)$/.test(file),
);

test("nothing stands at the top but what the layout names", () => {
  const found = readdirSync(ROOT).filter((name) => !LEFTOVERS.includes(name));
  expect(found.filter((name) => !TOP.includes(name))).toEqual([]);
});

describe.each(sources)("%s", (file) => {
  const text = read(file);
  const code = text.replaceAll(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "");

  test("reads no clock and no randomness; clock.ts does", () => {
    if (file.endsWith("clock.ts")) return;
    expect(code).not.toMatch(/Date\.now|new Date\b|performance\.now|Math\.random|randomUUID|getRandomValues/);
  });

  test("imports along the arrow: worker -> durable-objects, and an algorithm only types and the log of units", () => {
    const imports = importsOf(file);
    if (file.startsWith("durable-objects/"))
      expect(imports.filter((each) => each.includes("worker/"))).toEqual([]);
    if (/\/algorithms\/(?!registry)/.test(file))
      expect(
        imports.filter(
          (each) => each !== "./algorithm.ts" && each !== "./runs.ts" && each !== "./unit-log.ts",
        ),
      ).toEqual([]);
    expect(imports.filter((each) => each.includes("test/") || each.startsWith("node:"))).toEqual([]);
  });
});

describe.each(everything)("%s", (file) => {
  const lines = read(file).split("\n");

  test("is small enough to read: 200 lines, tests 450", () => {
    // The OpenAPI document's addresses are one table, easier to read whole.
    const most = file === "worker/http/openapi-paths.ts" ? 270 : 210;
    expect(lines.length).toBeLessThanOrEqual(file.startsWith("test/") ? 450 : most);
  });

  test("has nothing left to do, and speaks of no machine", () => {
    if (file === "test/tidy.test.ts") return;
    expect(read(file)).not.toMatch(/\b(TODO|FIXME|XXX|HACK)\b|\.only\(|\/home\/|\/root\/|\/work\//);
  });
});

test("functions are under 60 lines", () => {
  const long = sources.filter((file) => {
    let start: number | undefined;
    return read(file)
      .split("\n")
      .some((line, index) => {
        if (/^( {2})?(export |override |async )*(function|[a-z#]\w*\(.*\{$)/.test(line)) start = index;
        const ends = start !== undefined && /^( {2})?\}/.test(line);
        const isLong = ends && index - (start ?? index) > 60;
        if (ends) start = undefined;
        return isLong;
      });
  });
  expect(long).toEqual([]);
});

test("every algorithm has its registry line, its specimen and its test", () => {
  const files = filesIn("core/algorithms").map((file) =>
    file.slice("core/algorithms/".length, -".ts".length),
  );
  // The interface, the registry, and the two files of the log that an algorithm may be built on.
  const others = ["algorithm", "registry", "unit-log", "runs"];
  const names = files.filter((name) => !others.includes(name)).toSorted();
  expect([...algorithms.keys()].toSorted()).toEqual(names);
  expect(Object.keys(specimens).toSorted()).toEqual(names);
  const tests = filesIn("test/core/algorithms");
  for (const name of names) expect(tests).toContain(`test/core/algorithms/${name}.test.ts`);
});

test("one version of workerd is installed", () => {
  const { packages } = JSON.parse(read("package-lock.json")) as { packages: Record<string, unknown> };
  expect(Object.keys(packages).filter((path) => path.endsWith("node_modules/workerd"))).toEqual([
    "node_modules/workerd",
  ]);
});

test("the lock file names no registry", () => {
  expect(read("package-lock.json")).not.toContain('"resolved"');
});
