/**
 * The only clock; all other code takes `nowMs` as an argument. In a deployed worker the clock stops during synchronous
 * code and moves with the next event, but locally it always moves, so each entry point reads it once.
 */
export function readClockMs(): number {
  return Date.now();
}

export function instantText(atMs: number): string {
  return new Date(atMs).toISOString();
}

/** A clock and timers. The simulation has its own. */
export interface Time {
  nowMs(): number;
  /** Runs `work` after `ms` milliseconds, unless the returned function cancels it. */
  after(ms: number, work: () => void): () => void;
  /** The same, without keeping the process alive. Absent: there is no process to keep. */
  idle?(ms: number, work: () => void): () => void;
}

/** A longer timer would run at once. */
const MAX_TIMER_MS = 2_147_483_647;

export const SYSTEM_TIME: Time = {
  nowMs: readClockMs,
  after(ms, work) {
    const timer = setTimeout(work, Math.min(ms, MAX_TIMER_MS));
    return () => clearTimeout(timer);
  },
};

/** Waits for `answer`, for up to `ms` milliseconds: after the end of its request it never settles. */
export async function orTimeout(answer: Promise<unknown> | undefined, time: Time, ms: number): Promise<void> {
  let cancel = () => {};
  const timeout = new Promise<void>((done) => (cancel = time.after(ms, done)));
  await Promise.race([answer, timeout]);
  cancel();
}

/**
 * A promise that other requests of the isolate may wait for, each with a timer of its own. The runtime notes with a promise
 * which request made it, so that whoever waits goes on in his own request. Optimized code (V8 in workerd 1.20261023.1)
 * makes the promises of `new Promise` and of async functions without that note. Where the flag
 * `handle_cross_request_promise_resolution` is off, as in Cloudflare's plugin for vitest, whoever waits for such a promise
 * goes on in the request that settles it, and fails.
 */
export function shared<Answer>(answer: Promise<Answer>): Promise<Answer> {
  // oxlint-disable-next-line unicorn/no-single-promise-in-promise-methods -- race() notes the request.
  return Promise.race([answer]);
}

export class DeadlineError extends Error {}

export function overdue(deadlineMs: number): Error {
  return new DeadlineError(`deadline of ${deadlineMs} ms passed`);
}

/** Waits until the deadline, shared by both attempts, if the first one's error may be repeated. A later answer is dropped. */
export function inTime<Result>(
  time: Time,
  deadlineMs: number,
  attempt: () => Promise<Result>,
  { mayRepeat = () => false, onDeadline }: Attempts = {},
): Promise<Result> {
  return new Promise((resolve, reject) => {
    let isOver = false;
    const cancel = time.after(deadlineMs, () => {
      isOver = true;
      onDeadline?.();
      reject(overdue(deadlineMs));
    });
    const again = (error: unknown): Promise<Result> => {
      if (isOver || !mayRepeat(error)) throw error;
      return attempt();
    };
    attempt().catch(again).then(resolve, reject).finally(cancel);
  });
}

export interface Attempts {
  readonly mayRepeat?: ((error: unknown) => boolean) | undefined;
  readonly onDeadline?: (() => void) | undefined;
}

/** `work` with a value: at once if it is there. */
export function andThen<Value, Result>(
  value: Value | Promise<Value>,
  work: (value: Value) => Result,
): Result | Promise<Result> {
  return value instanceof Promise ? value.then(work) : work(value);
}

/** An unguessable random number from 0 (included) to 1 (not included). */
export function randomFraction(): number {
  return (crypto.getRandomValues(new Uint32Array(1))[0] ?? 0) / 2 ** 32;
}

/** 128 random bits as 22 characters of base64url, for unguessable ids. */
export function randomId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return btoa(String.fromCharCode(...bytes))
    .replaceAll("+", "-")
    .replaceAll("/", "_")
    .replaceAll("=", "");
}

/** The shortest leap of the wall clock that counts: longer than any rounding. */
const LEAP_MS = 10;

/**
 * A clock for units held in a process that may sleep. It runs at least as fast as the steady clock, so a wall clock
 * set back extends no lifetime. It leaps with the wall clock, since the steady one stops while a machine sleeps.
 */
export function unsleepingClock(
  wallMs: () => number = readClockMs,
  steadyMs: () => number = () => performance.now(),
): () => number {
  const beganMs = wallMs() - steadyMs();
  let [minSkewMs, leaptMs] = [0, 0];
  let [lastWallMs, lastMs] = [Number.NaN, Number.NaN];
  return () => {
    const wall = wallMs();
    // A hot key reads it some hundred times in a millisecond, and reading two clocks takes longer than deciding.
    if (wall === lastWallMs) return lastMs;
    lastWallMs = wall;
    const steady = steadyMs();
    const skewMs = wall - steady - beganMs;
    minSkewMs = Math.min(minSkewMs, skewMs);
    if (skewMs - minSkewMs > LEAP_MS) {
      leaptMs += skewMs - minSkewMs;
      minSkewMs = skewMs;
    }
    lastMs = Math.floor(beganMs + steady + leaptMs);
    return lastMs;
  };
}

/** The real timers with such a clock. Those of `idle` do not keep a process alive. */
export function unsleepingTime(): Time {
  return { nowMs: unsleepingClock(), after: (ms, work) => SYSTEM_TIME.after(ms, work), idle };
}

/** Runs `work` after `ms` milliseconds if the process still runs, unless the returned function cancels it. */
export function idle(ms: number, work: () => void): () => void {
  const timer: unknown = setTimeout(work, Math.min(ms, MAX_TIMER_MS));
  // Timers that are numbers keep no process alive.
  if (typeof timer === "object" && timer !== null && "unref" in timer) (timer as NodeJS.Timeout).unref();
  return () => clearTimeout(timer as NodeJS.Timeout);
}
