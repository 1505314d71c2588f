/**
 * One server per folder: two servers on one folder would each admit the full limit. The lock is the operating
 * system's, taken by an SQLite database, so it ends with its process. The holder is written beside it for
 * error messages, and its child, which may survive a SIGKILL, so that it is stopped.
 */
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";

export interface StateLock {
  /** Records the process that uses the folder: the next server stops it if this process cannot. */
  worksBy(pid: number | undefined): void;
  release(): void;
}

/** The process with the lock, or the one that was killed with it. */
interface Holder {
  readonly pid: number;
  readonly since: string;
  readonly worker?: { readonly pid: number; readonly started: string };
}

const BUSY = 5;
/** A process that does not stop within this time is killed, in milliseconds. */
const PATIENCE_MS = 5_000;

/**
 * Locks the folder, and ends a process that a killed server has left there. @param instead ends the error: how to
 * get another folder
 * @throws Error when another server has it, with its process and start
 */
export async function lockState(
  stateDir: string,
  instead = "set STATE_DIR to another folder",
): Promise<StateLock> {
  // Keys may be addresses or names, so only the owner may read what is stored.
  mkdirSync(stateDir, { recursive: true, mode: 0o700 });
  const lock = new DatabaseSync(join(stateDir, "server.lock"));
  try {
    // Nothing is written, so no journal is needed.
    lock.exec("PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE");
  } catch (error) {
    lock.close();
    if ((error as { errcode?: unknown }).errcode !== BUSY) throw error;
    throw new Error(takenBy(stateDir, instead), { cause: error });
  }
  const left = holderOf(stateDir)?.worker;
  if (left !== undefined) await end(left);
  const holder: Holder = { pid: process.pid, since: new Date().toISOString() };
  write(stateDir, holder);
  let isHeld = true;
  return {
    worksBy: (pid) => {
      const started = pid === undefined ? undefined : startOf(pid);
      if (pid !== undefined && started !== undefined)
        write(stateDir, { ...holder, worker: { pid, started } });
    },
    release: () => {
      if (isHeld) lock.close();
      isHeld = false;
    },
  };
}

function takenBy(stateDir: string, instead: string): string {
  const holder = holderOf(stateDir);
  const who = holder === undefined ? "another process" : `process ${holder.pid}, since ${holder.since}`;
  return (
    `another server uses ${JSON.stringify(resolve(stateDir))} (${who}). Two servers on one folder would each admit ` +
    `the full limit: stop that one, or ${instead}`
  );
}

const holderFile = (stateDir: string) => join(stateDir, "server.json");

function write(stateDir: string, holder: Holder): void {
  const file = holderFile(stateDir);
  try {
    writeFileSync(`${file}.new`, `${JSON.stringify(holder)}\n`, { mode: 0o600 });
    renameSync(`${file}.new`, file);
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    const why = code === "ENOSPC" ? "its disk is full: free some space and start again" : message;
    throw new Error(`${JSON.stringify(resolve(file))} cannot be written: ${why}`, { cause: error });
  }
}

function holderOf(stateDir: string): Holder | undefined {
  try {
    return JSON.parse(readFileSync(holderFile(stateDir), "utf8")) as Holder;
  } catch {
    // It is missing, or was truncated by a power failure: then no process is left.
    return undefined;
  }
}

/** Ends a process unless its id has been reused since. */
async function end({ pid, started }: NonNullable<Holder["worker"]>): Promise<void> {
  const isThere = () => startOf(pid) === started;
  if (!isThere()) return;
  console.log(`A killed server has left process ${pid} running on this folder: stopping it first.`);
  process.kill(pid, "SIGTERM");
  const untilMs = performance.now() + PATIENCE_MS;
  while (isThere() && performance.now() < untilMs) await new Promise((done) => setTimeout(done, 20));
  if (isThere()) process.kill(pid, "SIGKILL");
  while (isThere()) await new Promise((done) => setTimeout(done, 20));
}

/** The start of a process, to distinguish processes with a reused id; `undefined`: it does not run. */
function startOf(pid: number): string | undefined {
  if (!existsSync("/proc/self/stat")) {
    const started = spawnSync("ps", ["-o", "lstart=", "-p", String(pid)], { encoding: "utf8" }).stdout.trim();
    return started === "" ? undefined : started;
  }
  try {
    const text = readFileSync(`/proc/${pid}/stat`, "utf8");
    // The name of the program comes second, in brackets, and may have any characters.
    const [state, ...fields] = text.slice(text.lastIndexOf(")") + 2).split(" ");
    const boot = readFileSync("/proc/sys/kernel/random/boot_id", "utf8").trim();
    return state === "Z" ? undefined : `${boot} ${fields[18]}`;
  } catch {
    return undefined;
  }
}
