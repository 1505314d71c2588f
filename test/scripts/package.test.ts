import { build } from "esbuild";
/** What the npm package is, as far as it can be told without installing it: test/system/package.test.ts does that. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { expect, test } from "vitest";
import { BUNDLING } from "../../scripts/package-build.ts";

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
  "%s is under 15 kB with gzip, and has nothing in it but this project's own code",
  async (entry) => {
    const { bytes, inputs } = await bundled(entry);
    expect(bytes).toBeLessThan(15_000);
    expect(inputs.filter((path) => path.includes("node_modules"))).toEqual([]);
  },
);

test.each(["hono.ts", "fetch.ts", "express.ts", "cloudflare.ts", "upstash.ts"])(
  "%s is under 5 kB with gzip, and has nothing in it but this project's own code",
  async (entry) => {
    const { bytes, inputs } = await bundled(entry);
    expect(bytes).toBeLessThan(5_000);
    expect(inputs.filter((path) => path.includes("node_modules"))).toEqual([]);
  },
);

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
  "./express",
  "./cloudflare",
  "./upstash",
  "./memory",
  "./objects",
  "./testing",
];

test("the package depends on no other at run time", () => {
  const described = JSON.parse(readFileSync(join(ROOT, "package.json"), "utf8")) as Record<string, unknown>;
  expect(described["dependencies"] ?? {}).toEqual({});
  expect(Object.keys(described["exports"] as object)).toEqual(ENTRIES);
  // Whoever uses weir/hono has Hono; nobody else needs it.
  expect(described["peerDependenciesMeta"]).toEqual({ hono: { optional: true } });
});
