import { decideTogether, withoutTaking, type Ruled } from "./decisions.ts";
import { advance } from "./holds.ts";
import type { Entry } from "./entries.ts";
import type { Cost } from "./protocol.ts";

/** Somebody who waits for units of a key. */
export interface Waiter {
  readonly cost: Cost;
  /** How long a lease would be, to say how long those behind will wait. */
  readonly ttlMs: number;
  readonly sinceMs: number;
  /** When the waiting ends without anything. */
  readonly untilMs: number;
  /** Takes what is waited for, or is told that it never comes: `undefined`. Else how long until it can. */
  attempt(nowMs: number): number | undefined;
  giveUp(nowMs: number): void;
}

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

  /** Puts somebody at the end of the line. */
  join(entry: Entry, waiter: Waiter): void {
    this.#lineOf(entry).waiters.push(waiter);
    entry.waiting += 1;
    this.serve(entry);
  }

  /** Takes somebody out who does not wait any longer. */
  leave(entry: Entry, waiter: Waiter): void {
    const waiters = this.#lines.get(entry)?.waiters ?? [];
    const index = waiters.indexOf(waiter);
    if (index < 0) return;
    waiters.splice(index, 1);
    entry.waiting -= 1;
    this.serve(entry);
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

/**
 * The exact wait for a cost behind those who wait already, if nobody else comes and every lease runs to its end:
 * each gets its lease as soon as it can, or leaves when its time is over. `null`: it never passes.
 */
export function waitBehindMs(
  ruled: readonly Ruled[],
  waiters: readonly Waiter[],
  cost: Cost,
  nowMs: number,
): number | null {
  let [current, atMs] = [ruled, nowMs];
  const moveTo = (toMs: number) => {
    atMs = toMs;
    current = current.map(({ rule, account }) => ({ rule, account: advance(rule, account, toMs) }));
  };
  for (const [index, waiter] of waiters.entries()) {
    const waitMs = jointWaitMs(current, waiter.cost, atMs);
    if (waitMs === null || atMs + waitMs > waiter.untilMs) {
      moveTo(Math.max(atMs, waiter.untilMs));
      continue;
    }
    moveTo(atMs + waitMs);
    const lease = { id: `waiter ${index}`, expiresAtMs: atMs + waiter.ttlMs };
    const { accounts } = decideTogether(current, atMs, waiter.cost, { lease });
    current = current.map(({ rule, account }, each) => ({ rule, account: accounts?.[each] ?? account }));
  }
  const waitMs = jointWaitMs(current, cost, atMs);
  return waitMs === null ? null : atMs + waitMs - nowMs;
}

/** How long until every rule admits a cost. */
export function jointWaitMs(ruled: readonly Ruled[], cost: Cost, nowMs: number): number | null {
  let longest = 0;
  for (const { retryAfterMs } of withoutTaking(ruled, nowMs, cost)) {
    if (retryAfterMs === null) return null;
    longest = Math.max(longest, retryAfterMs);
  }
  return longest;
}
