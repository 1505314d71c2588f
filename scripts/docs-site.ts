/**
 * Builds the documentation as a site with search, and llms.txt, into dist/site. VitePress is installed beside it, not with
 * this project: only this needs it. DOCS_BASE is the path at which the site is served, by default "/".
 */
import { spawnSync } from "node:child_process";
import {
  cpSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { dirname, join } from "node:path";
import { runCommand } from "./call.ts";
import { ROOT } from "./project-folder.ts";

const VITEPRESS = "vitepress@1.6.4";
const SOURCE = join(ROOT, "dist", "site-source");
const SITE = join(ROOT, "dist", "site");
const pagesIn = (folder: string) =>
  readdirSync(join(ROOT, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".md") && !name.includes("node_modules"))
    .map((name) => join(folder, name));
const pages = [
  "README.md",
  "CHANGELOG.md",
  "CONTRIBUTING.md",
  "SECURITY.md",
  ...pagesIn("docs"),
  ...pagesIn("examples"),
];

/** Where a page is on the site: a README is the index of its folder. */
const placeOf = (path: string) => path.replace(/README\.md$/, "index.md");

const read = (path: string) => readFileSync(join(ROOT, path), "utf8");

/** Images and other files that pages link to. */
const files = pages.flatMap((path) =>
  [...read(path).matchAll(/\]\(([^()\s#]+)/g)]
    .map(([, target = ""]) => join(dirname(path), target))
    .filter(
      (file) => !file.endsWith(".md") && statSync(join(ROOT, file), { throwIfNoEntry: false })?.isFile(),
    ),
);

function titleOf(path: string): string {
  return /^# (.+)$/m.exec(read(path))?.[1] ?? path;
}

/** The page with links to READMEs as the site has them. */
function textOf(path: string): string {
  return read(path).replaceAll(/(\]\([^)\s]*)README\.md/g, "$1index.md");
}

function stage(): void {
  // What was installed stays.
  for (const name of ["docs", "examples", "public", ".vitepress"])
    rmSync(join(SOURCE, name), { recursive: true, force: true });
  for (const path of pages) {
    const to = join(SOURCE, placeOf(path));
    mkdirSync(dirname(to), { recursive: true });
    writeFileSync(to, textOf(path));
  }
  // An image is read from beside its page, other files from public, as are pages as text: where llms.txt points.
  for (const file of files) cpSync(join(ROOT, file), join(SOURCE, file));
  for (const path of [...files, ...pages]) cpSync(join(ROOT, path), join(SOURCE, "public", path));
  writeFileSync(join(SOURCE, "public", "llms.txt"), llmsText());
  mkdirSync(join(SOURCE, ".vitepress"));
  writeFileSync(join(SOURCE, ".vitepress", "config.js"), configuration());
  writeFileSync(join(SOURCE, "package.json"), JSON.stringify({ private: true, type: "module" }));
}

/** As https://llmstxt.org has it: what it is, and each page in a line. */
function llmsText(): string {
  const [, , summary = ""] = read("README.md").split("\n");
  const lines = pages.slice(1).map((path) => `- [${titleOf(path)}](${path})`);
  return `# Weir\n\n> ${summary}\n\n## Documentation\n\n- [README](README.md)\n${lines.join("\n")}\n`;
}

function configuration(): string {
  const link = (path: string) => ({
    text: titleOf(path),
    link: `/${placeOf(path).replace(/(index)?\.md$/, "")}`,
  });
  const group = (text: string, folder: RegExp) => ({
    text,
    items: pages.filter((path) => folder.test(path)).map(link),
  });
  const config = {
    title: "Weir",
    base: process.env["DOCS_BASE"] ?? "/",
    cleanUrls: true,
    outDir: SITE,
    srcExclude: ["public/**"],
    themeConfig: {
      search: { provider: "local" },
      sidebar: [
        group("Weir", /^[A-Z]+\.md$/),
        group("Documentation", /^docs\/[^/]+$/),
        group("Coming from", /^docs\/migrating\//),
        group("Examples", /^examples\//),
      ],
    },
  };
  // The check takes files for pages. Anchors are as GitHub makes them, which the links are written for.
  return `const files = ${JSON.stringify(files)};
const slugify = (text) => text.toLowerCase().replaceAll(/[^\\p{L}\\p{N} _-]/gu, "").replaceAll(" ", "-");
const ignoreDeadLinks = [(link) => files.some((file) => link.endsWith(file))];
export default { ...${JSON.stringify(config)}, ignoreDeadLinks, markdown: { html: false, anchor: { slugify }, toc: { slugify } } };
`;
}

function run(command: string, args: readonly string[]): void {
  const { status } = spawnSync(command, args, { cwd: SOURCE, stdio: "inherit" });
  if (status !== 0) throw new Error(`${command} ${args.join(" ")} failed; see above`);
}

await runCommand(() => {
  stage();
  if (!existsSync(join(SOURCE, "node_modules", "vitepress")))
    run("npm", ["install", "--no-save", "--no-audit", "--no-fund", "--loglevel=error", VITEPRESS]);
  run(join(SOURCE, "node_modules", ".bin", "vitepress"), ["build", "."]);
  console.log("Built dist/site");
});
