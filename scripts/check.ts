/** Checks format, lint and types in parallel, then runs the tests, with `--deep` at their full length. */
import { run, runAside, testArguments } from "./project.ts";

const statics = await Promise.all([
  runAside("oxfmt", ["--check", "."]),
  runAside("oxlint", ["--type-aware", "--deny-warnings"]),
  runAside("tsc", ["--noEmit"]),
  runAside("tsc", ["--noEmit", "-p", "dashboard"]),
]);
if (process.argv.includes("--deep")) process.env["WEIR_DEEP"] = "1";
process.exitCode = statics.find((code) => code !== 0) ?? run("vitest", ["run", ...testArguments([])]);
