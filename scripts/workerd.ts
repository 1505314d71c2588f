/** Runs a bundle with plain workerd, for self-hosting, tests and benchmarks. */
import { type ChildProcess, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { existsSync, mkdtempSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { STOP_HEADER } from "../worker/http/stop-header.ts";
import { freePort } from "./free-port.ts";
import { requireFree } from "./listening.ts";
import { ROOT } from "./project.ts";
import { lockState, type StateLock } from "./state-lock.ts";
import { type ServeOptions, workerdConfig } from "./workerd-config.ts";

export interface Serving {
  readonly url: string;
  readonly urls: readonly string[];
  /** The address of the caller; `url` when there is none. */
  readonly callerUrl: string;
  readonly process: ChildProcess;
  /** Resolves with the exit code when the process has ended; `null`: a signal ended it. */
  readonly exited: Promise<number | null>;
  /** Lets isolates return their units, and objects write their state: then stopping loses nothing. */
  rest(): Promise<void>;
  /** Ends the process (SIGTERM by default, SIGKILL after 3 s more), and waits for its end. */
  stop(signal?: NodeJS.Signals): Promise<void>;
}

/** Milliseconds to finish open requests: workerd waits for sockets, and containers are killed after 10 s. */
const DRAIN_MS = 3_000;
/** The most characters of workerd's output in the error of a failed start. */
const MAX_PRINTED = 4_000;

/**
 * Starts workerd, and waits until the worker answers on every isolate's address.
 * @throws Error with workerd's output if it ends before that, or if another server has the folder or the port
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
  const child = spawn(
    join(ROOT, "node_modules", ".bin", "workerd"),
    ["serve", config, ...((options.tail ?? options.analytics) ? ["--experimental"] : [])],
    {
      // Ctrl-C goes to the terminal's process group, and the server may have work to do before the end.
      detached: options.isApart === true,
      stdio: onOutput === undefined ? ["ignore", "inherit", "inherit"] : ["ignore", "pipe", "pipe"],
    },
  );
  lock.worksBy(child.pid);
  let printed = "";
  for (const stream of [child.stdout, child.stderr]) {
    stream?.on("data", (data: Buffer) => {
      if (printed.length < MAX_PRINTED) printed += data.toString();
      onOutput?.(data.toString());
    });
  }
  const exited = new Promise<number | null>((done) => {
    // "close" comes after "exit": by then all output has been read.
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
    throw new Error(`workerd stopped before it served: ${printed === "" ? "see above" : printed}`);
  const stop = async (signal: NodeJS.Signals = "SIGTERM") => {
    child.kill(signal);
    const late = setTimeout(() => child.kill("SIGKILL"), DRAIN_MS);
    await exited;
    clearTimeout(late);
  };
  const rest = () => giveAllBack(urls, stateDir, stopSecret);
  return { url, urls, callerUrl, process: child, exited, rest, stop };
}

/** Whether the worker answered before it ended. workerd takes connections before it has read the worker. */
async function answers(url: string, ended: AbortSignal): Promise<boolean> {
  // Further calls would keep this process alive, which is to end with the server.
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

/**
 * The file of an object, by its id. workerd (1.20261023.1) makes it before any of the object's code runs, and
 * never deletes it, even after `deleteAll`. So reading a key costs a page of 4 KiB for good. Cloudflare
 * removes an object that stores nothing.
 */
const OBJECT_FILE = /^[0-9a-f]{64}\.sqlite$/;
/** One page of SQLite has the header and no table: the first table would take a second page. */
const PAGE_BYTES = 4_096;

/** Removes these files. No workerd may run on the folder: it would write to a deleted file. */
function removeEmptyDatabases(stateDir: string): void {
  for (const folder of readdirSync(stateDir, { withFileTypes: true })) {
    if (!folder.isDirectory()) continue;
    for (const name of readdirSync(join(stateDir, folder.name))) {
      const path = join(stateDir, folder.name, name);
      // A log (`-wal`) with data not in the file shows that the object was killed, or is open.
      if (OBJECT_FILE.test(name) && !existsSync(`${path}-wal`) && statSync(path).size === PAGE_BYTES)
        rmSync(path);
    }
  }
}

/** Milliseconds after its last write at which an object's storage is surely complete. */
const AHEAD_MS = 120_000;
/** The process is killed after this time, in milliseconds. */
export const MAX_MS = 5_000;
const OBJECT_OR_LOG = /^(?<id>[0-9a-f]{64})\.sqlite(-wal)?$/;

/** Announces the end at each address: isolates return their units, and objects write their state. */
export async function giveAllBack(urls: readonly string[], stateDir: string, secret: string): Promise<void> {
  const signal = AbortSignal.timeout(MAX_MS);
  const announce = (url: string, ids: readonly string[]) =>
    fetch(url, { method: "POST", headers: { [STOP_HEADER]: secret }, body: JSON.stringify(ids), signal });
  await Promise.allSettled(urls.map((url) => announce(url, [])));
  const [first] = urls;
  if (first !== undefined) await Promise.allSettled([announce(first, activeObjects(stateDir))]);
}

function activeObjects(stateDir: string): string[] {
  const sinceMs = Date.now() - AHEAD_MS;
  const ids = new Set<string>();
  for (const folder of readdirSync(stateDir, { withFileTypes: true })) {
    // Objects of other classes write before they answer.
    if (!folder.isDirectory() || !folder.name.endsWith("-LimiterObject")) continue;
    for (const name of readdirSync(join(stateDir, folder.name))) {
      const id = OBJECT_OR_LOG.exec(name)?.groups?.["id"];
      // workerd removes the log of an object that it drops, at any moment.
      const file = id && statSync(join(stateDir, folder.name, name), { throwIfNoEntry: false });
      if (id !== undefined && file && file.mtimeMs > sinceMs) ids.add(id);
    }
  }
  return [...ids];
}
