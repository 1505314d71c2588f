/**
 * The worker before three changes: an object without batches of calls, moves of keys and terms, a caller that sends no
 * terms, and a catalog without snapshots. It is this project's code with five lines of it as they would have been.
 */
import { build, type Plugin } from "esbuild";
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { WORKER_BUNDLING } from "../../scripts/package-build.ts";
import { ROOT } from "../../scripts/project.ts";

interface Edit {
  readonly file: string;
  readonly now: string;
  readonly before: string;
}

const EDITS: readonly Edit[] = [
  {
    file: "core/protocol/messages.ts",
    now: "export const KNOWN_PROTOCOL = ATTEMPT_PROTOCOL;",
    before: "export const KNOWN_PROTOCOL = WAITING_PROTOCOL;",
  },
  {
    file: "core/policies/parse-policy.ts",
    now: "terms: JSON.stringify(tables.map((rule) => [rule.ruleName, rule.fields])),",
    before: "",
  },
  {
    file: "durable-objects/key-calls.ts",
    now: "if (terms === undefined || inForce?.fields !== undefined) return;",
    before: "return;",
  },
  {
    file: "worker/bindings/catalog-reader.ts",
    now: "return catalog().changes(since, wanted);",
    before: "return catalog().changes(since);",
  },
  {
    file: "durable-objects/catalog/catalog-object.ts",
    now: "if (wanted === undefined) return",
    before: "return",
  },
];

/** Builds it into a folder. @throws Error when a line no longer exists */
export async function buildOlder(folder: string): Promise<string> {
  const edited = new Set<string>();
  const older: Plugin = {
    name: "older",
    setup: (building) => {
      for (const { file, now, before } of EDITS)
        building.onLoad({ filter: new RegExp(`${file.replaceAll(".", String.raw`\.`)}$`) }, ({ path }) => {
          const text = readFileSync(path, "utf8");
          if (text.split(now).length !== 2) throw new Error(`${file} has no such line, or several: ${now}`);
          edited.add(file);
          return { contents: text.replace(now, before), loader: "ts" };
        });
    },
  };
  const outfile = join(folder, "older.js");
  const entryPoints = [join(ROOT, "worker", "index.ts")];
  await build({ ...WORKER_BUNDLING, entryPoints, outfile, plugins: [older], logLevel: "error" });
  if (edited.size !== EDITS.length) throw new Error(`only ${[...edited].join(", ")} are in the bundle`);
  return outfile;
}
