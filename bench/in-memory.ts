/** Counts how long objects are in memory, which timers keep them there, and what is logged. */

/** An idle object leaves memory after this many milliseconds. */
const LEAVES_AFTER_MS = 10_000;

/** How long objects were active, and how long they stayed in memory. */
export class TimeInMemory {
  readonly #inMemoryUntilMs = new Map<string, number>();
  #activeMs = 0;
  #awakeMs = 0;

  get sums() {
    return { activeMs: this.#activeMs, awakeMs: this.#awakeMs };
  }

  /** How long an object has worked. */
  worked(name: string, nowMs: number, ms: number): void {
    this.#activeMs += ms;
    const sinceMs = Math.max(nowMs - ms, this.#inMemoryUntilMs.get(name) ?? 0);
    this.#awakeMs += nowMs + LEAVES_AFTER_MS - sinceMs;
    this.#inMemoryUntilMs.set(name, nowMs + LEAVES_AFTER_MS);
  }

  /** The names of objects that leave memory. */
  leaving(nowMs: number): string[] {
    const names = [...this.#inMemoryUntilMs].filter(([, untilMs]) => untilMs <= nowMs).map(([name]) => name);
    for (const name of names) this.#inMemoryUntilMs.delete(name);
    return names;
  }
}

let isInObject = false;
const pending = new Set<unknown>();

/** Calls an object: the timers that it sets before it waits for anything count as its own. */
export function whileInObject<Result>(work: () => Result): Result {
  isInObject = true;
  try {
    return work();
  } finally {
    isInObject = false;
  }
}

/** How many timers of objects have not run. */
export function pendingTimers(): number {
  return pending.size;
}

/** From this length on a timer of the isolate runs by the clock that is put on: that before counts are sent. */
const LONG_MS = 5_000;
/** How long what a timer began gets to reach its object. */
const SETTLES_MS = 10;
const long = new Map<unknown, { readonly atMs: number; readonly work: () => void }>();

/** Wraps the timers of this isolate. */
export function watchTimers(): void {
  const { setTimeout: set, clearTimeout: clear } = globalThis;
  const watched = (work: () => void, ms = 0) => {
    const isOfObject = isInObject;
    const timer: unknown = set(() => {
      pending.delete(timer);
      long.delete(timer);
      work();
    }, ms);
    if (isOfObject) pending.add(timer);
    else if (ms >= LONG_MS) long.set(timer, { atMs: Date.now() + ms, work });
    return timer;
  };
  Reflect.set(globalThis, "setTimeout", watched);
  Reflect.set(globalThis, "clearTimeout", (timer: never) => {
    pending.delete(timer);
    long.delete(timer);
    clear(timer);
  });
}

/** Runs the isolate's long timers that are due first, until an instant. Returns when they were due; `undefined`: none is. */
export async function runLongTimers(
  untilMs: number,
  putClockOn: (atMs: number) => void,
): Promise<number | undefined> {
  const atMs = Math.min(...[...long.values()].map((each) => each.atMs));
  if (!(atMs <= untilMs)) return undefined;
  putClockOn(atMs);
  for (const [timer, { atMs: dueMs, work }] of long)
    if (dueMs <= atMs) {
      clearTimeout(timer as never);
      work();
    }
  await new Promise((done) => setTimeout(done, SETTLES_MS));
  return atMs;
}

let lines = 0;

/** How many lines were logged: each is an event. */
export function logLines(): number {
  return lines;
}

/** Wraps the console. */
export function watchLogs(): void {
  for (const level of ["log", "info", "warn", "error"] as const) {
    const write = console[level].bind(console);
    console[level] = (...args: unknown[]) => {
      lines += 1;
      write(...args);
    };
  }
}
