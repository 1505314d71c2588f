/** Format, lint, types, quick tests, in that order; stops at the first that fails. */
import { run } from "./project.ts";

process.exitCode =
  run("oxfmt", ["--check", "."]) ||
  run("oxlint", ["--type-aware", "--deny-warnings"]) ||
  run("tsc", ["--noEmit"]) ||
  run("vitest", ["run"]);
