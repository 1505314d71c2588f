/** Clients that two generators make of the OpenAPI document: strict types, calls of a real limiter and of a mock. */
import { build } from "esbuild";
import { execFile, execFileSync, spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test } from "vitest";
import { ROOT } from "../../scripts/project.ts";
import type { Serving } from "../../scripts/workerd.ts";
import { TOKENS } from "../support/fixtures.ts";
import { HEY_API, OPENAPI_FETCH, PRINTED } from "../support/generated-programs.ts";
import { startMock } from "../support/mock-limiter.ts";
import { makeState, removeState, serveBundle } from "../support/served.ts";

const PATIENT = { deadlineMs: 20_000 };
const policies = {
  api: { algorithm: "token-bucket", limit: 1, window: "30d", ...PATIENT },
  llm: {
    rules: {
      requests: { algorithm: "token-bucket", limit: 10, window: "30d" },
      tokens: { algorithm: "sliding-log", limit: 1_000, window: "1h", unit: "tokens" },
    },
    ...PATIENT,
  },
  export: { algorithm: "concurrency", limit: 1, ttl: "60s", ...PATIENT },
};
/** What a careful user sets. */
const STRICT = {
  target: "ES2023",
  lib: ["ES2023", "DOM", "DOM.Iterable"],
  module: "ESNext",
  moduleResolution: "Bundler",
  strict: true,
  exactOptionalPropertyTypes: false,
  noUncheckedIndexedAccess: true,
  noUnusedLocals: true,
  noEmit: true,
  types: ["node"],
};

/** The file of types that the first program imports. */
const SCHEMA = "schema";

const state = makeState();
let folder: string;
let served: Serving;
let document: Parameters<typeof startMock>[0];
beforeAll(async () => {
  served = await serveBundle(state, policies);
  document = (await (await fetch(`${served.url}/openapi.json`)).json()) as typeof document;
  mkdirSync(join(ROOT, "dist"), { recursive: true });
  // Below the project, so that the programs find the packages.
  folder = mkdtempSync(join(ROOT, "dist", "clients-"));
  writeFileSync(join(folder, "openapi.json"), JSON.stringify(document));
  for (const [name, program] of Object.entries({ fetch: OPENAPI_FETCH, hey: HEY_API }))
    writeFileSync(join(folder, `${name}.ts`), program);
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions: STRICT, include: ["."] }));
  generate("openapi-typescript", ["openapi.json", "-o", `${SCHEMA}.ts`]);
  generate("openapi-ts", ["-i", "openapi.json", "-o", "hey", "--no-log-file"]);
});
afterAll(async () => {
  await served.stop();
  removeState(state);
  rmSync(folder, { recursive: true, force: true });
});

function generate(generator: string, args: readonly string[]): void {
  const hook = join(import.meta.dirname, "..", "support", "typescript5.mjs");
  execFileSync(join(ROOT, "node_modules", ".bin", generator), args, {
    cwd: folder,
    stdio: "pipe",
    env: { ...process.env, NODE_OPTIONS: `--import ${hook}` },
  });
}

/** What a program prints when it calls the limiter at this address. */
async function printedBy(program: string, url: string): Promise<unknown> {
  const outfile = join(folder, `${program}.mjs`);
  await build({
    entryPoints: [join(folder, `${program}.ts`)],
    outfile,
    bundle: true,
    format: "esm",
    platform: "node",
    logLevel: "silent",
  });
  const { stdout } = await promisify(execFile)(process.execPath, [outfile, url, TOKENS.full]);
  return JSON.parse(stdout);
}

test("what two generators make of the document compiles under strict TypeScript, and refuses what is wrong", () => {
  const compiled = spawnSync(join(ROOT, "node_modules", ".bin", "tsc"), ["-p", folder], { encoding: "utf8" });
  expect(compiled.stdout).toBe("");
});

test.each(["fetch", "hey"])("%s: limits, holds and leases of the real limiter", async (program) => {
  expect(await printedBy(program, served.url)).toEqual(PRINTED);
});

test.each(["fetch", "hey"])("%s: a mock made of the document alone does the same", async (program) => {
  const mock = await startMock(document);
  try {
    expect(await printedBy(program, mock.url)).toEqual(PRINTED);
  } finally {
    mock.stop();
  }
});
