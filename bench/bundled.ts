import { build, type BuildOptions } from "esbuild";
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
