/** The parsed documentation: pages, headings, links and fenced examples. */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Limiter } from "../../client/limiter.ts";

const ROOT = join(import.meta.dirname, "..", "..");
/** Where examples are run; git ignores it. */
const RUN_FOLDER = join(ROOT, "dist/run-examples");

/** A fenced block, with the line of its opening fence. */
export interface Fence {
  readonly language: string;
  readonly code: string;
  readonly line: number;
}

export interface Page {
  /** From the project's folder. */
  readonly path: string;
  readonly lines: readonly string[];
  readonly fences: readonly Fence[];
  readonly anchors: ReadonlySet<string>;
  /** Addresses of links and images. */
  readonly links: readonly string[];
}

/** Every page that a reader may reach. */
export function readPages(): Page[] {
  const inFolder = (folder: string, name: (entry: string) => string) =>
    readdirSync(join(ROOT, folder)).map((entry) => join(folder, name(entry)));
  return [
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    ...inFolder("docs", (entry) => entry).filter((path) => path.endsWith(".md")),
    ...inFolder("docs/migrating", (entry) => entry),
    ...inFolder("examples", (entry) => join(entry, "README.md")),
  ].map(readPage);
}

function readPage(path: string): Page {
  const lines = readFileSync(join(ROOT, path), "utf8").split("\n");
  const { fences, prose } = takeApart(lines);
  return { path, lines, fences, anchors: anchorsOf(prose), links: linksOf(prose) };
}

function takeApart(lines: readonly string[]): { fences: Fence[]; prose: string[] } {
  const fences: Fence[] = [];
  const prose: string[] = [];
  let open: { language: string; line: number; code: string[] } | undefined;
  for (const [index, line] of lines.entries()) {
    const language = /^ *```(.*)$/.exec(line)?.[1];
    if (open === undefined && language === undefined) prose.push(line);
    else if (open === undefined) open = { language: language ?? "", line: index + 1, code: [] };
    else if (language === undefined) open.code.push(line);
    else {
      fences.push({ ...open, code: open.code.join("\n") });
      open = undefined;
    }
  }
  if (open !== undefined) throw new Error(`the fence of line ${open.line} does not end`);
  return { fences, prose };
}

/** Anchors as GitHub makes them: lower case, hyphens for spaces, no punctuation, numbers for repetitions. */
function anchorsOf(prose: readonly string[]): Set<string> {
  const anchors = new Set<string>();
  for (const line of prose) {
    const heading = /^#{1,6} +(.*?) *$/.exec(line)?.[1];
    if (heading === undefined) continue;
    const text = heading.replaceAll(/\[([^\]]*)\]\([^)]*\)/g, "$1").toLowerCase();
    const slug = text.replaceAll(/[^\p{L}\p{N} _-]/gu, "").replaceAll(" ", "-");
    let anchor = slug;
    for (let count = 1; anchors.has(anchor); count += 1) anchor = `${slug}-${count}`;
    anchors.add(anchor);
  }
  return anchors;
}

function linksOf(prose: readonly string[]): string[] {
  // A link may continue on the next line. Text in backticks is no link.
  const text = prose.join("\n").replaceAll(/`[^`\n]*`/g, "code");
  const inline = text.matchAll(/\]\(([^()\s]+)\)/g);
  const references = text.matchAll(/^\[[^\]]+\]: +(\S+)$/gm);
  return [...inline, ...references].map(([, address]) => String(address));
}

/** What `createLimiter` gives an example that runs. */
const given = globalThis as { limiterOfExample?: Limiter };
const GIVES = "data:text/javascript,export const createLimiter = () => globalThis.limiterOfExample";
let runs = 0;

/** Runs an example as it stands there, over a limiter of the test. Returns what it exports. */
export async function runExample(name: string, code: string, limiter: Limiter): Promise<unknown> {
  const file = join(RUN_FOLDER, `${name}.ts`);
  mkdirSync(RUN_FOLDER, { recursive: true });
  writeFileSync(file, code.replace('from "weir-limiter/client"', `from "${GIVES}"`));
  given.limiterOfExample = limiter;
  // Each run is a module of its own.
  runs += 1;
  return await import(`${file}?${runs}`);
}
