import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { parse as parseToml } from "smol-toml";
import { describe, expect, test } from "vitest";
import { parseDeployment } from "../core/policies/parse-policies.ts";
import { depth } from "./support/depth.ts";
import { readPages, type Fence, type Page } from "./support/docs.ts";

const ROOT = join(import.meta.dirname, "..");
/** Where the examples in TypeScript are checked; git ignores it. */
const EXAMPLES = join(ROOT, "dist", "docs-examples");
const MAX_COLUMNS = 120;
const MAX_README_LINES = 170;
const LANGUAGES = ["sh", "json", "toml", "ts", "typescript", "sql", "text", "lua", "python", "capnp"];
/** Regions need a policy to be parsed with. */
const ANY_POLICIES = { any: { algorithm: "token-bucket", limit: 1, window: "1s" } };

const pages = readPages();
const byPath = new Map(pages.map((page) => [page.path, page]));
const own = pages.filter(({ path }) => path === "README.md" || path.startsWith("docs/"));

function fencesIn(...languages: string[]): { name: string; page: Page; fence: Fence }[] {
  return pages.flatMap((page) =>
    page.fences
      .filter(({ language }) => languages.includes(language))
      .map((fence) => ({ name: `${page.path}:${fence.line}`, page, fence })),
  );
}

describe.each(pages)("$path", (page) => {
  test("every link leads to a file, and every anchor to a heading", () => {
    expect(page.links.filter((address) => !leadsSomewhere(page, address))).toEqual([]);
  });

  test("every fence says its language", () => {
    const others = page.fences.filter(({ language }) => !LANGUAGES.includes(language));
    expect(others.map(({ language, line }) => ({ language, line }))).toEqual([]);
  });
});

/** Addresses on the web are left to the reader. */
function leadsSomewhere({ path }: Page, address: string): boolean {
  if (/^https?:/.test(address)) return true;
  const [file = "", anchor] = address.split("#");
  const target = file === "" ? path : relative(ROOT, join(ROOT, dirname(path), file));
  if (target.startsWith("..") || !existsSync(join(ROOT, target))) return false;
  return anchor === undefined || byPath.get(target)?.anchors.has(anchor) === true;
}

// Examples have commands and tables that are longer.
const wrapped = pages.filter(({ path }) => !path.startsWith("examples/"));
test.each(wrapped)(`$path has no line over ${MAX_COLUMNS} characters`, ({ lines }) => {
  expect(lines.filter((line) => line.length > MAX_COLUMNS)).toEqual([]);
});

test(`the README has at most ${MAX_README_LINES} lines`, () => {
  expect(byPath.get("README.md")?.lines.length).toBeLessThanOrEqual(MAX_README_LINES);
});

test("the README links to every page of docs/", () => {
  const links = byPath.get("README.md")?.links ?? [];
  const documents = own.map(({ path }) => path).filter((path) => path !== "README.md");
  expect(documents.filter((path) => !links.includes(path))).toEqual([]);
});

/** The cells of a table's rows whose line has this many. */
function rowsOf(path: string, cells: number): string[][] {
  const rows = byPath.get(path)?.lines.filter((line) => line.startsWith("| ")) ?? [];
  return rows.map((line) => line.slice(2, -2).split(" | ")).filter((row) => row.length === cells);
}

test("the months of the FAQ follow from the table of costs, and from what the plan includes", () => {
  const units = (cell = "") => (cell.startsWith("under") ? 0 : Number(cell.replaceAll(",", "")));
  const costs = new Map(
    rowsOf("docs/costs.md", 8).map((row) => [row[0]?.replaceAll(/\[|\]\(.*?\)/g, ""), row]),
  );
  const months = rowsOf("docs/faq.md", 3).filter(([, row]) => row !== "---" && costs.has(row));
  expect(months).toHaveLength(6);
  const MONTH = 50;
  for (const [, name = "", month] of months) {
    const [, written, forgotten, read, objects, seconds] = costs.get(name) ?? [];
    const calls = name.endsWith("(a pair)") ? 2 : 1;
    /** In dollars, a price for each million and millions that are included. */
    const beyond = (millions: number, price: number, included: number) =>
      Math.max(0, MONTH * millions - included) * price;
    const dollars =
      5 +
      beyond(calls, 0.3, 10) +
      beyond(units(objects) / 1e6, 0.15, 1) +
      beyond((units(written) + units(forgotten)) / 1e6, 1, 50) +
      beyond(units(read) / 1e6, 0.001, 25_000) +
      beyond(units(seconds) / 1e6, 12.5, 0.4);
    expect([name, month]).toEqual([name, `$${dollars.toFixed(2)}`]);
  }
});

const ALERTS = readFileSync(join(ROOT, "docs", "alerts.yaml"), "utf8");

test("every alert has a heading of the runbook, which names it", () => {
  const runbook = byPath.get("docs/runbook.md");
  const [, ...alerts] = ALERTS.split(/^ +- alert: /m);
  expect(alerts.length).toBeGreaterThan(0);
  for (const alert of alerts) {
    const [name = ""] = alert.split("\n");
    const anchor = /^ +runbook: docs\/runbook\.md#(.+)$/m.exec(alert)?.[1];
    expect([name, anchor !== undefined && runbook?.anchors.has(anchor)]).toEqual([name, true]);
    expect(runbook?.lines.join("\n")).toContain(`\`${name}\``);
  }
});

test.each(fencesIn("toml"))("$name is TOML, and its policies and regions are allowed", ({ fence }) => {
  const { vars } = parseToml(fence.code) as { vars?: { POLICIES?: unknown; REGIONS?: unknown } };
  if (vars === undefined) return;
  const given = vars.POLICIES ?? ANY_POLICIES;
  const { policies, isRemoved } = parseDeployment({ policies: given, regions: vars.REGIONS });
  expect([...policies.keys()]).toEqual(Object.keys(given).filter((name) => !isRemoved(name)));
});

test.each(fencesIn("toml"))(
  "$name binds classes that the worker has, and the limiter's name",
  ({ fence }) => {
    const { name } = parseToml(readFileSync(join(ROOT, "wrangler.toml"), "utf8"));
    const entry = readFileSync(join(ROOT, "package", "worker.ts"), "utf8");
    type Bound = { readonly class_name?: string; readonly script_name?: string };
    const { durable_objects: objects } = parseToml(fence.code) as { durable_objects?: { bindings: Bound[] } };
    for (const { class_name: kind = "", script_name: script = name } of objects?.bindings ?? [])
      expect([entry.includes(kind), script]).toEqual([true, name]);
  },
);

test.each(fencesIn("json"))("$name is JSON, whole", ({ fence }) => {
  expect(JSON.parse(fence.code)).toBeTypeOf("object");
});

test.each(fencesIn("sh"))("$name is read by bash", ({ fence }) => {
  const { status, stderr } = spawnSync("bash", ["-n"], { input: fence.code, encoding: "utf8" });
  expect([status, stderr]).toEqual([0, ""]);
});

/** With `DOM`, which a project has that names no `lib`, `AbortSignal` and `fetch` have other types. */
const WITH_DOM = ["ESNext", "DOM", "DOM.Iterable"];
/** As this project is compiled, and as others are: by TypeScript 5, with no more than `strict`, and for browsers too. */
const COMPILERS = ["typescript", ...depth([], ["typescript5"])].flatMap((compiler) =>
  [undefined, WITH_DOM].map((lib) => {
    const exactOptionalPropertyTypes = compiler === "typescript";
    return { compiler, exactOptionalPropertyTypes, ...(lib && { lib }) };
  }),
);

test.each(COMPILERS)(
  "every example in TypeScript has the types that it needs: $compiler, $lib",
  ({ compiler, ...options }) => {
    rmSync(EXAMPLES, { recursive: true, force: true });
    mkdirSync(EXAMPLES, { recursive: true });
    const examples = fencesIn("ts", "typescript");
    expect(examples.length).toBeGreaterThan(0);
    for (const { name, fence } of examples)
      writeFileSync(join(EXAMPLES, `${name.replaceAll(/[/:.]/g, "-")}.ts`), moduleOf(fence));
    const compilerOptions = { noUnusedLocals: false, noUnusedParameters: false, ...options };
    writeFileSync(
      join(EXAMPLES, "tsconfig.json"),
      JSON.stringify({ extends: "../../tsconfig.json", compilerOptions, include: ["."] }),
    );
    const tsc = join(ROOT, "node_modules", compiler, "bin", "tsc");
    const { stdout, stderr } = spawnSync(process.execPath, [tsc, "-p", EXAMPLES], {
      cwd: ROOT,
      encoding: "utf8",
    });
    // The worker's own code is for the worker alone.
    const problems = stdout.split("\n").filter((line) => line !== "" && !/^( |worker\/)/.test(line));
    expect([stderr, problems]).toEqual(["", []]);
  },
);

/** What is no module yet becomes the body of a function, so that it may await and return. */
function moduleOf({ code }: Fence): string {
  if (/^(import|export) /m.test(code)) return code;
  return `import { env, key } from "../../test/support/docs-prelude.ts";

export async function example(): Promise<unknown> {
${code}
return undefined;
}
`;
}
