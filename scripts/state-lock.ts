/**
 * One server per folder: two servers on one folder would each admit the full limit.
 *
 * The lock is one of the operating system's, which a database of SQLite takes. So it ends with its process, however
 * that ends, and the file that is left means nothing. The holder is written beside it, for error messages. Its child
 * may survive a SIGKILL and still work on the folder: so that is written too, and stopped.
 */
import { spawnSync } from "node:child_process";
import { existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { DatabaseSync } from "node:sqlite";

/** A folder that no other server can have. */
export interface StateLock {
  /** Records which process works on the folder: the next server stops it, if this process cannot. */
  worksBy(pid: number | undefined): void;
  release(): void;
}

/** The process with the lock, or the one that was killed with it. */
interface Holder {
  readonly pid: number;
  readonly since: string;
  readonly worker?: { readonly pid: number; readonly started: string };
}

/** SQLite's SQLITE_BUSY. */
const BUSY = 5;
/** A process that does not stop within this time is killed, in milliseconds. */
const PATIENCE_MS = 5_000;

/**
 * Takes the folder, which is made if it is missing, and ends what a killed server has left at work there.
 *
 * @param name what errors call the folder
 * @throws Error when another server has it, with who that is and since when
 */
export async function lockState(stateDir: string, name = "STATE_DIR"): Promise<StateLock> {
  // Keys may be addresses or names: what is stored of them is for the owner of the folder alone.
  mkdirSync(stateDir, { recursive: true, mode: 0o700 });
  const lock = new DatabaseSync(join(stateDir, "server.lock"));
  try {
    // Nothing is written, so there is nothing to keep a journal of.
    lock.exec("PRAGMA journal_mode = MEMORY; BEGIN EXCLUSIVE");
  } catch (error) {
    lock.close();
    if ((error as { errcode?: unknown }).errcode !== BUSY) throw error;
    throw new Error(takenBy(stateDir, name), { cause: error });
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

function takenBy(stateDir: string, name: string): string {
  const holder = holderOf(stateDir);
  const who = holder === undefined ? "another process" : `process ${holder.pid}, since ${holder.since}`;
  return (
    `${name} is ${JSON.stringify(resolve(stateDir))}: another server uses it (${who}). Two servers on one folder ` +
    "would each admit the full limit: stop that one, or set another folder"
  );
}

const holderFile = (stateDir: string) => join(stateDir, "server.json");

function write(stateDir: string, holder: Holder): void {
  const file = holderFile(stateDir);
  writeFileSync(`${file}.new`, `${JSON.stringify(holder)}\n`, { mode: 0o600 });
  renameSync(`${file}.new`, file);
}

function holderOf(stateDir: string): Holder | undefined {
  try {
    return JSON.parse(readFileSync(holderFile(stateDir), "utf8")) as Holder;
  } catch {
    // It is missing, or was cut off when the machine lost power: then nothing of it runs.
    return undefined;
  }
}

/** Ends a process, if it is still the one that was started then: its id may be another's by now. */
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

/** When a process was started, as text that no other process of the same id has; `undefined`: it does not run. */
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
