import { execFile } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterEach, beforeEach, expect, test } from "vitest";
import { readWranglerToml } from "../../scripts/project.ts";
import { readPages, type Fence, type Page } from "../support/docs.ts";
import { TOKENS } from "../support/fixtures.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

/** Where the documentation has the limiter; `npm start` prints the same address. */
const LOCAL = "http://127.0.0.1:8787";
/** Stands between the outputs of two examples. */
const MARK = "---- the next example ----";
/** Longer than any stall of a busy machine. */
const PATIENT = { deadlineMs: 20_000 };
/** Other at each run, or at each instant: only their types are compared. */
const CHANGING = new Set([
  "id",
  "fencingToken",
  "resetAfterMs",
  "retryAfterMs",
  "waitedMs",
  "expiresAfterMs",
  "longestWaitMs",
]);

let folder: string;
let state: string;
beforeEach(() => {
  // A reader stands in the project's folder, where `npm start` has left a token.
  folder = mkdtempSync(join(tmpdir(), "weir-docs-"));
  writeFileSync(join(folder, ".dev.vars"), `LOCAL_TOKEN=${TOKENS.full}\n`);
  state = makeState();
});
afterEach(() => {
  rmSync(folder, { recursive: true, force: true });
  removeState(state);
});

const pages = readPages().filter(
  ({ path, fences }) => !path.startsWith("examples/") && fences.some(isRunnable),
);

test("the README and the calls have examples that are run", () => {
  const paths = pages.map(({ path }) => path);
  expect(paths).toEqual(expect.arrayContaining(["README.md", "docs/api.md"]));
});

test.each(pages)("$path: every call is answered as the page says", async (page) => {
  const { policies } = readWranglerToml();
  const patient = Object.entries(policies as Record<string, object>).map(([name, policy]) => [
    name,
    { ...policy, ...PATIENT },
  ]);
  const weir = await serveBundle(state, Object.fromEntries(patient) as object);
  try {
    const examples = examplesOf(page);
    const outputs = await runInOneShell(examples, weir.url);
    expect(outputs).toHaveLength(examples.length);
    for (const [index, { answer, beginning, line }] of examples.entries()) {
      if (beginning !== undefined) {
        expect(outputs[index]?.startsWith(beginning), `${page.path}:${line}`).toBe(true);
        continue;
      }
      const said: unknown = outputs[index] === "" ? undefined : JSON.parse(outputs[index] ?? "");
      const promised: unknown = answer === undefined ? undefined : JSON.parse(answer);
      expect(comparable(said), `${page.path}:${line}`).toEqual(comparable(promised));
    }
  } finally {
    await weir.stop();
  }
});

function isRunnable({ language, code }: Fence): boolean {
  return language === "sh" && code.includes("curl") && code.includes(LOCAL);
}

interface Example extends Fence {
  /** The JSON that follows; absent: the page shows no answer, and there must be none. */
  readonly answer: string | undefined;
  /** The first character of the text that follows: what is shown as text is another at each run. */
  readonly beginning: string | undefined;
}

function examplesOf({ fences }: Page): Example[] {
  return fences.flatMap((fence, index) => {
    if (!isRunnable(fence)) return [];
    const next = fences[index + 1];
    const beginning = next?.language === "text" ? next.code.slice(0, 1) : undefined;
    return { ...fence, answer: next?.language === "json" ? next.code : undefined, beginning };
  });
}

/** As a reader would: one terminal, one example after another, so that each knows the variables of those before. */
async function runInOneShell(examples: readonly Example[], url: string): Promise<string[]> {
  const script = examples
    .map(({ code }) => `${code.replaceAll(LOCAL, url)}\necho\necho '${MARK}'\n`)
    .join("");
  const { stdout } = await promisify(execFile)("bash", ["-euo", "pipefail", "-c", script], { cwd: folder });
  return stdout
    .split(MARK)
    .map((text) => text.trim())
    .slice(0, -1);
}

/** The same value, with the types of what changes in the place of the values. */
function comparable(value: unknown, field = ""): unknown {
  if (Array.isArray(value)) return value.map((each) => comparable(each));
  if (typeof value === "object" && value !== null)
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, comparable(inner, name)]));
  return CHANGING.has(field) && value !== null ? typeof value : value;
}
