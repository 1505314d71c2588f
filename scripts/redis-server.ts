/** Runs a private redis-server for development, tests and benchmarks. Its data is gone when it ends. */
import { spawn, spawnSync, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePort } from "./free-port.ts";

export interface RedisOptions {
  /** Absent: a free port. */
  readonly port?: number;
  /** Its working directory; absent: a temporary one that is removed when it ends. */
  readonly dir?: string;
  /** Further arguments of its command line. */
  readonly args?: readonly string[];
}

export interface RedisServer {
  readonly port: number;
  readonly process: ChildProcess;
  /** Resolves with the exit code when the process has ended; `null`: a signal ended it. */
  readonly exited: Promise<number | null>;
  /** Ends the process (SIGTERM by default), also when it is paused, and waits for its end. */
  stop(signal?: NodeJS.Signals): Promise<void>;
}

const HOST = "127.0.0.1";

/** When redis-server does not start, the error has about this many characters of what it printed. */
const MOST_PRINTED = 4_000;

/**
 * Starts an empty redis-server, and waits until it answers.
 *
 * @throws Error that says how to install it, or that has what it printed
 */
export async function startRedis(options: RedisOptions = {}): Promise<RedisServer> {
  ensureRedis();
  const port = options.port ?? (await freePort());
  const ownDir = options.dir === undefined ? mkdtempSync(join(tmpdir(), "weir-redis-")) : undefined;
  const args = ["--port", String(port), "--bind", HOST, "--dir", options.dir ?? ownDir ?? ""];
  const child = spawn(
    "redis-server",
    [...args, "--save", "", "--appendonly", "no", ...(options.args ?? [])],
    {
      stdio: ["ignore", "pipe", "pipe"],
    },
  );
  let printed = "";
  for (const stream of [child.stdout, child.stderr])
    stream.on("data", (data: Buffer) => {
      if (printed.length < MOST_PRINTED) printed += data.toString();
    });
  const exited = new Promise<number | null>((done) => {
    // "close" comes after "exit": by then all that the process printed has been read.
    child.on("close", (code) => {
      if (ownDir !== undefined) rmSync(ownDir, { recursive: true, force: true });
      done(code);
    });
  });
  const isUp = await Promise.race([answers(port, child.pid), exited.then(() => false)]);
  if (!isUp) throw new Error(`redis-server stopped before it served: ${printed}`);
  const stop = async (signal: NodeJS.Signals = "SIGTERM") => {
    child.kill(signal);
    // A paused process handles SIGTERM only after SIGCONT.
    child.kill("SIGCONT");
    await exited;
  };
  return { port, process: child, exited, stop };
}

/** Resolves when this process answers. Another Redis may answer on a port that was taken, so the id is compared. */
async function answers(port: number, processId: number | undefined): Promise<true> {
  for (;;) {
    if ((await processIdOf(port)) === processId) return true;
    await new Promise((done) => setTimeout(done, 20));
  }
}

/** The id of the process that serves Redis on this port; `undefined`: none answers. */
function processIdOf(port: number): Promise<number | undefined> {
  return new Promise((done) => {
    let received = "";
    const socket = connect(port, HOST, () => socket.write("INFO server\r\n"));
    socket.on("data", (data) => {
      received += data.toString();
      const [, processId] = /process_id:(\d+)\r\n/.exec(received) ?? [];
      // The reply to INFO starts with "$" and may come in parts. Any other reply is of another kind of server.
      if (processId === undefined && received.startsWith("$")) return;
      socket.destroy();
      done(processId === undefined ? undefined : Number(processId));
    });
    socket.on("error", () => done(undefined)).on("close", () => done(undefined));
  });
}

/**
 * Installs redis-server unless it is installed.
 *
 * @throws Error that says how to install it, when this machine cannot do that by itself
 */
export function ensureRedis(): void {
  if (isInstalled("redis-server")) return;
  const commands = installCommands();
  if (commands === undefined) throw new Error(HOW_TO_INSTALL);
  console.log(`redis-server is not installed; installing it: ${commands.install.join(" ")}`);
  if (runs(commands.install)) return;
  // On a machine whose package lists are missing or old, the package is not found.
  if (commands.update !== undefined) {
    console.log(`That failed; trying again after: ${commands.update.join(" ")}`);
    if (runs(commands.update) && runs(commands.install)) return;
  }
  throw new Error(`"${commands.install.join(" ")}" failed; see above. ${HOW_TO_INSTALL}`);
}

const HOW_TO_INSTALL = `redis-server is needed and not installed. Install it and run this again:
  Debian, Ubuntu:  sudo apt-get update && sudo apt-get install redis-server
  macOS:           brew install redis
  Windows:         Redis does not run on it; use WSL (wsl --install), and there what Ubuntu needs
  elsewhere:       redis-server, version 7 or newer, on the PATH`;

interface InstallCommands {
  readonly install: readonly string[];
  readonly update?: readonly string[];
}

/** The commands that install redis-server here without asking questions; `undefined`: there are none. */
function installCommands(): InstallCommands | undefined {
  if (process.platform === "darwin")
    return isInstalled("brew") ? { install: ["brew", "install", "redis"] } : undefined;
  if (process.platform !== "linux" || !isInstalled("apt-get")) return undefined;
  const isRoot = process.getuid?.() === 0;
  if (!isRoot && !isSilent("sudo", ["--non-interactive", "true"])) return undefined;
  const aptGet = isRoot ? ["apt-get"] : ["sudo", "--non-interactive", "apt-get"];
  return { install: [...aptGet, "install", "--yes", "redis-server"], update: [...aptGet, "update"] };
}

function isInstalled(tool: string): boolean {
  return isSilent(tool, ["--version"]);
}

function isSilent(tool: string, args: readonly string[]): boolean {
  return spawnSync(tool, args, { stdio: "ignore" }).status === 0;
}

function runs([tool = "", ...args]: readonly string[]): boolean {
  const env = { ...process.env, DEBIAN_FRONTEND: "noninteractive" };
  return spawnSync(tool, args, { stdio: "inherit", env }).status === 0;
}
