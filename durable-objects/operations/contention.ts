/**
 * Contention with calls on several keys. Such a call takes a provisional hold on each key, and settles or cancels them
 * all a few messages later. A call that would pass without provisional holds waits for their end, and is not denied.
 */
import { admitsUnprovisional } from "../../core/accounts/account.ts";
import { costOf, type Cost } from "../../core/protocol/cost.ts";
import type { Maybe } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { WaitQueue } from "./wait-queue.ts";

/**
 * The longest that a call waits for provisional holds to end, in milliseconds; half the policy's deadline if that is
 * less. A denial at once would be needless, and its `retryAfterMs` wrong.
 */
const CONTENTION_WAIT_MS = 250;

/** What a call asks for, and how important it is. */
interface Asked {
  readonly cost: Cost;
  readonly priority?: string | undefined;
}

/** Whether the key has provisional holds, and the cost would pass without them. */
export function isProvisionallyBlocked(
  keyState: KeyState,
  { cost, priority }: Asked,
  nowMs: number,
): boolean {
  return (
    hasProvisional(keyState.claims) &&
    keyState
      .seenBy(priority)
      .every(({ rule, account }) => admitsUnprovisional(rule, account, nowMs, costOf(rule, cost)))
  );
}

function hasProvisional(claims: KeyState["claims"]): boolean {
  for (const { isProvisional } of claims.values()) if (isProvisional === true) return true;
  return false;
}

/**
 * Waits in the key's line until `answerAt` returns an answer, or until the wait is over.
 *
 * @param waitMs the longest wait in milliseconds; absent: as `CONTENTION_WAIT_MS` says
 * @param answerAt the answer at an instant; `undefined`: not yet. When `isLast` is true it must return an answer
 */
export function whenUncontended<Result>(
  queue: WaitQueue,
  keyState: KeyState,
  { cost, ttlMs = 0, waitMs }: { readonly cost: Cost; readonly ttlMs?: number; readonly waitMs?: number },
  nowMs: number,
  answerAt: (atMs: number, isLast: boolean) => Result | undefined,
): Maybe<Result> {
  // Where too many calls wait already, this one gets its last answer at once.
  const last = queue.fullFor(undefined) === undefined ? undefined : answerAt(nowMs, true);
  if (last !== undefined) return last;
  const mostMs = waitMs ?? Math.min(CONTENTION_WAIT_MS, Math.floor(keyState.policy.deadlineMs / 2));
  const untilMs = nowMs + mostMs;
  return queue.wait(keyState, { cost, ttlMs, sinceMs: nowMs, untilMs, isBrief: true }, answerAt);
}
