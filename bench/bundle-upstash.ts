import { build, type Plugin } from "esbuild";
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { join } from "node:path";

/** A flag that only Upstash's own servers know. Redis refuses a script that has it. */
const FLAG = " flags=allow-key-locking";

/** Bundles upstash.ts for workerd. Returns the module's path. */
export async function bundleUpstash(folder: string): Promise<string> {
  const outfile = join(folder, "upstash.js");
  await build({
    entryPoints: [join(import.meta.dirname, "upstash.ts")],
    outfile,
    bundle: true,
    format: "esm",
    conditions: ["workerd", "worker", "browser"],
    external: ["cloudflare:workers"],
    plugins: [forRedis],
  });
  return outfile;
}

/** Removes the flag from the scripts, and corrects their digests: else each call would send the whole script. */
const forRedis: Plugin = {
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
