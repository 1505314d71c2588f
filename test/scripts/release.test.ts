/** What a tag must agree with before anything is published, and what npm version writes. */
import { execFileSync } from "node:child_process";
import { copyFileSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { expect, test } from "vitest";
import {
  datedChangelog,
  notesOf,
  releaseProblems,
  templateFor,
  type ReleaseFiles,
} from "../../scripts/release-notes.ts";

const ROOT = join(import.meta.dirname, "../..");
const read = (file: string) => readFileSync(join(ROOT, file), "utf8");

const CHANGELOG = `# Changelog

## [Unreleased]

## [1.2.3] - 2026-12-01

### Fixed

- A mistake.

## [1.2.2] - 2026-11-30

### Added

- A mistake.
`;
const filesOf = (version: string): ReleaseFiles => ({
  manifest: JSON.stringify({ version }),
  lock: JSON.stringify({ version, packages: { "": { version } } }),
  template: JSON.stringify({ dependencies: { "weir-limiter": `^${version}` } }),
  changelog: CHANGELOG,
});

test("a release whose files agree has no problem, and its notes are its section alone", () => {
  expect(releaseProblems("v1.2.3", filesOf("1.2.3"))).toEqual([]);
  expect(notesOf("1.2.3", CHANGELOG)).toBe("### Fixed\n\n- A mistake.");
  expect(notesOf("1.2.2", CHANGELOG)).toBe("### Added\n\n- A mistake.");
  expect(notesOf("1.2", CHANGELOG)).toBe("");
});

const changelogWith = (heading: string) => CHANGELOG.replace("## [1.2.3] - 2026-12-01", heading);
test.each<[string, string, Partial<ReleaseFiles>, string]>([
  ["a tag that is no version", "1.2.3", {}, 'the tag is "1.2.3": must be v and a version'],
  ["a tag of a trial", "v1.2.3-rc.1", {}, 'the tag is "v1.2.3-rc.1": must be v and a version'],
  [
    "another package.json",
    "v1.2.3",
    { manifest: '{"version":"1.2.2"}' },
    "the version of package.json is 1.2.2: must be 1.2.3",
  ],
  [
    "a lock file from before",
    "v1.2.3",
    { lock: '{"version":"1.2.3","packages":{"":{"version":"1.2.2"}}}' },
    'the version of packages[""] of package-lock.json is 1.2.2: must be 1.2.3',
  ],
  [
    "a template from before",
    "v1.2.3",
    { template: '{"dependencies":{"weir-limiter":"^1.2.2"}}' },
    "the weir-limiter of template/package.json is 1.2.2: must be 1.2.3",
  ],
  [
    "a changelog without a version",
    "v1.2.3",
    { changelog: "## [Unreleased]\n\n- All\n" },
    "CHANGELOG.md has no section of a version",
  ],
  [
    "a changelog that ends before it",
    "v1.2.3",
    { changelog: changelogWith("## [1.2.1] - 2026-12-01") },
    'the newest section of CHANGELOG.md is "## [1.2.1] - 2026-12-01"',
  ],
  [
    "a day that is none",
    "v1.2.3",
    { changelog: changelogWith("## [1.2.3] - 2026-02-30") },
    'the date of "## [1.2.3] - 2026-02-30" is no day',
  ],
  [
    "a section without a word",
    "v1.2.3",
    { changelog: CHANGELOG.replace("### Fixed\n\n- A mistake.\n", "") },
    'the section "## [1.2.3] - 2026-12-01" of CHANGELOG.md is empty',
  ],
])("%s is refused, with what must be there", (_, tag, changed, message) => {
  expect(releaseProblems(tag, { ...filesOf("1.2.3"), ...changed })).toEqual([
    expect.stringContaining(message),
  ]);
});

test("what npm version writes agrees with its tag, and what is unreleased becomes its notes, whole", () => {
  const changelog =
    "# Changelog\n\n## [Unreleased]\n\n### Added\n\n- This.\n\n## [0.1.0] - 2026-11-30\n\n- That.\n";
  const dated = datedChangelog(changelog, "0.2.0", "2026-12-01");
  expect(notesOf("0.2.0", dated)).toBe("### Added\n\n- This.");
  const template = templateFor(read("template/package.json"), "0.2.0");
  expect(releaseProblems("v0.2.0", { ...filesOf("0.2.0"), template, changelog: dated })).toEqual([]);
  expect(() => datedChangelog(dated, "0.3.0", "2026-12-02")).toThrow('nothing under "## [Unreleased]"');
});

test("this project's own files would agree, and its changelog has the headings that tools read", () => {
  const { version } = JSON.parse(read("package.json")) as { version: string };
  const changelog = read("CHANGELOG.md");
  const dated =
    notesOf(version, changelog) === "" ? datedChangelog(changelog, version, "2026-12-01") : changelog;
  const [manifest, lock] = [read("package.json"), read("package-lock.json")];
  const template = read("template/package.json");
  expect(releaseProblems(`v${version}`, { manifest, lock, template, changelog: dated })).toEqual([]);
  const headings = changelog.split("\n").filter((line) => /^#{2,3} /.test(line));
  const kinds = /^### (Added|Changed|Deprecated|Removed|Fixed|Security)$/;
  const versions = /^## \[(Unreleased|\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}$)/;
  expect(headings.filter((line) => !kinds.test(line) && !versions.test(line))).toEqual([]);
});

test("nothing is published that was not tested, and what is published has a provenance statement", () => {
  const workflow = read(".github/workflows/release.yml");
  const job = (name: string) =>
    workflow.split(/^ {2}(?=\w+:$)/m).find((text) => text.startsWith(`${name}:`)) ?? "";
  expect(job("test")).toContain("uses: ./.github/workflows/ci.yml");
  expect(job("publish")).toMatch(/needs: test\n[\s\S]*id-token: write\n[\s\S]*npm publish .* --provenance/);
  expect(read(".github/workflows/ci.yml")).toContain("run: .ci/run");
});

test("what npm create runs is published with the package, in its version, and calls weir init", () => {
  const workflow = read(".github/workflows/release.yml");
  expect(workflow).toContain("working-directory: scripts/create");
  const set = '"version=${GITHUB_REF_NAME#v}" "dependencies.weir-limiter=^${GITHUB_REF_NAME#v}"';
  expect(workflow).toContain(`npm pkg set ${set}`);
  const { name, bin, engines } = JSON.parse(read("scripts/create/package.json")) as Record<string, unknown>;
  expect([name, engines]).toEqual(["create-weir-limiter", JSON.parse(read("package.json")).engines]);
  const folder = mkdtempSync(join(tmpdir(), "weir-create-"));
  try {
    const stub = join(folder, "node_modules", "weir-limiter");
    mkdirSync(join(stub, "bin"), { recursive: true });
    writeFileSync(join(stub, "package.json"), '{ "type": "module", "exports": "./index.js" }');
    writeFileSync(join(stub, "index.js"), "");
    writeFileSync(join(stub, "bin", "weir.js"), "console.log(JSON.stringify(process.argv.slice(2)))");
    copyFileSync(join(ROOT, "scripts/create", String(bin)), join(folder, String(bin)));
    const said = execFileSync(process.execPath, [String(bin), "--on-failure", "open"], { cwd: folder });
    expect(JSON.parse(String(said))).toEqual(["init", "--on-failure", "open"]);
  } finally {
    rmSync(folder, { recursive: true });
  }
});
