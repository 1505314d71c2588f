/** The project's paths, its configuration, and how its tools are run. */
import { execFile, spawnSync } from "node:child_process";
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { parseEnv } from "node:util";
import type { Bound } from "./binding-props.ts";
import { ROOT } from "./project-folder.ts";

export { ROOT };
export const BUNDLE = join(ROOT, "dist", "index.js");
export const WRANGLER_TOML = join(ROOT, "wrangler.toml");
export const DEV_VARS = join(ROOT, ".dev.vars");

/** Loads wrangler only where a configuration is read, as that takes more than a second. */
const wrangler = (): typeof import("wrangler") =>
  createRequire(import.meta.url)("wrangler") as typeof import("wrangler");

export function readWranglerToml(
  environment?: string,
  file = WRANGLER_TOML,
): {
  compatibilityDate: string;
  compatibilityFlags: readonly string[];
  policies: unknown;
  regions: unknown;
  log: unknown;
  home: unknown;
  notices: unknown;
  /** Whether a Queue is bound as NOTICES. */
  hasNoticeQueue: boolean;
  vars: object;
  bound: Bound;
} {
  const config = wrangler().unstable_readConfig({
    config: file,
    ...(environment !== undefined && { env: environment }),
  });
  const { compatibility_date: compatibilityDate, compatibility_flags: compatibilityFlags, vars } = config;
  if (compatibilityDate === undefined) throw new Error("wrangler.toml has no compatibility_date");
  return {
    compatibilityDate,
    compatibilityFlags,
    policies: vars["POLICIES"],
    regions: vars["REGIONS"],
    log: vars["LOG"],
    home: vars["HOME"],
    notices: vars["NOTICES"],
    hasNoticeQueue: hasNoticeQueue(config.queues),
    vars,
    bound: { name: config.name, services: config.services },
  };
}

export function hasNoticeQueue({
  producers = [],
}: {
  readonly producers?: readonly { readonly binding: string }[];
}) {
  return producers.some(({ binding }) => binding === "NOTICES");
}

export function readDevVars(): NodeJS.Dict<string> {
  return existsSync(DEV_VARS) ? parseEnv(readFileSync(DEV_VARS, "utf8")) : {};
}

/** Bundles the worker into dist/ with wrangler, as a deployment does. @throws Error with wrangler's output */
export function build(): void {
  // An empty name is the environment at the top of wrangler.toml.
  const built = runWrangler(["deploy", "--dry-run", "--outdir", "dist", "-c", WRANGLER_TOML, "--env", ""]);
  if (built.status === 0) return;
  throw new Error(`the build failed:\n${built.stdout}${built.stderr}`);
}

/** Runs wrangler apart from this terminal. @param maxMs absent: for as long as it takes */
export function runWrangler(args: readonly string[], maxMs?: number) {
  return spawnSync(join(ROOT, "node_modules", ".bin", "wrangler"), args, {
    cwd: ROOT,
    encoding: "utf8",
    timeout: maxMs,
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, WRANGLER_SEND_METRICS: "false", NO_COLOR: "1" },
  });
}

/** Runs one of the project's tools on this terminal, and returns its exit code. */
export function run(tool: string, args: readonly string[]): number {
  // Node keeps what it has compiled: each process that loads wrangler starts half a second earlier.
  const env = { NODE_COMPILE_CACHE: join(ROOT, "node_modules", ".cache", "compiled"), ...process.env };
  const { status } = spawnSync(join(ROOT, "node_modules", ".bin", tool), args, {
    cwd: ROOT,
    stdio: "inherit",
    env,
  });
  return status ?? 1;
}

/** Runs a tool in parallel: prints its output at the end, and resolves with its exit code. */
export function runAside(tool: string, args: readonly string[]): Promise<number> {
  return new Promise((done) => {
    execFile(join(ROOT, "node_modules", ".bin", tool), args, { cwd: ROOT }, (error, stdout, stderr) => {
      process.stdout.write(stdout);
      process.stderr.write(stderr);
      done(error === null ? 0 : Number(error.code ?? 1));
    });
  });
}

const TEST_PROJECTS = ["core", "simulation", "workerd", "workerd-storage", "system", "storms", "saturation"];

/** The arguments for vitest, with all projects of `npm test` when none is named. */
export function testArguments(given: readonly string[]): readonly string[] {
  const isNamed = given.some((each) => each.startsWith("--project"));
  return isNamed ? given : [...TEST_PROJECTS.flatMap((name) => ["--project", name]), ...given];
}

export function installedVersion(name: string): string {
  const text = readFileSync(join(ROOT, "node_modules", name, "package.json"), "utf8");
  return (JSON.parse(text) as { version: string }).version;
}
