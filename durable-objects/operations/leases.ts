import { inWords, leasedOf, leaseIn, MISSING, newLease } from "./claims.ts";
import { decideTogether, withoutTaking } from "../../core/accounts/joint-decision.ts";
import { extend, settle } from "../../core/accounts/account.ts";
import type { Idempotent } from "../keys/idempotency.ts";
import type { Entry } from "../keys/key-state.ts";
import type { Ledger } from "../keys/key-store.ts";
import type { AcquireCall, AnswerText, Cost, Decided, RuleDecision } from "../../core/protocol/messages.ts";
import type { LeaveSignal, Waiter, WaitingRoom } from "./wait-queue.ts";
import { jointWaitMs, waitBehindMs } from "../../core/accounts/wait-times.ts";

/** What an acquire asks for, and who asks. */
export type Acquiring = Omit<AcquireCall, "policy" | "key"> & {
  readonly isSocket?: boolean;
  /** Aborted when the caller has gone: it leaves the queue, and is granted nothing. */
  readonly signal?: LeaveSignal;
};

/** Callers' leases: granted, waited for, renewed, released. */
export class Leases {
  readonly #ledger: Ledger;
  readonly #room: WaitingRoom;

  constructor(ledger: Ledger, room: WaitingRoom) {
    this.#ledger = ledger;
    this.#room = room;
  }

  /** Grants a lease, now or when its turn comes, or says why not. Nobody who waits is passed. */
  acquire(entry: Entry, call: Acquiring, nowMs: number): AnswerText | Promise<AnswerText> {
    this.#room.serve(entry);
    const earlier = this.#earlier(entry, call, nowMs);
    if (earlier !== undefined) return earlier;
    const waiters = this.#room.waitersOf(entry);
    const granted = waiters.length === 0 ? this.#grant(entry, call, nowMs, 0) : undefined;
    if (granted !== undefined) return granted;
    const canPass = jointWaitMs(entry.books, call.cost, nowMs) !== null;
    if (call.waitMs === 0 || !canPass || entry.policy.shadow) return this.#deny(entry, call, nowMs, 0);
    if (waiters.length >= (entry.policy.lease?.maxWaiters ?? 0))
      return this.#deny(entry, call, nowMs, 0, "queue-full");
    const { cost, ttlMs, waitMs, signal } = call;
    const waiting = { cost, ttlMs, sinceMs: nowMs, untilMs: nowMs + waitMs };
    const answerAt = (atMs: number, isLast: boolean) =>
      this.#earlier(entry, call, atMs) ??
      (isLast
        ? this.#deny(entry, call, atMs, atMs - nowMs, "wait-timeout")
        : this.#grant(entry, call, atMs, atMs - nowMs));
    return this.#room.wait(entry, waiting, answerAt, signal && { signal, answer: TO_NOBODY });
  }

  /** What a cost would be answered now, behind those who wait. */
  look(entry: Entry, cost: Cost, nowMs: number): RuleDecision[] {
    const waiters = this.#room.waitersOf(entry);
    const isFirst = waiters.length === 0;
    return isFirst ? withoutTaking(entry.books, nowMs, cost) : behind(entry, cost, nowMs, waiters);
  }

  /** Moves a lease's end to `ttlMs` from now; by default as long as it was asked for at first. */
  renew(entry: Entry, id: string, ttlMs: number | undefined, nowMs: number): AnswerText {
    const claim = leaseIn(entry, id);
    if (claim === undefined) return MISSING;
    const renewed = { ...claim, expiresAtMs: nowMs + (ttlMs ?? claim.ttlMs) };
    const accounts = entry.books.map(({ account }) => extend(account, id, renewed.expiresAtMs));
    this.#ledger.commit(entry, { accounts, put: [renewed] }, nowMs);
    this.#room.serve(entry);
    return JSON.stringify(leasedOf(renewed, nowMs));
  }

  /** Ends a lease; whoever waits next gets its units at once. */
  release(entry: Entry, id: string, nowMs: number): boolean {
    const claim = leaseIn(entry, id);
    if (claim === undefined) return false;
    const accounts = entry.books.map(({ rule, account }) => settle(rule, account, nowMs, id, 0));
    this.#ledger.commit(entry, { accounts, end: [claim] }, nowMs);
    this.#room.serve(entry);
    return true;
  }

  /**
   * The same call's answer from before, with how long its lease still lasts. One that has ended is not answered again:
   * somebody else may have its slot.
   */
  #earlier(entry: Entry, call: Acquiring, nowMs: number): AnswerText | undefined {
    const earlier = this.#ledger.earlier(entry, idempotentOf(call), nowMs);
    const answer = earlier === undefined ? undefined : (JSON.parse(earlier) as Partial<Decided>);
    if (answer?.lease === undefined) return earlier;
    const claim = leaseIn(entry, answer.lease.id);
    return claim && JSON.stringify({ ...answer, lease: leasedOf(claim, nowMs) });
  }

  /** Takes the units if every rule admits them: leased ones as a lease, others for good. */
  #grant(entry: Entry, call: Acquiring, nowMs: number, waitedMs: number): AnswerText | undefined {
    const { id, cost, ttlMs, confirmWithinMs = Infinity, isSocket } = call;
    const lease = { id, expiresAtMs: nowMs + Math.min(ttlMs, confirmWithinMs) };
    if (lease.expiresAtMs > entry.endsByMs) return undefined;
    const { admitted, accounts, rules } = decideTogether(entry.books, nowMs, cost, { lease });
    if (!admitted || accounts === undefined) return undefined;
    const claim = newLease(entry, accounts, cost, { ...lease, ttlMs, ...(isSocket && { isSocket }) });
    // A cost of 0 looks, so it leases nothing.
    if (claim === undefined) return JSON.stringify({ rules, waitedMs } satisfies Decided);
    const answer = JSON.stringify({ rules, waitedMs, lease: leasedOf(claim, nowMs) } satisfies Decided);
    const idempotent = idempotentOf(call);
    const remember = idempotent === undefined ? [] : [{ ...idempotent, answer }];
    this.#ledger.commit(entry, { accounts, put: [claim], remember }, nowMs);
    return answer;
  }

  /** A denial, with the exact wait behind those who wait already. A rule may count it. */
  #deny(
    entry: Entry,
    { cost }: Acquiring,
    nowMs: number,
    waitedMs: number,
    reason?: "wait-timeout" | "queue-full",
  ): AnswerText {
    const waiters = this.#room.waitersOf(entry);
    const isFirst = waiters.length === 0;
    const { rules, accounts } = isFirst
      ? decideTogether(entry.books, nowMs, cost)
      : { rules: behind(entry, cost, nowMs, waiters), accounts: undefined };
    if (accounts !== undefined) this.#ledger.commit(entry, { accounts }, nowMs);
    return JSON.stringify({ rules, waitedMs, ...(reason && { reason }) } satisfies Decided);
  }
}

/** What is answered when nobody is there to hear it. */
export const TO_NOBODY: AnswerText = JSON.stringify({ rules: [] } satisfies Decided);

/** What the rules say to somebody who comes after these: leased units are theirs first. */
function behind({ books }: Entry, cost: Cost, nowMs: number, waiters: readonly Waiter[]): RuleDecision[] {
  const retryAfterMs = waitBehindMs(books, waiters, cost, nowMs);
  return withoutTaking(books, nowMs, cost).map((decision, index): RuleDecision => {
    const isLeased = books[index]?.rule.lease !== undefined;
    if (!isLeased || decision.reason === "cost-over-limit") return decision;
    return { ...decision, success: false, remaining: 0, retryAfterMs, reason: "quota" };
  });
}

function idempotentOf({ idempotencyKey, cost, ttlMs }: Acquiring): Idempotent | undefined {
  if (idempotencyKey === undefined) return undefined;
  return { idempotencyKey, request: `lease of ${inWords(cost)} for ${ttlMs} ms` };
}
