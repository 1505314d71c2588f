/** `npx weir-limiter init`: writes a project with its own limiter into this folder. Existing files stay. */
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { MIN_WRANGLER } from "./least-wrangler.ts";
import { ROOT } from "./project-folder.ts";

/** Beside the folder of the command, here and in the package. */
const TEMPLATE = join(import.meta.dirname, "..", "template");
/** npm omits files of these names from a package, or reads them for its own. */
const HIDDEN = ["gitignore", "dockerignore"];

function files(): { from: string; to: string }[] {
  return readdirSync(TEMPLATE, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map(({ parentPath, name }) => {
      const from = join(parentPath, name);
      const to = HIDDEN.includes(name) ? `.${name}` : from.slice(TEMPLATE.length + 1);
      return { from, to };
    });
}

function manifest(): string {
  const name = basename(ROOT)
    .toLowerCase()
    .replaceAll(/[^a-z0-9-]+/g, "-")
    .replaceAll(/^-+|-+$/g, "");
  const scripts = Object.fromEntries(
    ["start", "serve", "token", "deploy", "verify", "policies"].map((command) => [
      command,
      `weir ${command}`,
    ]),
  );
  const dependencies = { "weir-limiter": source(), wrangler: `^${MIN_WRANGLER}` };
  const fields = {
    name: name === "" ? "limiter" : name,
    private: true,
    type: "module",
    scripts,
    dependencies,
  };
  return `${JSON.stringify(fields, undefined, 2)}\n`;
}

/** The project's dependency: this version, or the file in its folder. */
function source(): string {
  const file = tarball();
  return file === undefined ? `^${version()}` : `file:${basename(file)}`;
}

/** The package file, if npx got one. The project gets a copy, so a container can install it. */
function tarball(): string | undefined {
  const [above] = import.meta.dirname.split(join("/node_modules", "weir-limiter"));
  const manifestAbove = join(above ?? "", "package.json");
  if (above === import.meta.dirname || !existsSync(manifestAbove)) return undefined;
  const { dependencies = {} } = JSON.parse(readFileSync(manifestAbove, "utf8")) as {
    dependencies?: Readonly<Record<string, string>>;
  };
  const from = dependencies["weir-limiter"];
  if (from?.startsWith("file:") !== true || !from.endsWith(".tgz")) return undefined;
  const file = resolve(above ?? "", from.slice("file:".length));
  return existsSync(file) ? file : undefined;
}

function copyTarball(): string[] {
  const file = tarball();
  if (file === undefined || existsSync(join(ROOT, basename(file)))) return [];
  copyFileSync(file, join(ROOT, basename(file)));
  return [basename(file)];
}

function packageToInstall(): string {
  const file = tarball();
  return file === undefined ? `weir@^${version()}` : `./${basename(file)}`;
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
    throw new Error(`${stray} is not known: weir init takes no arguments; it writes into this folder`);
  const wanted = files();
  const there = wanted.filter(({ to }) => existsSync(join(ROOT, to))).map(({ to }) => to);
  if (there.length > 0)
    throw new Error(
      `nothing was written, because this folder already has ${there.join(", ")}: use another one`,
    );
  for (const { from, to } of wanted) {
    mkdirSync(dirname(join(ROOT, to)), { recursive: true });
    copyFileSync(from, join(ROOT, to));
  }
  const copied = copyTarball();
  const isNew = !existsSync(join(ROOT, "package.json"));
  if (isNew) writeFileSync(join(ROOT, "package.json"), manifest());
  const written = [...wanted.map(({ to }) => to), ...copied, ...(isNew ? ["package.json"] : [])];
  console.log(`Written: ${written.join(", ")}\n`);
  console.log(
    isNew
      ? "Next:\n\n  npm install\n  npm start"
      : `package.json is unchanged. Next:\n\n  npm install ${packageToInstall()} wrangler@^${MIN_WRANGLER}\n  npx weir start`,
  );
} catch (error) {
  console.error(error instanceof Error ? error.message : String(error));
  process.exitCode = 1;
}
