/**
 * The worker before four changes: an object without batches of calls, moves of keys and terms, a caller that sends no
 * terms, a catalog without snapshots, and no slots for clients. It is this project's code with some lines of it as they
 * would have been.
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
  {
    file: "worker/calls/schemas/reservation-schemas.ts",
    now: "slots: v.optional(Held),",
    before: "",
  },
  {
    file: "worker/calls/reservations.ts",
    now: "...(mayHoldSlots(policy) && lease && {",
    before: "...(false && lease && {",
  },
];

/** Builds it into a folder. @throws Error when a line no longer exists */
export async function buildOlder(folder: string): Promise<string> {
  const edited = new Set<string>();
  const older: Plugin = {
    name: "older",
    setup: (building) => {
      for (const [file, edits] of Map.groupBy(EDITS, (edit) => edit.file))
        building.onLoad({ filter: new RegExp(`${file.replaceAll(".", String.raw`\.`)}$`) }, ({ path }) => {
          edited.add(file);
          return { contents: edits.reduce(textBefore, readFileSync(path, "utf8")), loader: "ts" };
        });
    },
  };
  const outfile = join(folder, "older.js");
  const entryPoints = [join(ROOT, "worker", "index.ts")];
  await build({ ...WORKER_BUNDLING, entryPoints, outfile, plugins: [older], logLevel: "error" });
  const files = new Set(EDITS.map(({ file }) => file));
  if (edited.size !== files.size) throw new Error(`only ${[...edited].join(", ")} are in the bundle`);
  return outfile;
}

function textBefore(text: string, { file, now, before }: Edit): string {
  if (text.split(now).length !== 2) throw new Error(`${file} has no such line, or several: ${now}`);
  return text.replace(now, before);
}
