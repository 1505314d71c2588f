/** What calls on several keys have apart for the moment, and how others wait for it instead of being denied. */
import { decideTogether } from "../../core/accounts/joint-decision.ts";
import type { Cost } from "../../core/protocol/cost.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { WaitQueue } from "./wait-queue.ts";

/**
 * Such units are settled or given back within a few messages, so a call that would pass without them waits for that:
 * a denial would be for nothing, and its wait wrong. This long at most, and half the policy's deadline.
 */
const CONTENTION_WAIT_MS = 250;

/** Whether a cost would pass if no other call that decides on several keys had units apart for the moment. */
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
 * Asks for an answer until there is one: not while the cost is only held up by calls on several keys.
 *
 * @param answerAt the answer at an instant, or `undefined`: not yet; when `isLast` there must be one
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
