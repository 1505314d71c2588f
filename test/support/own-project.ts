/** A project with its own wrangler.toml, in which scripts run as for a user. */
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ROOT } from "../../scripts/project.ts";

export const POLICY = `[vars.POLICIES.api]
algorithm = "token-bucket"
limit = 5
window = "30d"
`;

/** A folder with a wrangler.toml that has these tables after those of every deployment. */
export function makeProject(tables = POLICY): string {
  const folder = mkdtempSync(join(tmpdir(), "weir-own-"));
  symlinkSync(join(ROOT, "node_modules"), join(folder, "node_modules"));
  writeToml(folder, tables);
  return folder;
}

/** Saves its wrangler.toml. The tables begin at line 12. */
export function writeToml(folder: string, tables: string): void {
  writeFileSync(
    join(folder, "wrangler.toml"),
    `name = "weir"
main = ${JSON.stringify(join(ROOT, "worker", "index.ts"))}
compatibility_date = "2026-10-20"
compatibility_flags = ["enable_request_signal"]
[[durable_objects.bindings]]
name = "OBJECTS"
class_name = "LimiterObject"
[[migrations]]
tag = "v1"
new_sqlite_classes = ["LimiterObject"]

${tables}`,
  );
}

export function removeProject(folder: string): void {
  rmSync(folder, { recursive: true, force: true });
}

interface Called {
  readonly args?: readonly string[];
  readonly env?: NodeJS.Dict<string>;
  /** The caller's folder; absent: the project's. */
  readonly cwd?: string;
}

function called(folder: string, script: string, { args = [], env = {}, cwd = folder }: Called) {
  const own = {
    WEIR_PROJECT: folder,
    // The tests themselves may have been started from elsewhere.
    WEIR_CALLED_IN: cwd,
    NO_COLOR: "1",
    WRANGLER_LOG_PATH: folder,
    WRANGLER_REGISTRY_PATH: folder,
  };
  const path = join(ROOT, "scripts", `${script}.ts`);
  return [process.execPath, [path, ...args], { cwd, env: { ...process.env, ...own, ...env } }] as const;
}

/** Runs a script that ends by itself. */
export function runScript(folder: string, script: string, how: Called = {}) {
  const [node, args, options] = called(folder, script, how);
  const { status, stdout, stderr } = spawnSync(node, args, {
    ...options,
    encoding: "utf8",
    timeout: 60_000,
  });
  return { status, stdout, stderr };
}

export interface Running {
  readonly pid: number;
  /** Resolves when its output contains this. */
  prints(text: string): Promise<void>;
  printed(): string;
  /** Sends a signal, and waits for the end. */
  stop(signal: NodeJS.Signals): Promise<void>;
}

export function startScript(folder: string, script: string, how: Called = {}): Running {
  const [node, args, options] = called(folder, script, how);
  const child = spawn(node, args, { ...options, stdio: ["ignore", "pipe", "pipe"] });
  let text = "";
  let look = () => undefined as unknown;
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (data: Buffer) => {
      text += data.toString();
      look();
    });
  const exited = new Promise<void>((done) => child.on("exit", () => done()));
  return {
    pid: child.pid ?? 0,
    printed: () => text,
    prints: async (wanted) => {
      const found = new Promise<boolean>((done) => {
        look = () => text.includes(wanted) && done(true);
        look();
      });
      if (!(await Promise.race([found, exited.then(() => text.includes(wanted))])))
        throw new Error(`it ended without ${JSON.stringify(wanted)}: ${text}`);
    },
    stop: async (signal) => {
      child.kill(signal);
      await exited;
    },
  };
}
