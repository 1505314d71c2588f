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

/** An instant as RFC 3339 writes it, in UTC. */
export function instantText(atMs: number): string {
  return new Date(atMs).toISOString();
}

/** A clock and timers, for code that has to wait. The simulation has its own. */
export interface Time {
  /** Milliseconds since the Unix epoch. */
  nowMs(): number;
  /** Runs `work` after `ms` milliseconds. The function that it returns cancels that. */
  after(ms: number, work: () => void): () => void;
  /** The same, for work that is no reason for a process to go on. Absent: there is no process to keep. */
  idle?(ms: number, work: () => void): () => void;
}

/** The longest that a timer takes, in milliseconds. One that is longer would ring at once. */
const MAX_TIMER_MS = 2_147_483_647;

/** The real clock and the real timers. */
export const SYSTEM_TIME: Time = {
  nowMs: readClockMs,
  after(ms, work) {
    const timer = setTimeout(work, Math.min(ms, MAX_TIMER_MS));
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

/** A leap of the wall clock counts when it is longer than this, in milliseconds: it is more than any rounding. */
const LEAP_MS = 10;

/**
 * A clock for whoever holds units in a process that may sleep. It goes on at least as fast as the steady clock, so a wall
 * clock that is put back makes no lifetime longer; and it leaps with the wall clock, which goes on while a machine sleeps
 * and its steady clock stands still. A wall clock that is put forward only ends lifetimes early. As long as the wall clock
 * shows one millisecond, it says the same.
 */
export function unsleepingClock(
  wallMs: () => number = readClockMs,
  steadyMs: () => number = () => performance.now(),
): () => number {
  const beganMs = wallMs() - steadyMs();
  let [leastMs, leaptMs] = [0, 0];
  let [lastWallMs, lastMs] = [Number.NaN, Number.NaN];
  return () => {
    const wall = wallMs();
    // A hot key asks some hundred times in a millisecond, and to read two clocks takes longer than to decide.
    if (wall === lastWallMs) return lastMs;
    lastWallMs = wall;
    const steady = steadyMs();
    const skewMs = wall - steady - beganMs;
    leastMs = Math.min(leastMs, skewMs);
    if (skewMs - leastMs > LEAP_MS) {
      leaptMs += skewMs - leastMs;
      leastMs = skewMs;
    }
    lastMs = Math.floor(beganMs + steady + leaptMs);
    return lastMs;
  };
}

/** The real timers with such a clock. Those of `idle` do not keep a process alive. */
export function unsleepingTime(): Time {
  return { nowMs: unsleepingClock(), after: (ms, work) => SYSTEM_TIME.after(ms, work), idle };
}

/** Runs `work` after `ms` milliseconds, if the process lives so long. The function that it returns cancels that. */
export function idle(ms: number, work: () => void): () => void {
  const timer: unknown = setTimeout(work, Math.min(ms, MAX_TIMER_MS));
  // Where timers are numbers, nothing waits for them.
  if (typeof timer === "object" && timer !== null && "unref" in timer) (timer as NodeJS.Timeout).unref();
  return () => clearTimeout(timer as NodeJS.Timeout);
}
