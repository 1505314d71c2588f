import { jointWaitMs } from "../../core/accounts/wait-times.ts";
import { SYSTEM_TIME, type Time } from "../../core/clock.ts";
import { full, type Full } from "../../core/protocol/bounds.ts";
import type { KeyState } from "../keys/key-state.ts";
import { aheadOf, insert, serveInOrder } from "./queue-order.ts";
import { WaitPlaces } from "./wait-places.ts";
import type { Idler, LeaveSignal, Line, Waiter } from "./waiter.ts";

type Timers = Pick<Time, "after">;

/** No timer runs longer than this, in milliseconds: it fires early then, and `serve` sets the next one. */
const LONGEST_TIMER_MS = 60_000;
const NOBODY: readonly Waiter[] = [];

/**
 * The callers that wait, with one line for each key. A line is served strictly in its order
 * (queue-order.ts): only its first caller is tried, so requests for few units never starve a request for many. Nothing is polled. Every operation that
 * may free units calls `serve`. Other changes come with time alone: a lease expires, a quota refills, a wait ends. For
 * these, each key has one timer, set to the next such instant. The lines are in memory only, since a crash also ends
 * the calls that wait.
 */
export class WaitQueue {
  readonly #lines = new Map<KeyState, Line>();
  readonly #places = new WaitPlaces();
  readonly #toNow: (keyState: KeyState) => number;
  readonly #time: Timers;

  /** @param toNow debits and frees what has expired by now, and returns the time in milliseconds */
  constructor(toNow: (keyState: KeyState) => number, time: Timers = SYSTEM_TIME) {
    this.#toNow = toNow;
    this.#time = time;
  }

  /** The callers that wait for units of the key, the first one first. */
  waitersOf(keyState: KeyState): readonly Waiter[] {
    return this.#lines.get(keyState)?.waiters ?? NOBODY;
  }

  /** Whether a call with this idempotency key waits for units of a key. */
  hasWaiting(keyState: KeyState, idempotencyKey: string | undefined): boolean {
    if (idempotencyKey === undefined) return false;
    return this.waitersOf(keyState).some((waiter) => waiter.idempotencyKey === idempotencyKey);
  }

  /**
   * The same, for a call that comes now: it may not pass them. There are none if all only wait for calls on several
   * keys to end, and nothing is leased.
   */
  aheadOf(keyState: KeyState, priority: string | undefined, nowMs: number): readonly Waiter[] {
    const waiters = this.waitersOf(keyState);
    if (waiters.length === 0) return waiters;
    const isNobodys = keyState.policy.lease === undefined && waiters.every(({ isBrief }) => isBrief === true);
    return isNobodys ? NOBODY : aheadOf(keyState.policy, waiters, { priority, sinceMs: nowMs });
  }

  /** The bound that one more call of this caller would pass; `undefined`: it may wait for units of a key. */
  fullFor(caller: string | undefined): Full | undefined {
    return this.#places.fullFor(caller);
  }

  /** The same for a call that waits until this key has no leases. */
  watchersFull(keyState: KeyState, caller: string | undefined): Full | undefined {
    const most = keyState.policy.lease?.maxWaiters ?? 0;
    const watchers = this.#lines.get(keyState)?.idlers.size ?? 0;
    return watchers >= most ? full("key-watchers", most) : this.#places.fullFor(caller);
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
    waiting: Omit<Waiter, "attempt" | "giveUp" | "fail"> & {
      readonly caller?: string | undefined;
    },
    answerAt: (atMs: number, isLast: boolean) => Result | undefined,
    leaving?: { readonly signal: LeaveSignal; readonly answer: Result },
  ): Promise<Result> {
    const leavePlace = this.#places.take(waiting.caller);
    const answered = new Promise<Result>((resolve, reject) => {
      const attempt = (atMs: number, isLast: boolean) => {
        try {
          const answer = answerAt(atMs, isLast);
          if (answer === undefined)
            return jointWaitMs(keyState.seenBy(waiting.priority), waiting.cost, atMs) ?? Infinity;
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
        fail: reject,
      };
      leaving?.signal.addEventListener("abort", () => {
        this.#leave(keyState, waiter);
        resolve(leaving.answer);
      });
      insert(keyState.policy, this.#lineOf(keyState).waiters, waiter);
      this.serve(keyState);
    });
    return answered.finally(leavePlace);
  }

  /** Resolves when the key has no leases, at `untilMs`, or when the caller has gone. */
  untilIdle(
    keyState: KeyState,
    { untilMs, signal, caller }: { untilMs: number; signal: AbortSignal; caller: string | undefined },
  ): Promise<undefined> {
    const leavePlace = this.#places.take(caller);
    const idle = new Promise<undefined>((done, fail) => {
      const idler: Idler = { untilMs, resolve: () => done(undefined), fail };
      const { idlers } = this.#lineOf(keyState);
      idlers.add(idler);
      signal.addEventListener("abort", () => {
        idlers.delete(idler);
        idler.resolve();
        this.serve(keyState);
      });
      this.serve(keyState);
    });
    return idle.finally(leavePlace);
  }

  /** Answers the callers that can be answered now, in their order, and sets the timer for the next instant. */
  serve(keyState: KeyState): void {
    const line = this.#lines.get(keyState);
    if (line === undefined) return;
    line.policy = keyState.policy;
    const nowMs = this.#toNow(keyState);
    const headMs = serveInOrder(keyState.policy, line.waiters, nowMs);
    for (const idler of line.idlers) {
      if (!isIdle(keyState) && idler.untilMs > nowMs) continue;
      line.idlers.delete(idler);
      idler.resolve();
    }
    line.cancel?.();
    line.cancel = undefined;
    if (line.waiters.length + line.idlers.size === 0) return this.#close(keyState, line);
    let nextMs = headMs;
    for (const { untilMs } of [...line.waiters, ...line.idlers]) nextMs = Math.min(nextMs, untilMs);
    if (line.idlers.size > 0)
      for (const { expiresAtMs } of keyState.claims.values()) nextMs = Math.min(nextMs, expiresAtMs);
    const timerMs = Math.min(Math.max(1, nextMs - nowMs), LONGEST_TIMER_MS);
    line.cancel = this.#time.after(timerMs, () => this.serve(keyState));
  }

  /** Serves a line whose key is decided by another version of its policy now: more may pass, or nobody any more. */
  follow(keyState: KeyState): void {
    const line = this.#lines.get(keyState);
    if (line !== undefined && line.policy !== keyState.policy) this.serve(keyState);
  }

  /** Ends the line of a key: whoever waits for it is told so. */
  end(keyState: KeyState, error: Error): void {
    const line = this.#lines.get(keyState);
    if (line === undefined) return;
    line.cancel?.();
    this.#close(keyState, line);
    for (const each of [...line.waiters, ...line.idlers]) each.fail(error);
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
    const { policy, pins } = keyState;
    const line = { policy, waiters: [], idlers: new Set<Idler>(), cancel: undefined, unpin: pins.add() };
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
