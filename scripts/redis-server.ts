/** Runs a private redis-server for development, tests and benchmarks. Its data is lost at the end. */
import { spawn, type ChildProcess } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePort } from "./free-port.ts";
import { ensureTool } from "./installed-tool.ts";

interface RedisOptions {
  readonly port?: number;
  /** Its working directory; absent: a temporary one that is removed at the end. */
  readonly dir?: string;
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

/** The most characters of redis-server's output in the error of a failed start. */
const MAX_PRINTED = 4_000;

/** Starts an empty redis-server, and waits until it answers. @throws Error with instructions or its output */
export async function startRedis(options: RedisOptions = {}): Promise<RedisServer> {
  ensureRedis();
  if (options.port !== undefined) return await startOn(options.port, options);
  for (;;)
    try {
      return await startOn(await freePort(), options);
    } catch (error) {
      // Another process has taken the port since it was free.
      if (!String(error).includes("Address already in use")) throw error;
    }
}

async function startOn(port: number, options: RedisOptions): Promise<RedisServer> {
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
      if (printed.length < MAX_PRINTED) printed += data.toString();
    });
  const exited = new Promise<number | null>((done) => {
    // "close" comes after "exit": by then all output has been read.
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

/** Resolves when this process answers. Compares ids, since another Redis may answer on a taken port. */
async function answers(port: number, processId: number | undefined): Promise<true> {
  for (;;) {
    if ((await processIdOf(port)) === processId) return true;
    await new Promise((done) => setTimeout(done, 20));
  }
}

function processIdOf(port: number): Promise<number | undefined> {
  return new Promise((done) => {
    let received = "";
    const socket = connect(port, HOST, () => socket.write("INFO server\r\n"));
    socket.on("data", (data) => {
      received += data.toString();
      const [, processId] = /process_id:(\d+)\r\n/.exec(received) ?? [];
      // The reply to INFO starts with "$" and may come in parts. Any other is of another kind of server.
      if (processId === undefined && received.startsWith("$")) return;
      socket.destroy();
      done(processId === undefined ? undefined : Number(processId));
    });
    socket.on("error", () => done(undefined)).on("close", () => done(undefined));
  });
}

/** Installs a missing redis-server. @throws Error with instructions, when this machine cannot do that */
export function ensureRedis(): void {
  ensureTool({
    command: "redis-server",
    apt: "redis-server",
    brew: "redis",
    elsewhere: [
      "Windows:         Redis does not run on it; use WSL (wsl --install), and there what Ubuntu needs",
      "elsewhere:       redis-server, version 7 or newer, on the PATH",
    ],
  });
}
