/**
 * Checks format, lint and types at the same time, and then runs the tests. With `--deep` each test that has a full length
 * runs at that length instead of its quick one, as in CI.
 */
import { run, runAside, testArguments } from "./project.ts";

const statics = await Promise.all([
  runAside("oxfmt", ["--check", "."]),
  runAside("oxlint", ["--type-aware", "--deny-warnings"]),
  runAside("tsc", ["--noEmit"]),
  runAside("tsc", ["--noEmit", "-p", "dashboard"]),
]);
if (process.argv.includes("--deep")) process.env["WEIR_DEEP"] = "1";
process.exitCode = statics.find((code) => code !== 0) ?? run("vitest", ["run", ...testArguments([])]);
