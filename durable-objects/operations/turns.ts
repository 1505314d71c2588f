import {
  leastWaitMs,
  type QueuedCost,
  waitBehindMs,
  withoutTaking,
} from "../../core/accounts/joint-decision.ts";
import { type Cost, costOf } from "../../core/policies/policy.ts";
import type { Answer, Decided, RuleDecision } from "../../core/protocol/answers.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";
import { kindMismatch } from "./denials.ts";
import type { LeaveSignal } from "./operations.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** A call that is served in its turn. */
export interface TurnCall {
  readonly cost: Cost;
  /** How long a lease will last; 0: the units are used. */
  readonly ttlMs: number;
  /** The longest wait, in milliseconds. Absent: it does not wait, and is not told that it did not. */
  readonly waitMs: number | undefined;
  readonly caller: string | undefined;
  readonly idempotencyKey: string | undefined;
  readonly priority: string | undefined;
  /** Is aborted when the caller has gone: the call leaves the queue then, and is granted nothing. */
  readonly signal: LeaveSignal | undefined;
}

/** How important a call is. */
type TurnParams = Partial<Pick<TurnCall, "priority">>;

/** How such a call is answered. Each is asked again and again, at the instants at which the answer may have changed. */
export interface TurnAnswers {
  /** The earlier answer to the same call, if there is one. */
  earlier(atMs: number): Answer | undefined;
  /** Takes the units; `undefined`: a rule denies them. */
  grant(atMs: number, waitedMs: number | undefined): Answer | undefined;
  /** Denies a cost that a rule denies, when nobody else waits. */
  deny(atMs: number): Answer;
}

/**
 * First come, first served: a call takes units of a key at once if nobody waits for them, and else when its turn comes.
 * A wait that cannot end in time is not begun: the call is denied at once, with the exact wait behind the others.
 */
export class Turns {
  readonly #queue: WaitQueue;

  constructor(queue: WaitQueue) {
    this.#queue = queue;
  }

  /** Takes units at once or when the caller's turn comes, or denies them. */
  take(keyState: KeyState, call: TurnCall, nowMs: number, answers: TurnAnswers): MaybePromise<Answer> {
    this.#queue.serve(keyState);
    const standing = (atMs: number): Answer | undefined => {
      const denied = kindMismatch(keyState, call.ttlMs > 0 ? "slots" : "units", atMs);
      const waited = call.waitMs === undefined ? {} : { waitedMs: atMs - nowMs };
      return answers.earlier(atMs) ?? (denied && { ...denied, ...waited });
    };
    const earlier = standing(nowMs);
    if (earlier !== undefined) return earlier;
    const { cost, ttlMs, signal, caller, idempotencyKey, priority } = call;
    const { policy } = keyState;
    const waiters = this.#queue.aheadOf(keyState, priority, nowMs);
    const waitedMs = call.waitMs === undefined ? undefined : 0;
    const granted = waiters.length === 0 ? answers.grant(nowMs, waitedMs) : undefined;
    if (granted !== undefined) return granted;
    const waitMs = policy.shadow ? 0 : (call.waitMs ?? 0);
    const leastMs =
      waitMs === 0 ? Infinity : (leastWaitMs(keyState.seenBy(priority), waiters, cost, nowMs) ?? Infinity);
    if (leastMs > waitMs) return this.#deny(keyState, call, nowMs, answers, { waitedMs });
    if (waiters.length >= policy.waiting.maxWaiters)
      return this.#deny(keyState, call, nowMs, answers, { waitedMs, reason: "queue-full" });
    const over = this.#queue.fullFor(caller);
    if (over !== undefined) return over;
    const apart = keyState.seenBy(priority).map(({ rule }) => rule.apart ?? 0);
    const waiting = {
      cost,
      ttlMs,
      sinceMs: nowMs,
      untilMs: nowMs + waitMs,
      caller,
      idempotencyKey,
      priority,
      apart,
    };
    const answerAt = (atMs: number, isLast: boolean) =>
      standing(atMs) ??
      (isLast
        ? this.#deny(keyState, call, atMs, answers, { waitedMs: atMs - nowMs, reason: "wait-timeout" })
        : answers.grant(atMs, atMs - nowMs));
    return this.#queue.wait(keyState, waiting, answerAt, signal && { signal, answer: TO_NOBODY });
  }

  /** What a call with this cost would be answered now, behind the callers that wait. */
  look(keyState: KeyState, call: Pick<TurnCall, "cost"> & TurnParams, nowMs: number): RuleDecision[] {
    const waiters = this.#queue.aheadOf(keyState, call.priority, nowMs);
    const isFirst = waiters.length === 0;
    if (isFirst) return withoutTaking(keyState.seenBy(call.priority), nowMs, call.cost);
    return behind(keyState, call, nowMs, waiters);
  }

  /** A denial, with the exact wait behind the callers that wait already. */
  #deny(
    keyState: KeyState,
    call: TurnCall,
    nowMs: number,
    answers: TurnAnswers,
    { waitedMs, reason }: Pick<Decided, "reason"> & { readonly waitedMs: number | undefined },
  ): Answer {
    const waiters = this.#queue.aheadOf(keyState, call.priority, nowMs);
    const answer =
      waiters.length === 0 ? answers.deny(nowMs) : { rules: behind(keyState, call, nowMs, waiters) };
    return { ...answer, ...(waitedMs !== undefined && { waitedMs }), ...(reason && { reason }) };
  }
}

/** The answer for a caller that has gone: nobody reads it. */
export const TO_NOBODY: Decided = { rules: [] };

/**
 * What the rules say of a cost behind these waiters. A rule has no units for it before they are served; beside a rule
 * that leases, a rate says what it has.
 */
function behind(
  keyState: KeyState,
  { cost, priority }: Pick<TurnCall, "cost"> & TurnParams,
  nowMs: number,
  waiters: readonly QueuedCost[],
): RuleDecision[] {
  const { policy } = keyState;
  const ruleStates = keyState.seenBy(priority);
  const retryAfterMs = waitBehindMs(ruleStates, waiters, cost, nowMs);
  return withoutTaking(ruleStates, nowMs, cost).map((decision, index): RuleDecision => {
    const rule = ruleStates[index]?.rule;
    const isQueued = rule !== undefined && (policy.lease === undefined || rule.lease !== undefined);
    if (!isQueued || decision.reason === "cost-over-limit") return decision;
    if (costOf(rule, cost) === 0) return { ...decision, remaining: 0 };
    const reason = decision.success ? "quota" : decision.reason;
    const { delayMs: _, ...denied } = decision;
    return { ...denied, success: false, remaining: 0, retryAfterMs, reason };
  });
}
