import { extend, settle } from "../../core/accounts/account.ts";
import { decideTogether, withoutTaking } from "../../core/accounts/joint-decision.ts";
import { jointWaitMs, waitBehindMs } from "../../core/accounts/wait-times.ts";
import { costText, type Cost } from "../../core/protocol/cost.ts";
import type { Answer, Decided, Lease, Missing, RuleDecision } from "../../core/protocol/messages.ts";
import type { Maybe } from "../../core/protocol/object-methods.ts";
import type { Idempotent } from "../keys/idempotency.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { leasedOf, leaseIn, MISSING, newLease } from "./claims.ts";
import type { Acquiring } from "./operations.ts";
import type { Waiter, WaitQueue } from "./wait-queue.ts";

/** Callers' leases: acquire, look, renew and release. */
export class Leases {
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;

  constructor(store: KeyStore, queue: WaitQueue) {
    this.#store = store;
    this.#queue = queue;
  }

  /** Grants a lease at once or when the caller's turn comes, or denies it. Callers are served in order of arrival. */
  acquire(keyState: KeyState, call: Acquiring, nowMs: number): Maybe<Answer> {
    this.#queue.serve(keyState);
    const earlier = this.#earlier(keyState, call, nowMs);
    if (earlier !== undefined) return earlier;
    const waiters = this.#queue.waitersOf(keyState);
    const granted = waiters.length === 0 ? this.#grant(keyState, call, nowMs, 0) : undefined;
    if (granted !== undefined) return granted;
    const canPass = jointWaitMs(keyState.ruleStates, call.cost, nowMs) !== null;
    if (call.waitMs === 0 || !canPass || keyState.policy.shadow) return this.#deny(keyState, call, nowMs, 0);
    if (waiters.length >= (keyState.policy.lease?.maxWaiters ?? 0))
      return this.#deny(keyState, call, nowMs, 0, "queue-full");
    const { cost, ttlMs, waitMs, signal } = call;
    const waiting = { cost, ttlMs, sinceMs: nowMs, untilMs: nowMs + waitMs };
    const answerAt = (atMs: number, isLast: boolean) =>
      this.#earlier(keyState, call, atMs) ??
      (isLast
        ? this.#deny(keyState, call, atMs, atMs - nowMs, "wait-timeout")
        : this.#grant(keyState, call, atMs, atMs - nowMs));
    return this.#queue.wait(keyState, waiting, answerAt, signal && { signal, answer: TO_NOBODY });
  }

  /** What a call with this cost would be answered now, behind the callers that wait. */
  look(keyState: KeyState, cost: Cost, nowMs: number): RuleDecision[] {
    const waiters = this.#queue.waitersOf(keyState);
    const isFirst = waiters.length === 0;
    return isFirst ? withoutTaking(keyState.ruleStates, nowMs, cost) : behind(keyState, cost, nowMs, waiters);
  }

  /** Moves a lease's end to `ttlMs` from now; `undefined`: the lifetime that the acquire asked for. */
  renew(keyState: KeyState, id: string, ttlMs: number | undefined, nowMs: number): Lease | Missing {
    const claim = leaseIn(keyState, id);
    if (claim === undefined) return MISSING;
    const renewed = { ...claim, expiresAtMs: nowMs + (ttlMs ?? claim.ttlMs) };
    const accounts = keyState.ruleStates.map(({ account }) => extend(account, id, renewed.expiresAtMs));
    this.#store.commit(keyState, { accounts, put: [renewed] }, nowMs);
    this.#queue.serve(keyState);
    return leasedOf(renewed, nowMs);
  }

  /** Ends a lease, and serves the callers that wait. Returns whether there was such a lease. */
  release(keyState: KeyState, id: string, nowMs: number): boolean {
    const claim = leaseIn(keyState, id);
    if (claim === undefined) return false;
    const accounts = keyState.ruleStates.map(({ rule, account }) => settle(rule, account, nowMs, id, 0));
    this.#store.commit(keyState, { accounts, end: [claim] }, nowMs);
    this.#queue.serve(keyState);
    return true;
  }

  /**
   * The earlier answer to the same call, with how long its lease still lasts. When the lease has ended, the call is
   * decided anew: another caller may have its units.
   */
  #earlier(keyState: KeyState, call: Acquiring, nowMs: number): Answer | undefined {
    const earlier = this.#store.earlier(keyState, idempotentOf(call), nowMs);
    if (earlier === undefined || "conflict" in earlier || earlier.lease === undefined) return earlier;
    const claim = leaseIn(keyState, earlier.lease.id);
    return claim && { ...earlier, lease: leasedOf(claim, nowMs) };
  }

  /** Takes the units if every rule admits them: a concurrency rule's units are leased, a rate's are used. */
  #grant(keyState: KeyState, call: Acquiring, nowMs: number, waitedMs: number): Decided | undefined {
    const { id, cost, ttlMs, confirmWithinMs = Infinity, isSocket } = call;
    const lease = { id, expiresAtMs: nowMs + Math.min(ttlMs, confirmWithinMs) };
    if (lease.expiresAtMs > keyState.endsByMs) return undefined;
    const { admitted, accounts, rules } = decideTogether(keyState.ruleStates, nowMs, cost, { lease });
    if (!admitted || accounts === undefined) return undefined;
    const claim = newLease(keyState, accounts, cost, { ...lease, ttlMs, ...(isSocket && { isSocket }) });
    // A cost of 0 only looks: it takes nothing, and there is nothing to write.
    if (claim === undefined) return { rules, waitedMs };
    const answer = { rules, waitedMs, lease: leasedOf(claim, nowMs) };
    const idempotent = idempotentOf(call);
    const remember = idempotent === undefined ? [] : [{ ...idempotent, answer }];
    this.#store.commit(keyState, { accounts, put: [claim], remember }, nowMs);
    return answer;
  }

  /** A denial, with the exact wait behind the callers that wait already. A rule with `countDenied` counts it. */
  #deny(
    keyState: KeyState,
    { cost }: Acquiring,
    nowMs: number,
    waitedMs: number,
    reason?: "wait-timeout" | "queue-full",
  ): Decided {
    const waiters = this.#queue.waitersOf(keyState);
    const isFirst = waiters.length === 0;
    const { rules, accounts } = isFirst
      ? decideTogether(keyState.ruleStates, nowMs, cost)
      : { rules: behind(keyState, cost, nowMs, waiters), accounts: undefined };
    if (accounts !== undefined) this.#store.commit(keyState, { accounts }, nowMs);
    return { rules, waitedMs, ...(reason && { reason }) };
  }
}

/** The answer for a caller that has gone: nobody reads it. */
export const TO_NOBODY: Decided = { rules: [] };

/** What the rules say of a cost behind these waiters. A concurrency rule has no units for it before they are served. */
function behind(
  { ruleStates }: KeyState,
  cost: Cost,
  nowMs: number,
  waiters: readonly Waiter[],
): RuleDecision[] {
  const retryAfterMs = waitBehindMs(ruleStates, waiters, cost, nowMs);
  return withoutTaking(ruleStates, nowMs, cost).map((decision, index): RuleDecision => {
    const isLeased = ruleStates[index]?.rule.lease !== undefined;
    if (!isLeased || decision.reason === "cost-over-limit") return decision;
    return { ...decision, success: false, remaining: 0, retryAfterMs, reason: "quota" };
  });
}

function idempotentOf({ idempotencyKey, cost, ttlMs }: Acquiring): Idempotent | undefined {
  if (idempotencyKey === undefined) return undefined;
  return { idempotencyKey, request: `lease of ${costText(cost)} for ${ttlMs} ms` };
}
