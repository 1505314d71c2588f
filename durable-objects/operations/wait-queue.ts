import { jointWaitMs, type Queued } from "../../core/accounts/wait-times.ts";
import type { KeyState } from "../keys/key-state.ts";

/** Somebody who waits for units of a key. */
export interface Waiter extends Queued {
  readonly sinceMs: number;
  /** Takes what is waited for, or is told that it never comes: `undefined`. Else how long until it can. */
  attempt(nowMs: number): number | undefined;
  giveUp(nowMs: number): void;
}

/** How a waiting caller says that it does not wait any longer. */
export type LeaveSignal = Pick<AbortSignal, "aborted" | "addEventListener">;

/** Somebody who waits until a key has no leases. */
interface Idler {
  readonly untilMs: number;
  resolve(): void;
}

interface Line {
  readonly waiters: Waiter[];
  readonly idlers: Set<Idler>;
  timer: ReturnType<typeof setTimeout> | undefined;
  /** While anybody waits for a key it stays in memory. */
  readonly unpin: () => void;
}

/** A timer that is not for an instant known in advance looks again after so long. */
const LONGEST_TIMER_MS = 60_000;

/**
 * Who waits, key by key, strictly first come, first served: only the first is ever tried, so nobody passes, and a
 * request for many units is not starved by those for few. Nothing is polled: whatever may free units calls `serve`,
 * and for what time frees (a lease that expires, a quota that refills, a wait that is over) there is one timer a key, set to
 * that instant. Who waits is in memory only: a crash ends the waiting calls themselves.
 */
export class WaitQueue {
  readonly #lines = new Map<KeyState, Line>();
  readonly #toNow: (keyState: KeyState) => number;

  /** @param toNow debits and frees what has expired and returns the time, in milliseconds */
  constructor(toNow: (keyState: KeyState) => number) {
    this.#toNow = toNow;
  }

  waitersOf(keyState: KeyState): readonly Waiter[] {
    return this.#lines.get(keyState)?.waiters ?? [];
  }

  /**
   * Waits in line for an answer: asked for when it is first, and, when its time is over, a last time, wherever it stands.
   *
   * @param answerAt the answer at an instant, or `undefined`: not yet; when `isLast` there must be one. If it throws, the
   * promise rejects, and the others go on.
   * @param leaving aborted when the caller has gone: it leaves the line, and is answered with that
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

  /** Resolves when the key has no leases, or at that instant, or when the caller has gone. */
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

  /** Gives what there is to those who wait, in their order, and sets the timer for the next thing that time brings. */
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

  /** Returns when the first of those who are left can be served, if nothing is given back. */
  #serveWaiters(waiters: Waiter[], nowMs: number): number {
    let headMs = Infinity;
    for (let head = waiters[0]; head !== undefined; head = waiters[0]) {
      const waitMs = head.attempt(nowMs);
      headMs = nowMs + (waitMs ?? 0);
      if (waitMs !== undefined && head.untilMs > nowMs) break;
      waiters.shift();
      if (waitMs !== undefined) head.giveUp(nowMs);
    }
    // The first still waits, so whoever is behind it and out of time has nothing to hope for.
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

  /** Nobody waits any more. */
  #close(keyState: KeyState, line: Line): void {
    this.#lines.delete(keyState);
    line.unpin();
  }
}

/** Whether nobody has a lease. */
function isIdle({ claims }: KeyState): boolean {
  for (const { kind } of claims.values()) if (kind === "lease") return false;
  return true;
}
