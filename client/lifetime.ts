/** What happens to units that a client holds when its process ends. */

/** The parts of Node's `process` that are used. Deno and Bun have them too; a worker has none. */
interface ProcessLike {
  on?(event: "beforeExit" | "SIGTERM", listener: () => void): unknown;
  off?(event: "beforeExit" | "SIGTERM", listener: () => void): unknown;
  listenerCount?(event: "SIGTERM"): number;
  kill?(pid: number, signal: "SIGTERM"): unknown;
  readonly pid?: number;
}

/** Whoever holds units. */
export interface Closing {
  readonly isHolding: boolean;
  close(): Promise<void>;
  /** Gives back what is held, and may hold again. */
  rest(): Promise<void>;
}

/** A process that is told to end does not wait longer than this for units to go back, in milliseconds. */
const MOST_MS = 1_000;

const living = new Set<Closing>();
let isListening = false;

/**
 * From now on the units go back when the process ends: because it has nothing more to do, or on SIGTERM. A listener to
 * SIGTERM keeps a process from ending, so when no other one listens, the process is ended here.
 *
 * @returns ends that
 */
export function endWithProcess(closing: Closing): () => void {
  living.add(closing);
  const own = (globalThis as { readonly process?: ProcessLike }).process;
  if (!isListening && own?.on !== undefined && own.kill !== undefined) {
    isListening = true;
    listen(own);
  }
  return () => living.delete(closing);
}

function listen(own: ProcessLike): void {
  own.on?.("beforeExit", () => {
    // What goes back here keeps the process for a moment, and then it comes by again.
    for (const each of living) if (each.isHolding) void each.rest();
  });
  const onSigterm = () => {
    const closed = Promise.allSettled([...living].map((each) => each.close()));
    void Promise.race([closed, new Promise((done) => setTimeout(done, MOST_MS))]).then(() => {
      own.off?.("SIGTERM", onSigterm);
      if (own.listenerCount?.("SIGTERM") === 0 && own.pid !== undefined) own.kill?.(own.pid, "SIGTERM");
    });
  };
  own.on?.("SIGTERM", onSigterm);
}
