/**
 * The only place that reads a clock. Everything below takes `nowMs` as an argument.
 *
 * Deployed, the clock stands still within one synchronous run and moves at every entry; locally it
 * always moves. So each entry reads it once.
 *
 * @returns milliseconds since the Unix epoch, an integer
 */
export function readClockMs(): number {
  return Date.now();
}

/** A clock and timers, for what has to wait. A simulation has its own. */
export interface Time {
  nowMs(): number;
  /** Does something later, unless what it returns is called before. */
  after(ms: number, work: () => void): () => void;
}

export const SYSTEM_TIME: Time = {
  nowMs: readClockMs,
  after(ms, work) {
    const timer = setTimeout(work, ms);
    return () => clearTimeout(timer);
  },
};

/** Waits for an answer that another request asked for, but not for ever: that request may be no more. */
export async function orTimeout(answer: Promise<unknown> | undefined, time: Time, ms: number): Promise<void> {
  let cancel = () => {};
  const timeout = new Promise<void>((done) => (cancel = time.after(ms, done)));
  await Promise.race([answer, timeout]);
  cancel();
}

/**
 * The only place that makes randomness, for ids that nobody can guess.
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
