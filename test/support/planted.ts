/** Builds with one planted fault each: a check that never finds them is worthless. */
import { spawnSync } from "node:child_process";
import { cpSync, mkdtempSync, readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ROOT } from "../../scripts/project.ts";

/** A text in a source file, and its faulty replacement. */
export type Edit = readonly [file: string, from: string, to: string];

const SOURCES = [
  "client",
  "core",
  "durable-objects",
  "worker",
  "package",
  "scripts",
  "wrangler.toml",
  "tsconfig.json",
  "package.json",
];

/** A build of a changed copy: its bundle, and the folder to remove after use. */
export interface ChangedBuild {
  readonly main: string;
  readonly folder: string;
}

/** Builds the limiter with these texts changed. @throws Error when a text is not found */
export function buildPlanted(edits: readonly Edit[]): ChangedBuild {
  return buildChanged((folder) => {
    for (const [file, from, to] of edits) {
      const text = readFileSync(join(folder, file), "utf8");
      if (!text.includes(from)) throw new Error(`${file} does not have the text: ${from}`);
      writeFileSync(join(folder, file), text.replace(from, to));
    }
  });
}

/** Builds the limiter of a copy of the sources. @param change gets the copy's folder */
export function buildChanged(change: (folder: string) => void): ChangedBuild {
  const folder = mkdtempSync(join(tmpdir(), "weir-planted-"));
  for (const name of SOURCES) cpSync(join(ROOT, name), join(folder, name), { recursive: true });
  for (const name of ["node_modules", "dist", "dashboard"]) symlinkSync(join(ROOT, name), join(folder, name));
  change(folder);
  const wrangler = join(ROOT, "node_modules", ".bin", "wrangler");
  const args = ["deploy", "--dry-run", "--outdir", "built", "-c", "wrangler.toml", "--env", ""];
  const env = { ...process.env, WRANGLER_SEND_METRICS: "false", NO_COLOR: "1" };
  const { status, stdout, stderr } = spawnSync(wrangler, args, { cwd: folder, encoding: "utf8", env });
  if (status !== 0) throw new Error(`the build failed:\n${stdout}${stderr}`);
  return { main: join(folder, "built", "index.js"), folder };
}

/** A fault of a kind that an attack has found once. */
export interface Fault {
  readonly name: string;
  /** The operations by which it is met. */
  readonly operations: readonly string[];
  /** The parts of their calls by which it is met. */
  readonly parts: readonly string[];
  readonly edits: readonly Edit[];
  /** Only slow calls of the neighbour show it. */
  readonly isSlowness?: true;
}

const SMALL_ANSWERS: Edit = [
  "durable-objects/storage/answers.ts",
  "MAX_ANSWERS_LENGTH = 2 ** 30",
  "MAX_ANSWERS_LENGTH = 2 ** 16",
];

/** One of each kind. The first is none: it has the small bound of that fault, and nothing is to be found. */
export const FAULTS: readonly Fault[] = [
  { name: "none", operations: ["limit", "hold"], parts: ["idempotencyKey"], edits: [SMALL_ANSWERS] },
  {
    name: "a pattern is compared as it is typed",
    operations: ["putOverride"],
    parts: ["pattern"],
    edits: [
      [
        "core/catalog/patterns.ts",
        'const readings = (["text"',
        'if (given.startsWith(keyPrefix)) return true;\n  const readings = (["text"',
      ],
    ],
  },
  {
    name: "calls that end something start objects without bound",
    operations: ["release", "cancel", "renew"],
    parts: ["id"],
    edits: [
      [
        "client/objects/object-calls.ts",
        "isEnding(operation) && this.#caller.isDoubted !== true",
        "isEnding(operation)",
      ],
      ["client/call-gate.ts", "if (!this.#isKnown(", 'if (kind !== "end" && !this.#isKnown('],
      [
        "client/call-gate.ts",
        "const started = this.#starts?.enter(",
        'const started = (kind === "end" ? undefined : this.#starts)?.enter(',
      ],
    ],
  },
  {
    name: "a document is read before the right to write it",
    operations: ["putCatalog"],
    parts: ["policies", "tokens"],
    edits: [
      [
        "worker/http/serve-call.ts",
        "record.isOfAll === true ? notForAdmin(principal) : undefined",
        "undefined as Problem | undefined",
      ],
    ],
  },
  {
    name: "fields of a query cost their number squared",
    operations: ["limit", "peek", "keys", "policies"],
    parts: ["query"],
    isSlowness: true,
    edits: [
      ["worker/http/serve-call.ts", "MAX_QUERY_FIELDS = 20", "MAX_QUERY_FIELDS = 1e6"],
      [
        "worker/http/serve-call.ts",
        "const earlier = values.get(field);",
        "const earlier = [...values].find(([name]) => name === field)?.[1];",
      ],
    ],
  },
  {
    name: "a holder that claims more gets one hold more",
    operations: ["reserve"],
    parts: ["kept"],
    edits: [
      ["durable-objects/operations/reservations.ts", "holder.replaced !== undefined ||", ""],
      [
        "durable-objects/operations/client-bounds.ts",
        "callerIn(each.id) !== caller) continue;",
        "callerIn(each.id) === caller) continue;",
      ],
    ],
  },
  {
    name: "one caller takes all the room for answers",
    operations: ["limit"],
    parts: ["idempotencyKey"],
    edits: [
      SMALL_ANSWERS,
      [
        "durable-objects/keys/idempotency.ts",
        "stored.lengthOf(caller) >= MAX_ANSWERS_LENGTH_OF_CALLER",
        "stored.lengthOf(caller) >= Infinity * MAX_ANSWERS_LENGTH_OF_CALLER",
      ],
    ],
  },
  {
    name: "one caller takes all places for load shedding",
    operations: ["limit"],
    parts: ["key"],
    edits: [
      [
        "durable-objects/operations/shedders.ts",
        "MAX_SHEDDERS_OF_CALLER = 500",
        "MAX_SHEDDERS_OF_CALLER = 1_000",
      ],
    ],
  },
  {
    name: "a document gives a token any name",
    operations: ["putCatalog"],
    parts: ["tokens"],
    edits: [
      [
        "worker/calls/catalog/admin-calls.ts",
        "[v.safeParse(CALLER_NAME, name), v.safeParse(StoredToken, stored)]",
        "[v.safeParse(v.string(), name), v.safeParse(v.looseObject(StoredToken.entries), stored), CALLER_NAME] as const",
      ],
    ],
  },
  {
    name: "beginnings of patterns have any number of lengths",
    operations: ["putOverride"],
    parts: ["pattern"],
    edits: [["core/catalog/patterns.ts", "MAX_BEGINNING_LENGTHS = 128", "MAX_BEGINNING_LENGTHS = 1e6"]],
  },
  {
    name: "wishes count as they are said",
    operations: ["reserve"],
    parts: ["wanted"],
    edits: [
      [
        "durable-objects/keys/holders.ts",
        "Math.min(wish, MAX_WISHES_OF_CALLER * max)",
        "Math.max(wish, 0 * MAX_WISHES_OF_CALLER * max)",
      ],
      [
        "durable-objects/operations/client-bounds.ts",
        "return Math.min(wanted, Math.max(kept, Math.floor(max)));",
        "return Math.max(wanted, 0 * Math.max(kept, max));",
      ],
    ],
  },
  {
    name: "a prefix reads what is counted of all keys",
    operations: ["metrics", "history"],
    parts: ["none"],
    edits: [
      [
        "worker/calls/stats.ts",
        "if (keyPrefix === undefined) return undefined;",
        "if (keyPrefix !== title) return undefined;",
      ],
    ],
  },
];
