/** What a release needs of its files: one version everywhere, and a dated section of CHANGELOG.md. */

/** The files that name the version, as text. */
export interface ReleaseFiles {
  readonly manifest: string;
  readonly lock: string;
  /** package.json of template/, which depends on this version. */
  readonly template: string;
  readonly changelog: string;
}

const UNRELEASED = "## [Unreleased]";
const SECTION = /^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d{2}-\d{2})$/;

/** What keeps a tag from being released; empty: nothing. */
export function releaseProblems(tag: string, files: ReleaseFiles): string[] {
  const version = /^v(\d+\.\d+\.\d+)$/.exec(tag)?.[1];
  if (version === undefined) return [`the tag is ${JSON.stringify(tag)}: must be v and a version, as v0.1.0`];
  const { version: packaged } = JSON.parse(files.manifest) as { version: string };
  const lock = JSON.parse(files.lock) as {
    version: string;
    packages: Readonly<Record<string, { readonly version: string }>>;
  };
  const { dependencies } = JSON.parse(files.template) as { dependencies: Readonly<Record<string, string>> };
  const named = {
    "version of package.json": packaged,
    "version of package-lock.json": lock.version,
    'version of packages[""] of package-lock.json': lock.packages[""]?.version,
    "weir-limiter of template/package.json": dependencies["weir-limiter"]?.replace(/^\^/, ""),
  };
  const others = Object.entries(named).filter(([, value]) => value !== version);
  return [
    ...others.map(([what, value]) => `the ${what} is ${value}: must be ${version}, as the tag ${tag} says`),
    ...changelogProblems(version, files.changelog),
  ];
}

function changelogProblems(version: string, changelog: string): string[] {
  const newest = changelog
    .split("\n")
    .map((line) => SECTION.exec(line))
    .find((found) => found !== null);
  const wanted = `must be "## [${version}] - YYYY-MM-DD"; npm version writes it`;
  if (newest === undefined) return [`CHANGELOG.md has no section of a version: ${wanted}`];
  const [heading, found, date = ""] = newest;
  if (found !== version) return [`the newest section of CHANGELOG.md is "${heading}": ${wanted}`];
  const day = Date.parse(`${date}T00:00:00Z`);
  const isDay = !Number.isNaN(day) && new Date(day).toISOString().startsWith(date);
  return [
    ...(isDay ? [] : [`the date of "${heading}" is no day: ${wanted}`]),
    ...(notesOf(version, changelog) === "" ? [`the section "${heading}" of CHANGELOG.md is empty`] : []),
  ];
}

/** The section of a version, without its heading; empty: there is none. */
export function notesOf(version: string, changelog: string): string {
  const lines = changelog.split("\n");
  const start = lines.findIndex((line) => SECTION.exec(line)?.[1] === version);
  if (start < 0) return "";
  const length = lines.slice(start + 1).findIndex((line) => line.startsWith("## "));
  return lines
    .slice(start + 1, length < 0 ? undefined : start + 1 + length)
    .join("\n")
    .trim();
}

/** The changelog with what is unreleased under a version and a day. @throws Error if nothing is unreleased */
export function datedChangelog(changelog: string, version: string, day: string): string {
  const dated = changelog.replace(`${UNRELEASED}\n`, `${UNRELEASED}\n\n## [${version}] - ${day}\n`);
  if (notesOf(version, dated) === "")
    throw new Error(`CHANGELOG.md has nothing under "${UNRELEASED}": write what version ${version} changes`);
  return dated;
}

/** The template's package.json with a dependency on a version. */
export function templateFor(template: string, version: string): string {
  return template.replace(/("weir-limiter": "\^)[^"]*/, `$1${version}`);
}
