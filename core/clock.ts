/**
 * The only clock; all other code takes `nowMs` as an argument. In a deployed worker the clock stops during synchronous
 * code and moves with the next event, but locally it always moves, so each entry point reads it once.
 */
export function readClockMs(): number {
  return Date.now();
}

/** For libraries that want a `Date`. */
export function instantOf(atMs: number): Date {
  return new Date(atMs);
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
  /** The process runs whatever it has begun. In a worker a request may end at any moment, and what it was to do is lost. */
  readonly isLasting?: boolean;
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
 * Whether a request may settle a promise of another one, which then goes on in its own context. Not with a compatibility
 * date before 2024-10-14, nor under Cloudflare's plugin for vitest.
 */
const MAY_SETTLE =
  (globalThis as { Cloudflare?: Pick<typeof Cloudflare, "compatibilityFlags"> }).Cloudflare
    ?.compatibilityFlags["handle_cross_request_promise_resolution"] !== false;
const NO_TIME = Promise.resolve(0);
/** How often a request that waits looks by itself: the request that was to open the latch may have ended. */
const LOOK_MS = 250;

/**
 * Made and opened by one request of an isolate; others wait for that. Each waits for a promise and a timer of its own, since
 * the runtime warns of each request that has waited for another one's promise and left before it was settled.
 */
export class Latch {
  isOpen = false;
  readonly #wakes = new Set<() => void>();
  /** Where each cannot have a promise of its own. */
  readonly #opened: Promise<void> | undefined;

  constructor() {
    if (MAY_SETTLE) return;
    // Optimized code (V8 in workerd 1.20261023.1) makes promises that do not know their request; this function never does.
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#wakes.add(resolve);
    this.#opened = promise;
  }

  /** One that opens when `work` of this request ends. */
  static after(work: Promise<unknown>): Latch {
    const latch = new Latch();
    const open = () => latch.open();
    work.then(open, open);
    return latch;
  }

  open(): void {
    this.isOpen = true;
    for (const wake of this.#wakes) wake();
  }

  /** Waits until it is open, for up to `ms` milliseconds. Returns the time waited. */
  wait(time: Time, ms: number): Promise<number> {
    return time.isLasting === true ? this.#waitOnce(time, ms) : this.#waitLooking(time, ms);
  }

  /** Where no wake is lost: thousands of calls may wait in a process, so each costs one promise and one timer. */
  #waitOnce(time: Time, ms: number): Promise<number> {
    if (this.isOpen || ms <= 0) return NO_TIME;
    const sinceMs = time.nowMs();
    return new Promise((done) => {
      const wake = () => {
        cancel();
        this.#wakes.delete(wake);
        done(Math.min(ms, Math.max(0, time.nowMs() - sinceMs)));
      };
      const cancel = time.after(ms, () => {
        this.#wakes.delete(wake);
        done(ms);
      });
      this.#wakes.add(wake);
    });
  }

  async #waitLooking(time: Time, ms: number): Promise<number> {
    let leftMs = ms;
    while (!this.isOpen && leftMs > 0) leftMs -= await this.#look(time, Math.min(leftMs, LOOK_MS));
    return ms - leftMs;
  }

  async #look(time: Time, ms: number): Promise<number> {
    const sinceMs = time.nowMs();
    let isOver = false;
    let wake = () => {};
    const woken = new Promise<void>((done) => (wake = done));
    const cancel = time.after(ms, () => {
      isOver = true;
      wake();
    });
    if (this.#opened === undefined) this.#wakes.add(wake);
    // A race is made by this request, whoever wakes it: a promise of optimized code may not know its own.
    await Promise.race([this.#opened ?? woken, woken]);
    this.#wakes.delete(wake);
    cancel();
    // The clock may have been set meanwhile.
    return isOver ? ms : Math.min(ms, Math.max(0, time.nowMs() - sinceMs));
  }
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

/** Calls `onEnd` after `work`: when its promise is settled, if it is one, and also when it throws. */
export function untilEnd<Result>(
  work: () => Result | Promise<Result>,
  onEnd: () => void,
): Result | Promise<Result> {
  let answer: Result | Promise<Result>;
  try {
    answer = work();
  } catch (error) {
    onEnd();
    throw error;
  }
  if (answer instanceof Promise) void answer.then(onEnd, onEnd);
  else onEnd();
  return answer;
}

/** `work` with a value: at once if it is there. */
export function andThen<Value, Result>(
  value: Value | Promise<Value>,
  work: (value: Value) => Result,
): Result | Promise<Result> {
  return value instanceof Promise ? value.then(work) : work(value);
}

/**
 * A number from 0 to 1 that follows from the instant, and spreads what was told together: each holder has an instant of its
 * own, and a simulation repeats itself. The factor is the golden ratio in 32 bits: Knuth, The Art of Computer Programming,
 * volume 3, section 6.4.
 */
export function jitterAt(nowMs: number): number {
  return (Math.imul(nowMs, 0x9e3779b1) >>> 0) / 2 ** 32;
}

/** An unguessable random number from 0 (included) to 1 (not included). */
export function randomFraction(): number {
  return (crypto.getRandomValues(new Uint32Array(1))[0] ?? 0) / 2 ** 32;
}

const ID_LENGTH = 22;
const BASE64URL = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
/** Made when it is needed first: bundles that make no ids have none. */
let digits: Uint8Array | undefined;
/** Random text for 16 ids: asking the runtime for each takes longer than all else that an id costs. */
let random = "";

/** An unguessable id: 22 characters of base64url, which are 132 random bits. */
export function randomId(): string {
  if (random === "") {
    // Six bits of each byte. `btoa` of a text made of the bytes would take five times as long.
    const bytes = crypto.getRandomValues(new Uint8Array(16 * ID_LENGTH));
    const of = (digits ??= new TextEncoder().encode(BASE64URL));
    // `map` would take four times as long.
    for (let index = 0; index < bytes.length; index += 1) bytes[index] = of[(bytes[index] ?? 0) & 63] ?? 0;
    random = new TextDecoder().decode(bytes);
  }
  const id = random.slice(0, ID_LENGTH);
  random = random.slice(ID_LENGTH);
  return id;
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
export function unsleepingTime(isLasting: boolean): Time {
  return { nowMs: unsleepingClock(), after: (ms, work) => SYSTEM_TIME.after(ms, work), idle, isLasting };
}

/** Runs `work` after `ms` milliseconds if the process still runs, unless the returned function cancels it. */
export function idle(ms: number, work: () => void): () => void {
  const timer: unknown = setTimeout(work, Math.min(ms, MAX_TIMER_MS));
  // Timers that are numbers keep no process alive.
  if (typeof timer === "object" && timer !== null && "unref" in timer) (timer as NodeJS.Timeout).unref();
  return () => clearTimeout(timer as NodeJS.Timeout);
}

/**
 * The clock of a holder, of an isolate or of a region's object, for the lifetimes of its units. Its requests may read slightly different instants: the
 * runtime makes clocks coarse, stops them while code runs, and may move a request to another thread. So the largest
 * instant counts.
 *
 * If the clock is set back, it stops here until it has caught up, which makes lifetimes longer. That is harmless
 * within the margin at the end of a lifetime, in which nothing is spent. More is a jump: all units must be returned.
 */
export class HolderClock {
  latestMs = -Infinity;
  readonly #maxMarginMs: number;
  /** By how much the clock may be set back: the shortest margin of all held units. */
  #marginMs: number;

  constructor(maxMarginMs: number) {
    this.#maxMarginMs = maxMarginMs;
    this.#marginMs = maxMarginMs;
  }

  /** Takes a reading. Returns whether it is a jump, after which that reading counts. */
  read(readMs: number): boolean {
    if (readMs >= this.latestMs) {
      this.latestMs = readMs;
      return false;
    }
    if (this.latestMs - readMs <= this.#marginMs) return false;
    this.#restart(readMs);
    return true;
  }

  hold(forMs: number): void {
    this.#marginMs = Math.min(this.#marginMs, forMs);
  }

  release(): void {
    this.#marginMs = this.#maxMarginMs;
  }

  /**
   * Reads the clock in steps that a timer measures, which detects a clock that is repeatedly set back by a little: a
   * timer is never early. Returns whether the steps together are a jump.
   */
  steps(): (stepMs: number, readMs: number) => boolean {
    let [steppedMs, maxAheadMs] = [0, -Infinity];
    return (stepMs, readMs) => {
      steppedMs += stepMs;
      const aheadMs = readMs - steppedMs;
      const isBack = maxAheadMs - aheadMs > this.#marginMs;
      maxAheadMs = isBack ? aheadMs : Math.max(maxAheadMs, aheadMs);
      if (isBack) this.#restart(readMs);
      return isBack;
    };
  }

  #restart(readMs: number): void {
    this.latestMs = readMs;
    this.release();
  }
}
