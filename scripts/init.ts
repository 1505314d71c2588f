/** `npx weir-limiter init`: writes a project with its own limiter into this folder. Existing files stay. */
import { copyFileSync, existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { parseArgs } from "node:util";
import { runCommand } from "./call.ts";
import { HIDDEN } from "./hidden-files.ts";
import { ROOT } from "./project-folder.ts";
import { MIN_WRANGLER, ownVersion } from "./requirements.ts";

/** Beside the folder of the command, here and in the package. */
const TEMPLATE = join(import.meta.dirname, "..", "template");
const MANIFEST = "package.json";
const WHERE = "onFailure of each policy in wrangler.toml says so, and --on-failure of weir init writes it";
const USAGE = "weir init [--on-failure open|closed]";

function files(): { from: string; to: string }[] {
  return readdirSync(TEMPLATE, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name !== MANIFEST)
    .map(({ parentPath, name }) => {
      const from = join(parentPath, name);
      return { from, to: HIDDEN.includes(`.${name}`) ? `.${name}` : from.slice(TEMPLATE.length + 1) };
    });
}

function manifest(): string {
  const name = basename(ROOT)
    .toLowerCase()
    .replaceAll(/[^a-z0-9-]+/g, "-")
    .replaceAll(/^-+|-+$/g, "");
  const fields = JSON.parse(readFileSync(join(TEMPLATE, MANIFEST), "utf8")) as { dependencies: object };
  const dependencies = { ...fields.dependencies, "weir-limiter": source() };
  const named = { ...fields, name: name === "" ? "limiter" : name, dependencies };
  return `${JSON.stringify(named, undefined, 2)}\n`;
}

/** What the policies say about calls without a decision. @throws Error for what is neither open nor closed */
function readOnFailure(): "open" | "closed" {
  const { values, positionals } = parseArgs({
    options: { "on-failure": { type: "string" } },
    allowPositionals: true,
    strict: false,
  });
  const { "on-failure": onFailure = "closed", ...others } = values;
  const [stray] = [...Object.keys(others).map((name) => `--${name}`), ...positionals];
  if (stray !== undefined)
    throw new Error(`${stray} is not known: ${USAGE} writes into this folder, and takes nothing else`);
  if (onFailure === "open" || onFailure === "closed") return onFailure;
  throw new Error(`--on-failure is ${JSON.stringify(onFailure)}: must be open or closed`);
}

/** The project's dependency: this version, or the file in its folder. */
function source(): string {
  const file = tarball();
  return file === undefined ? `^${ownVersion()}` : `file:${basename(file)}`;
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
  return file === undefined ? `weir-limiter@^${ownVersion()}` : `./${basename(file)}`;
}

await runCommand(() => {
  const onFailure = readOnFailure();
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
  const toml = join(ROOT, "wrangler.toml");
  const text = readFileSync(toml, "utf8");
  writeFileSync(toml, text.replaceAll('onFailure = "closed"', `onFailure = "${onFailure}"`));
  const copied = copyTarball();
  const isNew = !existsSync(join(ROOT, MANIFEST));
  if (isNew) writeFileSync(join(ROOT, MANIFEST), manifest());
  const written = [...wanted.map(({ to }) => to), ...copied, ...(isNew ? [MANIFEST] : [])];
  console.log(`Written: ${written.join(", ")}\n`);
  console.log(
    `While nothing can decide a call it is ${onFailure === "open" ? "admitted" : "denied"}: ${WHERE}.\n`,
  );
  console.log(
    isNew
      ? "Next:\n\n  npm install\n  npm start"
      : `package.json is unchanged. Next:\n\n  npm install ${packageToInstall()} wrangler@^${MIN_WRANGLER}\n  npx weir start`,
  );
});
