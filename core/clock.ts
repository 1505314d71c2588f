/**
 * The only place that reads a clock. All other code takes `nowMs` as an argument.
 *
 * In a deployed worker the clock stands still while synchronous code runs, and moves when the next event comes in.
 * Locally it always moves. So each entry point reads the clock once.
 *
 * @returns milliseconds since the Unix epoch, an integer
 */
export function readClockMs(): number {
  return Date.now();
}

/** A clock and timers, for code that has to wait. The simulation has its own. */
export interface Time {
  /** Milliseconds since the Unix epoch. */
  nowMs(): number;
  /** Runs `work` after `ms` milliseconds. The function that it returns cancels that. */
  after(ms: number, work: () => void): () => void;
}

/** The real clock and the real timers. */
export const SYSTEM_TIME: Time = {
  nowMs: readClockMs,
  after(ms, work) {
    const timer = setTimeout(work, ms);
    return () => clearTimeout(timer);
  },
};

/**
 * Waits until `answer` settles, but at most `ms` milliseconds. Another request asked for that answer, and the runtime
 * may have ended that request: then the answer never comes. With `undefined` there is nothing to wait for.
 */
export async function orTimeout(answer: Promise<unknown> | undefined, time: Time, ms: number): Promise<void> {
  let cancel = () => {};
  const timeout = new Promise<void>((done) => (cancel = time.after(ms, done)));
  await Promise.race([answer, timeout]);
  cancel();
}

/** A random number from 0, included, to 1, not included. Nobody can guess it. */
export function randomFraction(): number {
  return (crypto.getRandomValues(new Uint32Array(1))[0] ?? 0) / 2 ** 32;
}

/**
 * This and `randomFraction` are the only places that make randomness. It is for ids that nobody can guess.
 *
 * @returns 128 random bits as 22 characters of base64url
 */
export function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}
