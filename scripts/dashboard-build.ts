/** Builds the dashboard: a page, a script and a style, in one module that the worker imports. */
import { build } from "esbuild";
import { createHash } from "node:crypto";
import { existsSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "./project-folder.ts";

const MODULE = join(ROOT, "worker", "http", "dashboard-files.js");

interface File {
  readonly type: string;
  readonly etag: string;
  readonly body: string;
}

/** An unchanged module is not written, since a watching wrangler would build again. */
export async function buildDashboard(): Promise<void> {
  const { outputFiles } = await build({
    entryPoints: [join(ROOT, "dashboard", "main.tsx")],
    outdir: join(ROOT, "dist"),
    write: false,
    bundle: true,
    minify: true,
    format: "esm",
    target: "es2022",
    jsx: "automatic",
    jsxImportSource: "preact",
    legalComments: "eof",
    logLevel: "warning",
  });
  const textOf = (end: string) => outputFiles.find(({ path }) => path.endsWith(end))?.text ?? "";
  const [script, style] = [textOf(".js"), textOf(".css")];
  // The name has the content's hash, so a browser may keep the file for ever.
  const names = { script: `app-${hashOf(script)}.js`, style: `style-${hashOf(style)}.css` };
  const files = {
    "": fileOf("text/html; charset=utf-8", pageOf(names)),
    [names.script]: fileOf("text/javascript; charset=utf-8", script),
    [names.style]: fileOf("text/css; charset=utf-8", style),
  };
  write(`export const FILES = ${JSON.stringify(files)};\n`);
}

function fileOf(type: string, body: string): File {
  return { type, etag: `"${hashOf(body)}"`, body };
}

function hashOf(text: string): string {
  return createHash("sha256").update(text).digest("base64url").slice(0, 12);
}

/** Writes atomically: another process may be reading it. */
function write(text: string): void {
  if (existsSync(MODULE) && readFileSync(MODULE, "utf8") === text) return;
  const draft = `${MODULE}.${process.pid}`;
  writeFileSync(draft, text);
  renameSync(draft, MODULE);
}

function pageOf({ script, style }: { readonly script: string; readonly style: string }): string {
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Weir</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/dashboard/${style}">
<script type="module" src="/dashboard/${script}"></script>
</head>
<body><div id="app"></div><noscript>The dashboard needs JavaScript.</noscript></body>
</html>
`;
}
