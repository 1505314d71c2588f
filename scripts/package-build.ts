/** How the npm package is built: each entry is bundled completely, so the package has no dependencies. */
import { build, type BuildOptions } from "esbuild";
import { spawnSync } from "node:child_process";
import { chmodSync, cpSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { buildDashboard } from "./dashboard-build.ts";
import { HIDDEN } from "./hidden-files.ts";
import { ROOT } from "./project.ts";

const PACKAGE = join(ROOT, "dist", "package");
const TYPES = join(PACKAGE, "types");
const ENTRIES = join(ROOT, "package");
const WORKER = "worker.ts";

/**
 * How an entry is bundled: with names and lines as they are written, so that stacks can be read. Bundling it again drops
 * what is unused, and minifies.
 */
export const BUNDLING = {
  bundle: true,
  format: "esm",
  target: "es2022",
  platform: "neutral",
  mainFields: ["module", "main"],
  external: ["cloudflare:workers"],
} as const satisfies BuildOptions;

export const WORKER_BUNDLING = {
  ...BUNDLING,
  conditions: ["workerd", "worker", "browser"],
  external: ["cloudflare:*", "node:*"],
} as const satisfies BuildOptions;

/** The same for the command, which runs in Node with the wrangler of the calling project. */
export const COMMAND_BUNDLING = {
  ...BUNDLING,
  platform: "node",
  splitting: true,
  external: ["wrangler"],
  banner: { js: "#!/usr/bin/env node" },
} as const satisfies BuildOptions;

/** Bundles each entry and the command, and copies the template that the command writes. */
export async function packageEntries(): Promise<void> {
  rmSync(PACKAGE, { recursive: true, force: true });
  await buildDashboard();
  const entryPoints = readdirSync(ENTRIES)
    .filter((name) => name !== WORKER)
    .map((name) => join(ENTRIES, name));
  const output = { outdir: PACKAGE, logLevel: "warning" } as const;
  await build({ ...BUNDLING, ...output, entryPoints });
  await build({ ...WORKER_BUNDLING, ...output, entryPoints: [join(ENTRIES, WORKER)] });
  const bin = join(PACKAGE, "bin");
  await build({
    ...COMMAND_BUNDLING,
    ...output,
    outdir: bin,
    entryPoints: [join(ROOT, "scripts", "weir.ts")],
  });
  chmodSync(join(bin, "weir.js"), 0o755);
  const template = join(PACKAGE, "template");
  cpSync(join(ROOT, "template"), template, { recursive: true });
  for (const name of HIDDEN) renameSync(join(template, name), join(template, name.slice(1)));
}

/** Writes the declarations of the entries. @throws Error with the compiler's output */
export function buildTypes(): void {
  const config = join(PACKAGE, "tsconfig.json");
  const compilerOptions = {
    noEmit: false,
    declaration: true,
    emitDeclarationOnly: true,
    outDir: TYPES,
    rootDir: ROOT,
    types: ["@cloudflare/workers-types", "node"],
  };
  const include = [join(ROOT, "package")];
  writeFileSync(config, JSON.stringify({ extends: join(ROOT, "tsconfig.json"), compilerOptions, include }));
  const built = spawnSync(join(ROOT, "node_modules", ".bin", "tsc"), ["-p", config], {
    cwd: ROOT,
    encoding: "utf8",
  });
  rmSync(config);
  if (built.status !== 0) throw new Error(`the types were not built:\n${built.stdout}${built.stderr}`);
  // TypeScript finds declarations by a path with .js in every mode of resolution.
  for (const name of readdirSync(TYPES, { recursive: true, encoding: "utf8" })) {
    if (!name.endsWith(".d.ts")) continue;
    const file = join(TYPES, name);
    writeFileSync(file, readFileSync(file, "utf8").replaceAll(/(["'])(\.{1,2}\/[^"']+)\.ts\1/g, "$1$2.js$1"));
  }
}
