/** Before release tests: the package is built, packed and installed once. Files that run at the same time share it. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestProject } from "vitest/node";
import { buildTypes, packageEntries } from "../../scripts/package-build.ts";
import { ROOT } from "../../scripts/project.ts";

declare module "vitest" {
  interface ProvidedContext {
    /** The path of the packed package. */
    readonly tarball: string;
    /** A project that has it and nothing else. */
    readonly installed: string;
  }
}

export async function setup(project: TestProject): Promise<() => void> {
  await packageEntries();
  buildTypes();
  const folder = mkdtempSync(join(tmpdir(), "weir-pack-"));
  execFileSync("npm", ["pack", "--ignore-scripts", "--silent", "--pack-destination", folder], { cwd: ROOT });
  const [name = ""] = readdirSync(folder);
  const tarball = join(folder, name);
  // Copies beside it find the tarball by the same relative path.
  const installed = mkdtempSync(join(tmpdir(), "weir-installed-"));
  writeFileSync(join(installed, "package.json"), '{"name":"empty","private":true,"type":"module"}');
  const how = ["--offline", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"];
  execFileSync("npm", ["install", ...how, tarball], { cwd: installed });
  project.provide("tarball", tarball);
  project.provide("installed", installed);
  return () => {
    for (const made of [folder, installed]) rmSync(made, { recursive: true, force: true });
  };
}
