/** The npm package as its users have it: packed, and installed into empty projects. */
import { spawnSync } from "node:child_process";
import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { inject } from "vitest";
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

/** An empty project with the package: a copy of the one into which `prepare-release.ts` has installed it. */
export function packedProject(): Project {
  const folder = makeFolder("weir-project-");
  cpSync(inject("installed"), folder, { recursive: true, verbatimSymlinks: true });
  const write = (file: string, text: string) => {
    const path = join(folder, file);
    mkdirSync(join(path, ".."), { recursive: true });
    writeFileSync(path, text);
    return path;
  };
  return { folder, write };
}

/** The same with packages of the registry; `undefined`: they cannot be had here. */
export function projectWith(packages: readonly string[]): Project | undefined {
  const project = packedProject();
  const args = ["install", "--no-audit", "--no-fund", "--loglevel=error", ...packages];
  const { status } = spawnSync("npm", args, { cwd: project.folder, timeout: 240_000 });
  if (status === 0) return project;
  console.warn(`${packages.join(" ")} cannot be had from npm here: it was left out`);
  return undefined;
}

/** The compiler's strict output for a project and the package's declarations. @param compiler its folder, or that in `node_modules` */
export function typesOf({ folder, write }: Project, fields: object = {}, compiler = "typescript"): string {
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
  const tsc = resolve(ROOT, "node_modules", compiler, "bin", "tsc");
  return spawnSync(process.execPath, [tsc, "-p", folder], { cwd: folder, encoding: "utf8" }).stdout;
}
