/** Runs a bundle with plain workerd, for self-hosting, tests and benchmarks. */
import { spawn, type ChildProcess } from "node:child_process";
import { randomUUID } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { removeEmptyDatabases } from "./empty-databases.ts";
import { freePort } from "./free-port.ts";
import { requireFree } from "./listening.ts";
import { ROOT } from "./project.ts";
import { lockState, type StateLock } from "./state-lock.ts";
import { giveAllBack } from "./stopping.ts";
import { workerdConfig, type ServeOptions } from "./workerd-config.ts";

export interface Serving {
  readonly url: string;
  /** The address of each isolate. The first is `url`. */
  readonly urls: readonly string[];
  /** The address of the caller; `url` when there is none. */
  readonly callerUrl: string;
  readonly process: ChildProcess;
  /** Resolves with the exit code when the process has ended; `null`: a signal ended it. */
  readonly exited: Promise<number | null>;
  /** Lets isolates give their units back, and objects write what they know: then nothing is lost when it stops. */
  rest(): Promise<void>;
  /** Ends the process (SIGTERM by default, and SIGKILL when it has not ended after 3 s), and waits for its end. */
  stop(signal?: NodeJS.Signals): Promise<void>;
}

/**
 * How long workerd may go on with the requests that are under way when it is asked to end, in milliseconds. It would do so
 * for as long as a socket is open, and containers are killed after 10 s.
 */
const DRAIN_MS = 3_000;
/** When workerd does not start, the error has about this many characters of what it printed. */
const MAX_PRINTED = 4_000;

/**
 * Starts workerd, and waits until the worker answers on every isolate's address.
 *
 * @throws Error with what workerd printed, if it ends before that; or that another server has the folder or the port
 */
export async function serve(options: ServeOptions): Promise<Serving> {
  const lock = await lockState(options.stateDir);
  try {
    return await serveLocked(options, lock);
  } catch (error) {
    lock.release();
    throw error;
  }
}

async function serveLocked(options: ServeOptions, lock: StateLock): Promise<Serving> {
  const { host = "127.0.0.1", stateDir, onOutput } = options;
  const port = options.port ?? (await freePort());
  await requireFree(host, port);
  removeEmptyDatabases(stateDir);
  const configDir = mkdtempSync(join(tmpdir(), "weir-"));
  const config = join(configDir, "config.capnp");
  const callerPort = options.caller === undefined ? port : await freePort();
  const others = await Promise.all(Array.from({ length: (options.isolates ?? 1) - 1 }, freePort));
  const ports = [port, ...others];
  const stopSecret = randomUUID();
  writeFileSync(config, workerdConfig({ ...options, host, ports, callerPort, stopSecret }, configDir), {
    mode: 0o600,
  });
  const child = spawn(join(ROOT, "node_modules", ".bin", "workerd"), ["serve", config], {
    // Ctrl-C goes to the whole group of a terminal, and whoever serves may have things to do before the end.
    detached: options.isApart === true,
    stdio: onOutput === undefined ? ["ignore", "inherit", "inherit"] : ["ignore", "pipe", "pipe"],
  });
  lock.worksBy(child.pid);
  let printed = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream?.on("data", (data: Buffer) => {
      if (printed.length < MAX_PRINTED) printed += data.toString();
      onOutput?.(data.toString());
    });
  }
  const exited = new Promise<number | null>((done) => {
    // "close" comes after "exit": by then all that the process printed has been read.
    child.on("close", (code) => {
      rmSync(configDir, { recursive: true, force: true });
      lock.release();
      done(code);
    });
  });
  const hostName = host.includes(":") ? `[${host}]` : host;
  const urls = ports.map((each) => `http://${hostName}:${each}`);
  const url = `http://${hostName}:${port}`;
  const callerUrl = `http://${hostName}:${callerPort}`;
  const ended = new AbortController();
  void exited.then(() => ended.abort());
  const areUp = await Promise.all(urls.map((each) => answers(each, ended.signal)));
  if (areUp.includes(false))
    throw new Error(`workerd stopped before it served: ${printed === "" ? "it says why above" : printed}`);
  const stop = async (signal: NodeJS.Signals = "SIGTERM") => {
    child.kill(signal);
    const late = setTimeout(() => child.kill("SIGKILL"), DRAIN_MS);
    await exited;
    clearTimeout(late);
  };
  const rest = () => giveAllBack(urls, stateDir, stopSecret);
  return { url, urls, callerUrl, process: child, exited, rest, stop };
}

/**
 * Resolves when the worker answers, whatever it says. workerd takes connections before it has read the worker.
 *
 * @returns whether it answered before it ended
 */
async function answers(url: string, ended: AbortSignal): Promise<boolean> {
  // Who went on asking would keep this process, which is to end with what it serves.
  while (!ended.aborted) {
    const isUp = await fetch(`${url}/healthz`).then(
      () => true,
      () => false,
    );
    if (isUp) return true;
    await new Promise((done) => setTimeout(done, 20));
  }
  return false;
}
