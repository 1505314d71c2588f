/**
 * Contention with calls on several keys. Such a call takes a provisional hold on each key, and settles or cancels them
 * all a few messages later. A call that would pass without provisional holds waits for their end, and is not denied.
 */
import { decideTogether } from "../../core/accounts/joint-decision.ts";
import type { Cost } from "../../core/protocol/cost.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { WaitQueue } from "./wait-queue.ts";

/**
 * The longest that a call waits for provisional holds to end, in milliseconds; half the policy's deadline if that is
 * less. A denial at once would be needless, and its `retryAfterMs` wrong.
 */
const CONTENTION_WAIT_MS = 250;

/** Whether the key has provisional holds, and the cost would pass without them. */
export function isProvisionallyBlocked({ ruleStates, claims }: KeyState, cost: Cost, nowMs: number): boolean {
  const provisional = new Set<string>();
  for (const { id, lease, isProvisional } of claims.values()) {
    if (isProvisional !== true) continue;
    provisional.add(id);
    if (lease !== undefined) provisional.add(lease);
  }
  if (provisional.size === 0) return false;
  const without = ruleStates.map(({ rule, account: { state, holds } }) => ({
    rule,
    account: { state, holds: holds.filter(({ id }) => !provisional.has(id)) },
  }));
  return decideTogether(without, nowMs, cost).admitted;
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
): Promise<Result> {
  const mostMs = waitMs ?? Math.min(CONTENTION_WAIT_MS, Math.floor(keyState.policy.deadlineMs / 2));
  return queue.wait(keyState, { cost, ttlMs, sinceMs: nowMs, untilMs: nowMs + mostMs }, answerAt);
}
