/** `npx weir init`: writes a project with a limiter of its own into this folder. What is there already stays. */
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { LEAST_WRANGLER } from "./least-wrangler.ts";
import { ROOT } from "./project-folder.ts";

/** Beside the folder of the command, here and in the package. */
const TEMPLATE = join(import.meta.dirname, "..", "template");
/** npm leaves files of these names out of a package, or reads them for its own. */
const HIDDEN = ["gitignore", "dockerignore"];

/** What stands in the template, and where it goes. */
function files(): { from: string; to: string }[] {
  return readdirSync(TEMPLATE, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => {
      const from = join(parentPath, name);
      const to = HIDDEN.includes(name) ? `.${name}` : from.slice(TEMPLATE.length + 1);
      return { from, to };
    });
}

/** The manifest of a project that had none. */
function manifest(): string {
  const name = basename(ROOT)
    .toLowerCase()
    .replaceAll(/[^a-z0-9-]+/g, "-")
    .replaceAll(/^-+|-+$/g, "");
  const scripts = Object.fromEntries(
    ["start", "serve", "token", "deploy", "verify"].map((command) => [command, `weir ${command}`]),
  );
  const dependencies = { weir: given(), wrangler: `^${LEAST_WRANGLER}` };
  const fields = {
    name: name === "" ? "limiter" : name,
    private: true,
    type: "module",
    scripts,
    dependencies,
  };
  return `${JSON.stringify(fields, undefined, 2)}\n`;
}

/** The package as npx was given it: a file, or this version. */
function given(): string {
  const [above] = import.meta.dirname.split(join("/node_modules", "weir"));
  const manifestAbove = join(above ?? "", "package.json");
  if (above === import.meta.dirname || !existsSync(manifestAbove)) return `^${version()}`;
  const { dependencies = {} } = JSON.parse(readFileSync(manifestAbove, "utf8")) as {
    dependencies?: Readonly<Record<string, string>>;
  };
  const from = dependencies["weir"];
  return from?.startsWith("file:") === true
    ? `file:${resolve(above ?? "", from.slice("file:".length))}`
    : `^${version()}`;
}

function packageToInstall(): string {
  const from = given();
  return from.startsWith("file:") ? JSON.stringify(from) : `weir@${from}`;
}

function version(): string {
  const found = ["..", "../../.."]
    .map((up) => join(import.meta.dirname, up, "package.json"))
    .find(existsSync);
  if (found === undefined) throw new Error("the package has no package.json");
  return (JSON.parse(readFileSync(found, "utf8")) as { version: string }).version;
}

try {
  const [stray] = process.argv.slice(2);
  if (stray !== undefined)
    throw new Error(`${stray} is not known: weir init has no arguments, and writes into this folder`);
  const wanted = files();
  const there = wanted.filter(({ to }) => existsSync(join(ROOT, to))).map(({ to }) => to);
  if (there.length > 0)
    throw new Error(
      `nothing was written, because this folder has ${there.join(", ")} already: take another one`,
    );
  for (const { from, to } of wanted) {
    mkdirSync(dirname(join(ROOT, to)), { recursive: true });
    copyFileSync(from, join(ROOT, to));
  }
  const isNew = !existsSync(join(ROOT, "package.json"));
  if (isNew) writeFileSync(join(ROOT, "package.json"), manifest());
  console.log(`Written: ${wanted.map(({ to }) => to).join(", ")}${isNew ? ", package.json" : ""}\n`);
  console.log(
    isNew
      ? "Next:\n\n  npm install\n  npm start"
      : `package.json stays as it is. Next:\n\n  npm install ${packageToInstall()} wrangler@^${LEAST_WRANGLER}\n  npx weir start`,
  );
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
