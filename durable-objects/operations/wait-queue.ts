import {
  endOverdue,
  FairLine,
  lastOfLongest,
  type QueuedCall,
  sharedIn,
} from "../../core/accounts/fair-line.ts";
import { rateEndsAtMs } from "../../core/accounts/hold.ts";
import { waitBehindMs } from "../../core/accounts/queue-waits.ts";
import { RateLine } from "../../core/accounts/rate-line.ts";
import { SYSTEM_TIME, type Time } from "../../core/clock.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { SeenBy } from "../../core/protocol/calls.ts";
import { markOf } from "../../core/protocol/names.ts";
import { full, type Full } from "../../core/protocol/problems.ts";
import type { KeyState } from "../keys/key-state.ts";
import { CallerCounts } from "../storage/records.ts";
import type { LeaveSignal } from "./operations.ts";

type Timers = Pick<Time, "after" | "idle">;

/** The longest timer, in milliseconds: it fires early, and `serve` sets the next one. */
const LONGEST_TIMER_MS = 60_000;
const NOBODY: readonly Waiter[] = [];

/** A caller that waits for units of a key. */
export interface Waiter extends QueuedCall {
  readonly sinceMs: number;
  /** `AcquireCall.mark`. */
  readonly mark?: string | undefined;
  /** See wait-queue.ts. Absent: the usual priority. */
  readonly priority?: string | undefined;
  reject(error: Error): void;
}

/** A caller that waits until a key has no leases, at most until `untilMs`. */
interface IdleWatch {
  readonly untilMs: number;
  resolve(done: undefined): void;
  reject(error: Error): void;
}

interface Line {
  policy: Policy;
  readonly waiters: Waiter[];
  /** The orders where groups share slots, or a rate. */
  readonly slots: FairLine;
  readonly rates: RateLine<Waiter>;
  readonly idlers: Set<IdleWatch>;
  cancel: (() => void) | undefined;
  /** The key stays in memory while callers wait for it. */
  readonly unpin: () => void;
}

/**
 * The waiting callers, in one line per key, served strictly in order: small requests never starve a large
 * one. Where groups share slots (fair-line.ts) or a rate (rate-line.ts), that is the order within a group. Operations that
 * may free units call `serve`. Expiring leases, refills and ends of waits have one timer per key, set to the next instant.
 * In memory only: a crash also ends the calls that wait.
 */
export class WaitQueue {
  readonly #lines = new Map<KeyState, Line>();
  readonly #waits = new CallerCounts();
  readonly #toNow: (keyState: KeyState) => number;
  readonly #time: Timers;

  /** @param toNow debits and frees expired units, and returns the time in milliseconds */
  constructor(toNow: (keyState: KeyState) => number, time: Timers = SYSTEM_TIME) {
    this.#toNow = toNow;
    this.#time = time;
  }

  /** Does some work on a key later, if its object is in memory then. */
  later(keyState: KeyState, ms: number, work: (nowMs: number) => void): void {
    const run = () => work(this.#toNow(keyState));
    if (this.#time.idle === undefined) this.#time.after(ms, run);
    else this.#time.idle(ms, run);
  }

  waitersOf(keyState: KeyState): readonly Waiter[] {
    return this.#lines.get(keyState)?.waiters ?? NOBODY;
  }

  /** Whether calls wait for the key that do not also wait for slots of this holder. */
  hasOthers(keyState: KeyState, holder: string): boolean {
    const line = this.#lines.get(keyState);
    if (line === undefined) return false;
    return line.idlers.size > 0 || line.waiters.some(({ mark }) => mark !== markOf(holder));
  }

  hasWaiting(keyState: KeyState, idempotencyKey: string | undefined): boolean {
    if (idempotencyKey === undefined) return false;
    return this.waitersOf(keyState).some((waiter) => waiter.idempotencyKey === idempotencyKey);
  }

  /**
   * The waiters that a new call may not pass; none if all are brief (`isBrief`) and nothing is leased.
   * @param sinceMs when the call comes
   */
  aheadOf(
    keyState: KeyState,
    { priority, group, namedBy, inForce, cost }: Pick<Waiter, "cost"> & SeenBy,
    nowMs: number,
    sinceMs = nowMs,
  ): readonly Waiter[] {
    const { policy } = keyState;
    const waiters = this.waitersOf(keyState);
    if (waiters.length === 0) return waiters;
    const found = sharedIn(keyState);
    const shared = group === undefined && found?.isRate !== true ? undefined : found;
    const own = shared === undefined ? waiters : waiters.filter((waiter) => waiter.group === group);
    const isNobodys = policy.lease === undefined && own.every(({ isBrief }) => isBrief === true);
    const ahead = isNobodys ? NOBODY : aheadOf(policy, own, { priority, sinceMs });
    if (shared === undefined) return ahead;
    const { rates, slots } = this.#lineOf(keyState);
    const before = (shared.isRate ? rates : slots).before(
      keyState,
      waiters,
      { group, namedBy, inForce, cost },
      nowMs,
    );
    return before.size === 0
      ? ahead
      : waiters.filter((waiter) => before.has(waiter) || ahead.includes(waiter));
  }

  /** Whether a further call of the group may wait. A full line sends away the last of a group with more callers there. */
  makeRoom(keyState: KeyState, ahead: number, call: Pick<Waiter, "group" | "cost">, nowMs: number): boolean {
    const { maxWaiters } = keyState.policy.waiting;
    const shared = sharedIn(keyState);
    const waiters = this.waitersOf(keyState);
    if (shared === undefined || waiters.length < maxWaiters)
      return (shared === undefined ? ahead : waiters.length) < maxWaiters;
    const last = lastOfLongest(shared.weightOf, waiters, call);
    if (last === undefined) return false;
    this.#remove(keyState, last);
    last.giveUp(nowMs, true);
    return true;
  }

  /** The bound that another waiting call of this caller would exceed, if any. */
  fullFor(caller = ""): Full | undefined {
    if (this.#waits.all >= MAX_WAITS_OF_OBJECT) return full("object-waits", MAX_WAITS_OF_OBJECT);
    if (caller !== "" && this.#waits.of(caller) >= MAX_WAITS_OF_CALLER)
      return full("caller-waits", MAX_WAITS_OF_CALLER);
    return undefined;
  }

  /** The same for a call that waits until this key has no leases. */
  watchersFull(keyState: KeyState, caller: string | undefined): Full | undefined {
    const most = keyState.policy.lease?.maxWaiters ?? 0;
    const watchers = this.#lines.get(keyState)?.idlers.size ?? 0;
    return watchers >= most ? full("key-watchers", most) : this.fullFor(caller);
  }

  /**
   * Waits in line: `answerAt` is called while the caller is first, and at the end of its wait, where `isLast`
   * requires an answer. If it throws, only this promise rejects. `leaving`: the answer of an aborted call.
   */
  wait<Result>(
    keyState: KeyState,
    waiting: Omit<Waiter, "attempt" | "giveUp" | "reject"> & { readonly caller?: string | undefined },
    answerAt: (atMs: number, isLast: boolean, isPushedOut?: boolean) => Result | undefined,
    leaving?: { readonly signal: LeaveSignal; readonly answer: Result },
  ): Promise<Result> {
    const { caller = "" } = waiting;
    this.#waits.add(caller, 1);
    let waits = 1;
    const ended = () => {
      this.#waits.add(caller, -waits);
      waits = 0;
    };
    return new Promise<Result>((resolve, reject) => {
      const attempt = (atMs: number, isLast: boolean, isPushedOut?: boolean) => {
        try {
          const answer = answerAt(atMs, isLast, isPushedOut);
          if (answer === undefined)
            return (
              waitBehindMs(keyState.seenBy(waiting), [], waiting.cost, atMs, keyState.ruleStates) ?? Infinity
            );
          ended();
          resolve(answer);
        } catch (error) {
          ended();
          reject(error);
        }
        return undefined;
      };
      const waiter: Waiter = {
        ...waiting,
        attempt: (atMs) => attempt(atMs, false),
        giveUp: (atMs, isPushedOut) => void attempt(atMs, true, isPushedOut),
        reject(error) {
          ended();
          reject(error);
        },
      };
      leaving?.signal.addEventListener("abort", () => {
        if (this.#remove(keyState, waiter)) this.serve(keyState);
        ended();
        resolve(leaving.answer);
      });
      const line = this.#lineOf(keyState);
      insert(keyState.policy, line.waiters, waiter);
      line.rates.noteNew();
      this.serve(keyState, false);
    });
  }

  /** Resolves when the key has no leases, at `untilMs`, or when the caller has gone. */
  untilIdle(
    keyState: KeyState,
    { untilMs, signal, caller = "" }: { untilMs: number; signal: AbortSignal; caller: string | undefined },
  ): Promise<undefined> {
    this.#waits.add(caller, 1);
    const idle = new Promise<undefined>((resolve, reject) => {
      const idler = { untilMs, resolve, reject };
      const { idlers } = this.#lineOf(keyState);
      idlers.add(idler);
      signal.addEventListener("abort", () => {
        idlers.delete(idler);
        resolve(undefined);
        this.serve(keyState);
      });
      this.serve(keyState);
    });
    return idle.finally(() => this.#waits.add(caller, -1));
  }

  /**
   * Answers callers in order as far as possible, and sets the timer for the next instant.
   * @param isMore whether units may have come back, other than by time
   */
  serve(keyState: KeyState, isMore = true): void {
    const line = this.#lines.get(keyState);
    if (line === undefined) return;
    const isChanged = line.policy !== keyState.policy;
    line.policy = keyState.policy;
    const nowMs = this.#toNow(keyState);
    const headMs = serveLine(keyState, line, nowMs, isMore || isChanged);
    const isLeased = () => [...keyState.claims.values()].some(({ kind }) => kind === "lease");
    for (const idler of line.idlers) {
      if (idler.untilMs > nowMs && isLeased()) continue;
      line.idlers.delete(idler);
      idler.resolve(undefined);
    }
    line.cancel?.();
    line.cancel = undefined;
    if (line.waiters.length + line.idlers.size === 0) return this.#close(keyState, line);
    // Rates that end make a wait shorter than it is now.
    let nextMs = Math.min(headMs, ...keyState.accounts.map(({ holds }) => rateEndsAtMs(holds)));
    for (const { untilMs } of [...line.waiters, ...line.idlers]) nextMs = Math.min(nextMs, untilMs);
    if (line.idlers.size > 0)
      for (const { expiresAtMs } of keyState.claims.values()) nextMs = Math.min(nextMs, expiresAtMs);
    const timerMs = Math.min(Math.max(1, nextMs - nowMs), LONGEST_TIMER_MS);
    line.cancel = this.#time.after(timerMs, () => this.serve(keyState, false));
  }

  /** Something was admitted: among groups of a log or a window, a call that waits may pass sooner then. */
  admitted(keyState: KeyState): void {
    if (this.#lines.get(keyState)?.rates.hasYielding === true) this.serve(keyState, false);
  }

  /** Serves a line after a change of its policy, which may let more calls pass, or none. */
  follow(keyState: KeyState): void {
    const line = this.#lines.get(keyState);
    if (line !== undefined && line.policy !== keyState.policy) this.serve(keyState);
  }

  /**
   * Ends the waits of all callers, as if their time were over. Those that pass now, without others ahead of them, are
   * admitted; the others have left the line before they are denied, so that the wait in their answers is exact. Calls
   * that wait only for calls on several keys stay: they have not asked to wait, and do so for milliseconds.
   */
  endWaits(keyState: KeyState, nowMs: number): void {
    const { waiters } = this.#lines.get(keyState) ?? {};
    if (waiters === undefined) return;
    const left = waiters.filter(({ isBrief }) => isBrief !== true);
    waiters.splice(0, waiters.length, ...waiters.filter(({ isBrief }) => isBrief === true));
    for (const waiter of left.filter((each) => each.attempt(nowMs) !== undefined)) waiter.giveUp(nowMs);
    this.serve(keyState);
  }

  /** Ends a key's line: all its callers get the error. */
  end(keyState: KeyState, error: Error): void {
    const line = this.#lines.get(keyState);
    if (line === undefined) return;
    line.cancel?.();
    this.#close(keyState, line);
    for (const each of [...line.waiters, ...line.idlers]) each.reject(error);
  }

  #remove(keyState: KeyState, waiter: Waiter): boolean {
    const waiters = this.#lines.get(keyState)?.waiters ?? [];
    const index = waiters.indexOf(waiter);
    if (index >= 0) waiters.splice(index, 1);
    return index >= 0;
  }

  #lineOf(keyState: KeyState): Line {
    const known = this.#lines.get(keyState);
    if (known !== undefined) return known;
    const { policy } = keyState;
    const line = {
      policy,
      waiters: [],
      slots: new FairLine(),
      rates: new RateLine<Waiter>(),
      idlers: new Set<IdleWatch>(),
      cancel: undefined,
      unpin: keyState.pin(),
    };
    this.#lines.set(keyState, line);
    return line;
  }

  #close(keyState: KeyState, line: Line): void {
    this.#lines.delete(keyState);
    line.unpin();
  }
}

/*
 * The order of a queue: first come, first served, within a priority. Each step of priority is worth a head
 * start of `ageing` (10 s by default), so no call starves. A call that may not have a part of the limit kept
 * for important calls does not block those that may.
 */

type Ranked = Pick<Waiter, "priority" | "sinceMs">;

export function insert({ priorities }: Policy, waiters: Waiter[], waiter: Waiter): void {
  const rankMs = rankMsOf(priorities, waiter);
  let at = waiters.length;
  while (at > 0 && rankMsOf(priorities, waiters[at - 1] ?? waiter) > rankMs) at -= 1;
  waiters.splice(at, 0, waiter);
}

export function aheadOf({ priorities }: Policy, waiters: readonly Waiter[], call: Ranked): readonly Waiter[] {
  const rankMs = rankMsOf(priorities, call);
  return waiters.filter(
    (waiter) => rankMsOf(priorities, waiter) <= rankMs && !isKeptFor(priorities, call, waiter),
  );
}

/** Answers callers in order. Returns when the next can be served without returned units; Infinity: none. */
export function serveInOrder({ priorities }: Policy, waiters: Waiter[], nowMs: number): number {
  let nextMs = Infinity;
  let blocked: Waiter | undefined;
  for (let at = 0; at < waiters.length; at += 1) {
    const waiter = waiters[at];
    if (waiter === undefined || (blocked !== undefined && priorities.seen.size === 0)) break;
    if (blocked !== undefined && !isKeptFor(priorities, waiter, blocked)) continue;
    const waitMs = waiter.attempt(nowMs);
    if (waitMs !== undefined && waiter.untilMs > nowMs) {
      nextMs = Math.min(nextMs, nowMs + waitMs);
      blocked = waiter;
      continue;
    }
    waiters.splice(at, 1);
    at -= 1;
    if (waitMs !== undefined) waiter.giveUp(nowMs);
  }
  endOverdue(waiters, nowMs);
  return waiters.length === 0 ? Infinity : nextMs;
}

function serveLine(keyState: KeyState, line: Line, nowMs: number, isMore: boolean): number {
  const { waiters, rates, slots } = line;
  const shared = sharedIn(keyState);
  if (shared === undefined) return serveInOrder(keyState.policy, waiters, nowMs);
  return shared.isRate
    ? rates.serve(keyState, waiters, nowMs, isMore)
    : slots.serve(keyState, waiters, nowMs);
}

function rankMsOf(priorities: Policy["priorities"], { priority, sinceMs }: Ranked): number {
  return sinceMs + rankOf(priorities, priority) * priorities.ageingMs;
}

/** Whether a part is kept for one call that the other may not have. */
function isKeptFor(priorities: Policy["priorities"], call: Ranked, other: Ranked): boolean {
  const { names, reserve } = priorities;
  const between = names.slice(rankOf(priorities, call.priority), rankOf(priorities, other.priority));
  return between.some((name) => Object.hasOwn(reserve, name));
}

/** 0: the most important. */
function rankOf({ names, usual }: Policy["priorities"], priority: string | undefined): number {
  return names.indexOf(priority ?? usual);
}

/** In one object, and of one caller there: each keeps a request, in 128 MB. `maxWaiters` is per key. */
export const MAX_WAITS_OF_OBJECT = 2_000;
export const MAX_WAITS_OF_CALLER = 1_000;
