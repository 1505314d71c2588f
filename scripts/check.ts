/** Checks format, lint, types and the quick tests, in that order, and stops at the first that fails. */
import { run, testArguments } from "./project.ts";

process.exitCode =
  run("oxfmt", ["--check", "."]) ||
  run("oxlint", ["--type-aware", "--deny-warnings"]) ||
  run("tsc", ["--noEmit"]) ||
  run("tsc", ["--noEmit", "-p", "dashboard"]) ||
  run("vitest", ["run", ...testArguments([])]);
