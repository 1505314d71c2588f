import { build, type BuildOptions, type Plugin } from "esbuild";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** Bundles one of this folder's modules for workerd. Returns the bundle's path. */
export async function bundled(folder: string, name: string, further: BuildOptions = {}): Promise<string> {
  const outfile = join(folder, `${name}.js`);
  await build({
    entryPoints: [join(import.meta.dirname, `${name}.ts`)],
    outfile,
    bundle: true,
    format: "esm",
    external: ["cloudflare:workers", "weir.js"],
    ...further,
  });
  return outfile;
}

/** A flag that only Upstash's own servers know. Redis refuses a script that has it. */
const FLAG = " flags=allow-key-locking";

/** The conditions of packages that workerd meets. */
export const IN_WORKER = ["workerd", "worker", "browser"];

/** Bundles upstash.ts for workerd. Returns the module's path. */
export async function bundleUpstash(folder: string): Promise<string> {
  return await bundled(folder, "upstash", { conditions: IN_WORKER, plugins: [forRedis] });
}

/** Removes the flag from the scripts, and corrects their digests: otherwise each call would send the full script. */
export const forRedis: Plugin = {
  name: "for-redis",
  setup(building) {
    building.onLoad({ filter: /@upstash[\\/]ratelimit[\\/]dist[\\/]index\.m?js$/ }, ({ path }) => {
      let contents = readFileSync(path, "utf8");
      for (const [, script = ""] of contents.matchAll(/`(#!lua flags=allow-key-locking[^`]*)`/g)) {
        const plain = script.replace(FLAG, "");
        contents = contents.replace(script, () => plain).replaceAll(digest(script), digest(plain));
      }
      return { contents };
    });
  },
};

function digest(script: string): string {
  return createHash("sha1").update(script).digest("hex");
}
