import { jointWaitMs, type Queued } from "../../core/accounts/wait-times.ts";
import type { KeyState } from "../keys/key-state.ts";

/** A caller that waits for units of a key. */
export interface Waiter extends Queued {
  /** When the caller began to wait. */
  readonly sinceMs: number;
  /**
   * Tries to answer the caller. `undefined`: it is answered, and leaves the line. Otherwise the milliseconds until the
   * next try can succeed; `Infinity`: no instant is known.
   */
  attempt(nowMs: number): number | undefined;
  /** Answers the caller for the last time: its wait is over. */
  giveUp(nowMs: number): void;
}

/** The part of an `AbortSignal` by which a waiting caller leaves. */
export type LeaveSignal = Pick<AbortSignal, "aborted" | "addEventListener">;

/** A caller that waits until a key has no leases. */
interface Idler {
  /** When it stops waiting. */
  readonly untilMs: number;
  resolve(): void;
}

/** All that wait for one key. */
interface Line {
  readonly waiters: Waiter[];
  readonly idlers: Set<Idler>;
  timer: ReturnType<typeof setTimeout> | undefined;
  /** Ends the pin that keeps the key in memory while callers wait for it. */
  readonly unpin: () => void;
}

/** No timer runs longer than this, in milliseconds: it fires early then, and `serve` sets the next one. */
const LONGEST_TIMER_MS = 60_000;

/**
 * The callers that wait, with one line for each key. A line is served strictly in order of arrival: only its first
 * caller is tried, so requests for few units never starve a request for many. Nothing is polled. Every operation that
 * may free units calls `serve`. Other changes come with time alone: a lease expires, a quota refills, a wait ends. For
 * these, each key has one timer, set to the next such instant. The lines are in memory only, since a crash also ends
 * the calls that wait.
 */
export class WaitQueue {
  readonly #lines = new Map<KeyState, Line>();
  readonly #toNow: (keyState: KeyState) => number;

  /** @param toNow debits and frees what has expired by now, and returns the time in milliseconds */
  constructor(toNow: (keyState: KeyState) => number) {
    this.#toNow = toNow;
  }

  /** The callers that wait for units of the key, the first one first. */
  waitersOf(keyState: KeyState): readonly Waiter[] {
    return this.#lines.get(keyState)?.waiters ?? [];
  }

  /**
   * Waits in line for an answer. `answerAt` is called while the caller is first in line, and a last time when its wait
   * is over, wherever it stands then.
   *
   * @param answerAt the answer at an instant; `undefined`: not yet. When `isLast` is true it must return an answer. If
   * it throws, only this promise rejects
   * @param leaving when `signal` is aborted, the caller leaves the line and is answered with `answer`
   */
  wait<Result>(
    keyState: KeyState,
    waiting: Pick<Waiter, "cost" | "ttlMs" | "sinceMs" | "untilMs">,
    answerAt: (atMs: number, isLast: boolean) => Result | undefined,
    leaving?: { readonly signal: LeaveSignal; readonly answer: Result },
  ): Promise<Result> {
    return new Promise((resolve, reject) => {
      const attempt = (atMs: number, isLast: boolean) => {
        try {
          const answer = answerAt(atMs, isLast);
          if (answer === undefined) return jointWaitMs(keyState.ruleStates, waiting.cost, atMs) ?? Infinity;
          resolve(answer);
        } catch (error) {
          reject(error);
        }
        return undefined;
      };
      const waiter: Waiter = {
        ...waiting,
        attempt: (atMs) => attempt(atMs, false),
        giveUp: (atMs) => void attempt(atMs, true),
      };
      leaving?.signal.addEventListener("abort", () => {
        this.#leave(keyState, waiter);
        resolve(leaving.answer);
      });
      this.#lineOf(keyState).waiters.push(waiter);
      this.serve(keyState);
    });
  }

  /** Resolves when the key has no leases, at `untilMs`, or when the caller has gone. */
  untilIdle(keyState: KeyState, untilMs: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const idler: Idler = { untilMs, resolve };
      const { idlers } = this.#lineOf(keyState);
      idlers.add(idler);
      signal.addEventListener("abort", () => {
        idlers.delete(idler);
        resolve();
        this.serve(keyState);
      });
      this.serve(keyState);
    });
  }

  /** Answers the callers that can be answered now, in their order, and sets the timer for the next instant. */
  serve(keyState: KeyState): void {
    const line = this.#lines.get(keyState);
    if (line === undefined) return;
    const nowMs = this.#toNow(keyState);
    const headMs = this.#serveWaiters(line.waiters, nowMs);
    for (const idler of line.idlers) {
      if (!isIdle(keyState) && idler.untilMs > nowMs) continue;
      line.idlers.delete(idler);
      idler.resolve();
    }
    clearTimeout(line.timer);
    line.timer = undefined;
    if (line.waiters.length + line.idlers.size === 0) return this.#close(keyState, line);
    const expiriesMs =
      line.idlers.size === 0 ? [] : [...keyState.claims.values()].map((each) => each.expiresAtMs);
    const endsMs = [...line.waiters, ...line.idlers].map(({ untilMs }) => untilMs);
    const nextMs = Math.min(headMs, ...endsMs, ...expiriesMs);
    const timerMs = Math.min(Math.max(1, nextMs - nowMs), LONGEST_TIMER_MS);
    line.timer = setTimeout(() => this.serve(keyState), timerMs);
  }

  /** Returns the instant at which the first caller that still waits can be served, if no units are given back. */
  #serveWaiters(waiters: Waiter[], nowMs: number): number {
    let headMs = Infinity;
    for (let head = waiters[0]; head !== undefined; head = waiters[0]) {
      const waitMs = head.attempt(nowMs);
      headMs = nowMs + (waitMs ?? 0);
      if (waitMs !== undefined && head.untilMs > nowMs) break;
      waiters.shift();
      if (waitMs !== undefined) head.giveUp(nowMs);
    }
    // The first caller still waits, so callers behind it whose wait is over get their last answer.
    const over = waiters.filter(({ untilMs }) => untilMs <= nowMs);
    if (over.length > 0)
      waiters.splice(0, waiters.length, ...waiters.filter(({ untilMs }) => untilMs > nowMs));
    for (const waiter of over) waiter.giveUp(nowMs);
    return waiters.length === 0 ? Infinity : headMs;
  }

  #leave(keyState: KeyState, waiter: Waiter): void {
    const waiters = this.#lines.get(keyState)?.waiters ?? [];
    const index = waiters.indexOf(waiter);
    if (index < 0) return;
    waiters.splice(index, 1);
    this.serve(keyState);
  }

  #lineOf(keyState: KeyState): Line {
    const known = this.#lines.get(keyState);
    if (known !== undefined) return known;
    const line = { waiters: [], idlers: new Set<Idler>(), timer: undefined, unpin: keyState.pin() };
    this.#lines.set(keyState, line);
    return line;
  }

  /** Removes a line in which nobody waits any more. */
  #close(keyState: KeyState, line: Line): void {
    this.#lines.delete(keyState);
    line.unpin();
  }
}

/** Whether the key has no leases. */
function isIdle({ claims }: KeyState): boolean {
  for (const { kind } of claims.values()) if (kind === "lease") return false;
  return true;
}
