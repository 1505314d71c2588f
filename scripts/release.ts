/**
 * `check TAG` prints the notes of a release, or why there can be none. `date VERSION` is called by npm version: it dates
 * the changelog, and sets the template's dependency. It needs no package.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { runCommand } from "./call.ts";
import { ROOT } from "./project-folder.ts";
import { datedChangelog, notesOf, releaseProblems, templateFor } from "./release-notes.ts";

const CHANGELOG = "CHANGELOG.md";
const TEMPLATE = join("template", "package.json");
const read = (file: string) => readFileSync(join(ROOT, file), "utf8");

function check(tag: string): void {
  const changelog = read(CHANGELOG);
  const [manifest, lock, template] = [read("package.json"), read("package-lock.json"), read(TEMPLATE)];
  const problems = releaseProblems(tag, { manifest, lock, template, changelog });
  if (problems.length > 0) throw new Error(problems.join("\n"));
  console.log(notesOf(tag.slice(1), changelog));
}

function date(version: string): void {
  const day = new Date().toISOString().slice(0, "YYYY-MM-DD".length);
  const dated = datedChangelog(read(CHANGELOG), version, day);
  writeFileSync(join(ROOT, CHANGELOG), dated);
  writeFileSync(join(ROOT, TEMPLATE), templateFor(read(TEMPLATE), version));
}

await runCommand(() => {
  const [command, value = ""] = process.argv.slice(2);
  if (command === "check") check(value);
  else if (command === "date") date(value);
  else throw new Error("Usage: node scripts/release.ts check TAG | date VERSION");
});
