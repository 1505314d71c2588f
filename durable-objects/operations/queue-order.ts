/**
 * The order of a queue: first come, first served, among calls of one priority. Each step of priority is worth a start of
 * `ageing` (10 s by default): a call stands before a less important one that came up to so much earlier, and behind one
 * that has waited longer. So nobody starves, however many important calls come.
 *
 * Where a policy keeps a part of its limit for important calls, a call that waits for what it may not have stands in
 * nobody's way for whom it is kept.
 */
import type { Policy } from "../../core/policies/policy.ts";
import type { Waiter } from "./waiter.ts";

type Ranked = Pick<Waiter, "priority" | "sinceMs">;

/** Adds a caller at its place. */
export function insert({ priorities }: Policy, waiters: Waiter[], waiter: Waiter): void {
  const rankMs = rankMsOf(priorities, waiter);
  let at = waiters.length;
  while (at > 0 && rankMsOf(priorities, waiters[at - 1] ?? waiter) > rankMs) at -= 1;
  waiters.splice(at, 0, waiter);
}

/** Those of the callers that a call which comes now may not pass. */
export function aheadOf({ priorities }: Policy, waiters: readonly Waiter[], call: Ranked): readonly Waiter[] {
  const rankMs = rankMsOf(priorities, call);
  return waiters.filter(
    (waiter) => rankMsOf(priorities, waiter) <= rankMs && !isKeptFor(priorities, call, waiter),
  );
}

/**
 * Tries to answer the callers in their order. Those who are answered, or whose wait is over, leave the list.
 *
 * @returns the instant at which the next of them can be served, if no units are given back; Infinity: nobody waits
 */
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
  // Callers behind one that still waits get their last answer when their own wait is over.
  const over = waiters.filter(({ untilMs }) => untilMs <= nowMs);
  if (over.length > 0) waiters.splice(0, waiters.length, ...waiters.filter(({ untilMs }) => untilMs > nowMs));
  for (const waiter of over) waiter.giveUp(nowMs);
  return waiters.length === 0 ? Infinity : nextMs;
}

function rankMsOf(priorities: Policy["priorities"], { priority, sinceMs }: Ranked): number {
  return sinceMs + rankOf(priorities, priority) * priorities.ageingMs;
}

/** Whether something is kept for one call that the other may not have. */
function isKeptFor(priorities: Policy["priorities"], call: Ranked, other: Ranked): boolean {
  const { names, reserve } = priorities;
  const between = names.slice(rankOf(priorities, call.priority), rankOf(priorities, other.priority));
  return between.some((name) => Object.hasOwn(reserve, name));
}

/** 0: the most important. */
function rankOf({ names, usual }: Policy["priorities"], priority: string | undefined): number {
  return names.indexOf(priority ?? usual);
}
