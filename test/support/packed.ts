/** The npm package as its users have it: packed, and installed into empty projects. */
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ROOT } from "../../scripts/project.ts";

const made: string[] = [];

export function removePacked(): void {
  for (const folder of made) rmSync(folder, { recursive: true, force: true });
}

function makeFolder(name: string): string {
  const folder = mkdtempSync(join(tmpdir(), name));
  made.push(folder);
  return folder;
}

export interface Project {
  readonly folder: string;
  readonly write: (file: string, text: string) => string;
}

/** An empty project with the package and packages of the registry; `undefined`: they are not available. */
export function projectWith(tarball: string, packages: readonly string[] = []): Project | undefined {
  const folder = makeFolder("weir-project-");
  const write = (file: string, text: string) => {
    const path = join(folder, file);
    mkdirSync(join(path, ".."), { recursive: true });
    writeFileSync(path, text);
    return path;
  };
  write("package.json", JSON.stringify({ name: "empty", private: true, type: "module" }));
  const how = packages.length === 0 ? ["--offline", "--ignore-scripts"] : [];
  const args = ["install", "--no-audit", "--no-fund", "--loglevel=error", ...how, tarball, ...packages];
  const { status, stderr } = spawnSync("npm", args, { cwd: folder, encoding: "utf8", timeout: 240_000 });
  if (status === 0) return { folder, write };
  if (packages.length === 0) throw new Error(stderr);
  return undefined;
}

/** The compiler's strict output for a project and the package's declarations. @param compiler its folder */
export function typesOf(
  { folder, write }: Project,
  fields: object = {},
  compiler: "typescript" | "typescript5" = "typescript",
): string {
  const compilerOptions = {
    strict: true,
    exactOptionalPropertyTypes: true,
    target: "ES2022",
    lib: ["ES2022"],
    module: "NodeNext",
    skipLibCheck: false,
    noEmit: true,
    types: [],
    ...fields,
  };
  write("tsconfig.json", JSON.stringify({ compilerOptions, include: ["**/*.ts"] }));
  const tsc = join(ROOT, "node_modules", compiler, "bin", "tsc");
  return spawnSync(process.execPath, [tsc, "-p", folder], { cwd: folder, encoding: "utf8" }).stdout;
}
