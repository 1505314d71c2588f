/** Applications compile as they are written, with this project's compiler and with TypeScript 5. */
import { spawnSync } from "node:child_process";
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { expect, test } from "vitest";
import { depth } from "../support/depth.ts";

const ROOT = join(import.meta.dirname, "../..");
/** Where they are compiled; git ignores it. */
const FOLDER = join(ROOT, "dist", "as-written");

const COMPILERS: [compiler: string, isExact: boolean][] = [
  ["typescript", true],
  ["typescript5", false],
];

test.each(depth(COMPILERS.slice(0, 1), COMPILERS))(
  "%s: Express and Hono applications need no types of their own",
  (compiler, exactOptionalPropertyTypes) => {
    const folder = join(FOLDER, compiler);
    rmSync(folder, { recursive: true, force: true });
    mkdirSync(folder, { recursive: true });
    const file = join(folder, "tsconfig.json");
    const config = {
      extends: join(ROOT, "tsconfig.json"),
      compilerOptions: { exactOptionalPropertyTypes },
      include: [join(ROOT, "test/support/as-written.ts")],
    };
    writeFileSync(file, JSON.stringify(config));
    const tsc = join(ROOT, "node_modules", compiler, "bin", "tsc");
    const { status, stdout } = spawnSync(process.execPath, [tsc, "-p", file], {
      cwd: ROOT,
      encoding: "utf8",
    });
    expect([status, stdout]).toEqual([0, ""]);
  },
);
