/** Before release tests: the package is built and packed once, as files that run at the same time share its folder. */
import { execFileSync } from "node:child_process";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { TestProject } from "vitest/node";
import { buildTypes, packageEntries } from "../../scripts/package-build.ts";
import { ROOT } from "../../scripts/project.ts";

declare module "vitest" {
  interface ProvidedContext {
    /** The path of the packed package. */
    readonly tarball: string;
  }
}

export async function setup(project: TestProject): Promise<() => void> {
  await packageEntries();
  buildTypes();
  const folder = mkdtempSync(join(tmpdir(), "weir-pack-"));
  execFileSync("npm", ["pack", "--ignore-scripts", "--silent", "--pack-destination", folder], { cwd: ROOT });
  const [tarball = ""] = readdirSync(folder);
  project.provide("tarball", join(folder, tarball));
  return () => rmSync(folder, { recursive: true, force: true });
}
