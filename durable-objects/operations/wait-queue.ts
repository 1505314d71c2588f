import type { Entry } from "../keys/key-state.ts";
import type { AnswerText } from "../../core/protocol/messages.ts";
import { jointWaitMs, type Queued } from "../../core/accounts/wait-times.ts";

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
}

/** A timer that is not for an instant known in advance looks again after so long. */
const LONGEST_TIMER_MS = 60_000;

/**
 * Who waits, key by key, strictly first come, first served: only the first is ever tried, so nobody passes, and a
 * request for many units is not starved by those for few. Nothing is polled: whatever may free units calls `serve`,
 * and for what time frees (a lease that expires, a quota that refills, a wait that is over) there is one timer a key, set to
 * that instant. Who waits is in memory only: a crash ends the waiting calls themselves.
 */
export class WaitingRoom {
  readonly #lines = new Map<Entry, Line>();
  readonly #toNow: (entry: Entry) => number;

  /** @param toNow debits and frees what has expired and returns the time, in milliseconds */
  constructor(toNow: (entry: Entry) => number) {
    this.#toNow = toNow;
  }

  waitersOf(entry: Entry): readonly Waiter[] {
    return this.#lines.get(entry)?.waiters ?? [];
  }

  /**
   * Waits in line for an answer: asked for when it is first, and, when its time is over, a last time, wherever it stands.
   *
   * @param answerAt the answer at an instant, or `undefined`: not yet; when `isLast` there must be one. If it throws, the
   * promise rejects, and the others go on.
   * @param leaving aborted when the caller has gone: it leaves the line, and is answered with that
   */
  wait(
    entry: Entry,
    waiting: Pick<Waiter, "cost" | "ttlMs" | "sinceMs" | "untilMs">,
    answerAt: (atMs: number, isLast: boolean) => AnswerText | undefined,
    leaving?: { readonly signal: LeaveSignal; readonly answer: AnswerText },
  ): Promise<AnswerText> {
    return new Promise((resolve, reject) => {
      const attempt = (atMs: number, isLast: boolean) => {
        try {
          const answer = answerAt(atMs, isLast);
          if (answer === undefined) return jointWaitMs(entry.books, waiting.cost, atMs) ?? Infinity;
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
        this.#leave(entry, waiter);
        resolve(leaving.answer);
      });
      this.#lineOf(entry).waiters.push(waiter);
      entry.waiting += 1;
      this.serve(entry);
    });
  }

  /** Resolves when the key has no leases, or at that instant, or when the caller has gone. */
  untilIdle(entry: Entry, untilMs: number, signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const idler: Idler = { untilMs, resolve };
      const { idlers } = this.#lineOf(entry);
      idlers.add(idler);
      entry.waiting += 1;
      signal.addEventListener("abort", () => {
        if (idlers.delete(idler)) entry.waiting -= 1;
        resolve();
        this.serve(entry);
      });
      this.serve(entry);
    });
  }

  /** Gives what there is to those who wait, in their order, and sets the timer for the next thing that time brings. */
  serve(entry: Entry): void {
    const line = this.#lines.get(entry);
    if (line === undefined) return;
    const nowMs = this.#toNow(entry);
    const headMs = this.#serveWaiters(entry, line.waiters, nowMs);
    for (const idler of line.idlers) {
      if (!isIdle(entry) && idler.untilMs > nowMs) continue;
      line.idlers.delete(idler);
      entry.waiting -= 1;
      idler.resolve();
    }
    clearTimeout(line.timer);
    line.timer = undefined;
    if (line.waiters.length + line.idlers.size === 0) return void this.#lines.delete(entry);
    const expiriesMs =
      line.idlers.size === 0 ? [] : [...entry.claims.values()].map((each) => each.expiresAtMs);
    const endsMs = [...line.waiters, ...line.idlers].map(({ untilMs }) => untilMs);
    const nextMs = Math.min(headMs, ...endsMs, ...expiriesMs);
    const timerMs = Math.min(Math.max(1, nextMs - nowMs), LONGEST_TIMER_MS);
    line.timer = setTimeout(() => this.serve(entry), timerMs);
  }

  /** Returns when the first of those who are left can be served, if nothing is given back. */
  #serveWaiters(entry: Entry, waiters: Waiter[], nowMs: number): number {
    let headMs = Infinity;
    for (let head = waiters[0]; head !== undefined; head = waiters[0]) {
      const waitMs = head.attempt(nowMs);
      headMs = nowMs + (waitMs ?? 0);
      if (waitMs !== undefined && head.untilMs > nowMs) break;
      waiters.shift();
      entry.waiting -= 1;
      if (waitMs !== undefined) head.giveUp(nowMs);
    }
    // The first still waits, so whoever is behind it and out of time has nothing to hope for.
    const over = waiters.filter(({ untilMs }) => untilMs <= nowMs);
    if (over.length > 0)
      waiters.splice(0, waiters.length, ...waiters.filter(({ untilMs }) => untilMs > nowMs));
    entry.waiting -= over.length;
    for (const waiter of over) waiter.giveUp(nowMs);
    return waiters.length === 0 ? Infinity : headMs;
  }

  #leave(entry: Entry, waiter: Waiter): void {
    const waiters = this.#lines.get(entry)?.waiters ?? [];
    const index = waiters.indexOf(waiter);
    if (index < 0) return;
    waiters.splice(index, 1);
    entry.waiting -= 1;
    this.serve(entry);
  }

  #lineOf(entry: Entry): Line {
    const line = this.#lines.get(entry) ?? { waiters: [], idlers: new Set(), timer: undefined };
    this.#lines.set(entry, line);
    return line;
  }
}

/** Whether nobody has a lease. */
function isIdle({ claims }: Entry): boolean {
  for (const { kind } of claims.values()) if (kind === "lease") return false;
  return true;
}
