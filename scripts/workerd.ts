/** Runs a bundle with plain workerd: for self-hosting, for tests and for benchmarks. */
import { spawn, type ChildProcess } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { freePort } from "./free-port.ts";
import { ROOT } from "./project.ts";
import { workerdConfig, type ServeOptions } from "./workerd-config.ts";

export interface Serving {
  readonly url: string;
  /** The address of each isolate; the first is `url`. */
  readonly urls: readonly string[];
  /** Where the caller answers; the same as `url` when there is none. */
  readonly callerUrl: string;
  readonly process: ChildProcess;
  /** Resolves when the process has gone, with its exit code; `null` when a signal ended it. */
  readonly exited: Promise<number | null>;
  /** Ends it (SIGTERM unless said otherwise) and waits until it has gone. */
  stop(signal?: NodeJS.Signals): Promise<void>;
}

/** So much of what workerd prints goes into the error when it does not start. */
const MOST_PRINTED = 4_000;

/** Starts workerd and waits until it takes connections, or throws with what it printed. */
export async function serve(options: ServeOptions): Promise<Serving> {
  const { host = "127.0.0.1", stateDir, onOutput } = options;
  const port = options.port ?? (await freePort());
  mkdirSync(stateDir, { recursive: true });
  const configDir = mkdtempSync(join(tmpdir(), "weir-"));
  const config = join(configDir, "config.capnp");
  const callerPort = options.caller === undefined ? port : await freePort();
  const others = await Promise.all(Array.from({ length: (options.isolates ?? 1) - 1 }, freePort));
  const ports = [port, ...others];
  writeFileSync(config, workerdConfig({ ...options, host, ports, callerPort }, configDir));
  const child = spawn(join(ROOT, "node_modules", ".bin", "workerd"), ["serve", config], {
    stdio: onOutput === undefined ? ["ignore", "inherit", "inherit"] : ["ignore", "pipe", "pipe"],
  });
  let printed = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream?.on("data", (data: Buffer) => {
      if (printed.length < MOST_PRINTED) printed += data.toString();
      onOutput?.(data.toString());
    });
  }
  const exited = new Promise<number | null>((done) => {
    // "close" and not "exit": by then all that it printed has been read.
    child.on("close", (code) => {
      rmSync(configDir, { recursive: true, force: true });
      done(code);
    });
  });
  const hostName = host.includes(":") ? `[${host}]` : host;
  const urls = ports.map((each) => `http://${hostName}:${each}`);
  const url = `http://${hostName}:${port}`;
  const callerUrl = `http://${hostName}:${callerPort}`;
  const isUp = await Promise.race([
    Promise.all(urls.map(answers)).then(() => true),
    exited.then(() => false),
  ]);
  if (!isUp)
    throw new Error(`workerd stopped before it served: ${printed === "" ? "it says why above" : printed}`);
  const stop = async (signal: NodeJS.Signals = "SIGTERM") => {
    child.kill(signal);
    await exited;
  };
  return { url, urls, callerUrl, process: child, exited, stop };
}

/** Resolves when the worker itself answers anything; workerd takes connections before it has read the worker. */
async function answers(url: string): Promise<true> {
  for (;;) {
    const isUp = await fetch(`${url}/healthz`).then(
      () => true,
      () => false,
    );
    if (isUp) return true;
    await new Promise((done) => setTimeout(done, 20));
  }
}
