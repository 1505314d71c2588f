/** What the npm package is, as far as it can be told without installing it: test/release/package.test.ts does that. */
import { build } from "esbuild";
import { execFileSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import { dirname, join, relative } from "node:path";
import { parseEnv } from "node:util";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";
import { BUNDLING, COMMAND_BUNDLING, WORKER_BUNDLING } from "../../scripts/package-build.ts";
import { isRecent, MIN_NODE, MIN_WRANGLER } from "../../scripts/requirements.ts";
import { MAX_MS } from "../../scripts/workerd.ts";
import { configurationProblem } from "../../worker/auth/tokens.ts";
import { readPages } from "../support/docs.ts";

const ROOT = join(import.meta.dirname, "../..");

async function bundled(entry: string) {
  const entryPoints = [join(ROOT, "package", entry)];
  const { outputFiles, metafile } = await build({
    ...BUNDLING,
    entryPoints,
    minify: true,
    write: false,
    metafile: true,
  });
  return { bytes: gzipSync(outputFiles[0]?.contents ?? "").length, inputs: Object.keys(metafile.inputs) };
}

test.each(["client.ts", "client-in-worker.ts"])(
  "%s is 28 kB with gzip, and has nothing in it but this project's own code",
  async (entry) => {
    const { bytes, inputs } = await bundled(entry);
    expect(bytes).toBeLessThan(28_500);
    expect(inputs.filter((path) => path.includes("node_modules"))).toEqual([]);
  },
);

test.each([
  ...["hono.ts", "express.ts", "cloudflare.ts", "upstash.ts"].map((entry) => [entry, 7.6] as const),
  // Handlers, and `limitedFetch`.
  ["fetch.ts", 7.9] as const,
  ["llm.ts", 8.2] as const,
])("%s is under %d kB with gzip, and has nothing in it but this project's own code", async (entry, most) => {
  const { bytes, inputs } = await bundled(entry);
  expect(bytes).toBeLessThan(1_000 * most);
  expect(inputs.filter((path) => path.includes("node_modules"))).toEqual([]);
});

test("whoever only needs the error gets little else", async () => {
  const entry = 'export { LimiterError } from "./client.ts"';
  const stdin = { contents: entry, resolveDir: join(ROOT, "package") };
  const { outputFiles } = await build({ ...BUNDLING, stdin, minify: true, write: false, treeShaking: true });
  expect(outputFiles[0]?.contents.length).toBeLessThan(1_000);
});

const ENTRIES = [
  ".",
  "./client",
  "./hono",
  "./fetch",
  "./llm",
  "./express",
  "./cloudflare",
  "./upstash",
  "./memory",
  "./objects",
  "./testing",
  "./worker",
];

test("the package depends on no other at run time", () => {
  const described = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")) as Record<string, unknown>;
  expect(described["dependencies"] ?? {}).toEqual({});
  expect(Object.keys(described["exports"] as object)).toEqual(ENTRIES);
  // Whoever uses weir-limiter/hono has Hono; nobody else needs it.
  expect(described["peerDependenciesMeta"]).toEqual({
    hono: { optional: true },
    wrangler: { optional: true },
  });
});

test.each([
  ["package/worker.ts", WORKER_BUNDLING, ["cloudflare:workers"]],
  ["scripts/weir.ts", COMMAND_BUNDLING, ["wrangler"]],
])("%s has all in it that it needs, but for what its platform has", async (entry, bundling, others) => {
  const { metafile } = await build({
    ...bundling,
    entryPoints: [join(ROOT, entry)],
    outdir: "none",
    write: false,
    metafile: true,
  });
  const imports = Object.values(metafile.outputs).flatMap((output) => output.imports);
  const outside = imports.filter(({ external }) => external === true).map(({ path }) => path);
  expect([...new Set(outside)].filter((path) => !path.startsWith("node:"))).toEqual(others);
  if (entry === "package/worker.ts") expect(outside.filter((path) => path.startsWith("node:"))).toEqual([]);
});

test("the wrangler that is asked for is the one that is tested with, or an older one, everywhere the same", () => {
  const read = (file: string) =>
    JSON.parse(readFileSync(join(ROOT, file), "utf8")) as Record<string, unknown>;
  const { peerDependencies, devDependencies } = read("package.json");
  expect(peerDependencies).toMatchObject({ wrangler: `>=${MIN_WRANGLER}` });
  expect(isRecent(String((devDependencies as Record<string, unknown>)["wrangler"]))).toBe(true);
  expect(["4.155.1", "4.160.0", "5.0.0"].map((version) => isRecent(version))).toEqual([true, true, true]);
  expect(["4.154.9", "3.200.0", "4.99.0"].map((version) => isRecent(version))).toEqual([false, false, false]);
});

test("one Node is asked for: by npm, the command, the template and every page", () => {
  const read = (file: string) => readFileSync(join(ROOT, file), "utf8");
  for (const file of ["package.json", "template/package.json"])
    expect(JSON.parse(read(file))).toMatchObject({ engines: { node: `>=${MIN_NODE}` } });
  const asked = ["README.md", "docs/contributing.md", "docs/clients.md", "docs/deploying.md"].map(
    (file) => [file, read(file).match(/Node\s+22[.\d]* or newer/g)] as const,
  );
  expect(asked.map(([file, found]) => [file, [...new Set(found)]])).toEqual(
    asked.map(([file]) => [file, [`Node ${MIN_NODE} or newer`]]),
  );
});

test("the template stands alone: this version, the wrangler that it needs, and a sentence for each binding and secret", () => {
  const read = (file: string) => readFileSync(join(ROOT, file), "utf8");
  const { version } = JSON.parse(read("package.json")) as { version: string };
  const { dependencies, cloudflare } = JSON.parse(read("template/package.json")) as {
    dependencies: object;
    cloudflare: { bindings: Readonly<Record<string, { description: string }>> };
  };
  expect(dependencies).toEqual({ "weir-limiter": `^${version}`, wrangler: `^${MIN_WRANGLER}` });
  const toml = read("template/wrangler.toml").matchAll(/^(?:name|binding) = "([A-Z]+)"$/gm);
  // What has no # before it is asked for when the button deploys the template.
  const secrets = read("template/.dev.vars.example").matchAll(/^(\w+)=(.*)$/gm);
  const named = [...[...secrets].map(([, name = ""]) => name), ...[...toml].map(([, name = ""]) => name)];
  expect(Object.keys(cloudflare.bindings)).toEqual(named);
  // What is deployed without a change must let nobody in, and say so.
  const { API_TOKENS } = parseEnv(read("template/.dev.vars.example"));
  expect(configurationProblem(API_TOKENS)?.detail).toContain("npm run token");
});

test("the template configures what this project's own wrangler.toml does, but for the policies", () => {
  const settings = (file: string) => {
    const text = readFileSync(join(ROOT, file), "utf8");
    const lines = text.slice(0, text.indexOf("[vars.")).split("\n");
    // The package has the worker, and the dashboard in it, already built.
    return lines.filter((line) => line !== "" && !/^(#|main =|build =)/.test(line));
  };
  expect(settings("template/wrangler.toml")).toEqual(settings("wrangler.toml"));
});

test("the container and the unit run it as a user of its own, keep its state, and give it the time to end", () => {
  const docker = readFileSync(join(ROOT, "template", "Dockerfile"), "utf8").split("\n");
  const at = (text: string) => docker.findIndex((line) => line.startsWith(text));
  expect(at("USER node")).toBeGreaterThan(at("RUN mkdir /state && chown -R node"));
  expect(at("CMD [")).toBeGreaterThan(at("USER node"));
  expect(docker).toContain("ENV HOST=0.0.0.0 PORT=8787 STATE_DIR=/state");
  expect(docker).toContain("VOLUME /state");
  const unit = readFileSync(join(ROOT, "template", "weir.service"), "utf8");
  expect(unit).toMatch(/^User=weir$/m);
  // Otherwise workerd is asked to end at the same time, and isolates have nobody to give their units back to.
  expect(unit).toMatch(/^KillMode=mixed$/m);
  expect(1_000 * Number(/^TimeoutStopSec=(\d+)$/m.exec(unit)?.[1])).toBeGreaterThan(2 * MAX_MS);
});

/** The files that `npm pack` takes of those that are there. What is built is not asked for. npm takes a second to start. */
const packedFiles = once((): readonly string[] => {
  const args = ["pack", "--dry-run", "--ignore-scripts", "--json"];
  const text = execFileSync("npm", args, {
    cwd: ROOT,
    encoding: "utf8",
    stdio: ["ignore", "pipe", "ignore"],
  });
  const [packed] = JSON.parse(text) as [{ readonly files: readonly { readonly path: string }[] }];
  return packed.files.map(({ path }) => path);
});

function once<Value>(make: () => Value): () => Value {
  let made: { readonly value: Value } | undefined;
  return () => (made ??= { value: make() }).value;
}

test("all documentation is in the package, and every link of it leads to a file of the package", () => {
  const files = packedFiles();
  const leadsTo = (path: string) => files.some((file) => file === path || file.startsWith(`${path}/`));
  const pages = readPages();
  expect(pages.map(({ path }) => path).filter((path) => !files.includes(path))).toEqual([]);
  const dead = pages.flatMap(({ path, links }) =>
    links
      .filter((address) => !/^(https?:|#)/.test(address))
      .map((address) => join(dirname(path), address.split("#", 1)[0] ?? "").replace(/\/$/, ""))
      .filter((target) => !leadsTo(target))
      .map((target) => `${path}: ${target}`),
  );
  expect(dead).toEqual([]);
});

test("an example is in the package with all of its files", () => {
  const files = packedFiles();
  const theirs = readdirSync(join(ROOT, "examples"), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => relative(ROOT, join(entry.parentPath, entry.name)));
  expect(theirs.filter((file) => !files.includes(file))).toEqual([]);
});

test("beside what is built and the documentation there is nothing in the package that it does not need", () => {
  const others = packedFiles().filter((file) => !/^(dist\/package|docs|examples\/[^/]+)\//.test(file));
  expect(others.toSorted()).toEqual([
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "package.json",
    "wrangler.toml",
  ]);
});
