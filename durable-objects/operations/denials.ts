/**
 * Contention with calls on several keys. Such a call takes a provisional hold on each key, and settles or cancels them
 * all a few messages later. A call that would pass without provisional holds waits for their end, and is not denied.
 */
import { admitsUnprovisional } from "../../core/accounts/account.ts";
import { withoutTaking } from "../../core/accounts/joint-decision.ts";
import { type Cost, costOf } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { WaitQueue } from "./wait-queue.ts";

/**
 * The longest that a call waits for provisional holds to end, in milliseconds; half the policy's deadline if that is
 * less. A denial at once would be needless, and its `retryAfterMs` wrong.
 */
const CONTENTION_WAIT_MS = 250;

/** What a call asks for, and how important it is. */
interface RequestedUnits {
  readonly cost: Cost;
  readonly priority?: string | undefined;
}

/** Whether the key has provisional holds, and the cost would pass without them. */
export function isProvisionallyBlocked(
  keyState: KeyState,
  { cost, priority }: RequestedUnits,
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
): MaybePromise<Result> {
  // Where too many calls wait already, this one gets its last answer at once.
  const last = queue.fullFor(undefined) === undefined ? undefined : answerAt(nowMs, true);
  if (last !== undefined) return last;
  const mostMs = waitMs ?? Math.min(CONTENTION_WAIT_MS, Math.floor(keyState.policy.deadlineMs / 2));
  const untilMs = nowMs + mostMs;
  return queue.wait(keyState, { cost, ttlMs, sinceMs: nowMs, untilMs, isBrief: true }, answerAt);
}

/**
 * For how long a denial stands before its wait is over, whatever isolates do, in milliseconds; 0: nobody knows.
 *
 * An exact wait reckons that every unit which is held is used. So units that come back unused end it sooner. Where
 * nobody holds units of the key, only who says so gives any back: by a refund, a reset, a debit or another policy. That
 * may happen through another isolate, which is why the policy bounds the time (`denialTtl`). Units that are taken, or
 * held and given back, after the denial make it last longer, or leave it as it was.
 *
 * An exact wait also reckons that units are used when their hold ends. Those that the holder itself used and settled in
 * the window before that leave the view of a sliding window counter sooner. It has a sixteenth of the limit at most, so
 * a cost of 1 passes sooner by a fifteenth of the time between two units at most, and no message is worth that.
 *
 * Where nobody could tell, it is not firm: callers that wait in line may leave it, and so their places; of a pool other
 * regions hold units; and what a region decides alone is over when the pool answers again.
 *
 * @param holder the id of the isolate that is told, which knows when it gives back units itself
 * @param isInLine callers wait for units of the key
 */
export function cacheableForMs(keyState: KeyState, holder: string | undefined, isInLine: boolean): number {
  const { accounts, policy, holders } = keyState;
  const isShared = policy.pool !== undefined || policy.region !== undefined;
  if (isShared || isInLine || !policy.localDecisions.denies) return 0;
  const own = holder === undefined ? undefined : holders.get(holder)?.hold;
  const isHeld = accounts.some(({ holds }) => holds.some(({ id }) => id !== own));
  return isHeld ? 0 : policy.denialTtlMs;
}

/**
 * What would be said of a further call of cost 1, if that is a denial, and for how long it stands: so whoever was given
 * the last unit need not ask again to hear that there is none.
 *
 * @param holder the id of the isolate that is told
 * @param isInLine callers wait for units of the key
 */
export function cacheableDenial(
  keyState: KeyState,
  {
    holder,
    priority,
    isInLine,
  }: { readonly holder?: string; readonly priority?: string | undefined; readonly isInLine: boolean },
  nowMs: number,
): Pick<Decided, "next" | "firmForMs"> {
  const next = withoutTaking(keyState.seenBy(priority), nowMs, 1);
  if (next.every(({ success }) => success)) return {};
  const firmMs = cacheableForMs(keyState, holder, isInLine);
  return { next, ...(firmMs > 0 && { firmForMs: firmMs }) };
}

/*
 * Calls for what their policy does not have any more. A policy may go from units of a rate to slots that are leased, or
 * back, while a call is under way: its isolate has not heard of it yet, or it has waited in line since. Such a call can
 * never have what it asked for, and must not pass: nobody would count it.
 */

/** What a call asks for: units of rates, which it uses, or slots, which it leases. */
type Kind = "units" | "slots";

/** The denial of a call that asks for the other kind; `undefined`: its policy has what it asks for. */
export function kindMismatch(keyState: KeyState, kind: Kind, nowMs: number): Decided | undefined {
  const has: Kind = keyState.policy.lease === undefined ? "units" : "slots";
  if (has === kind) return undefined;
  const rules = withoutTaking(keyState.seenBy(), nowMs, 0).map(
    (rule) => ({ ...rule, success: false, retryAfterMs: null, reason: "cost-over-limit" }) as const,
  );
  return { rules };
}
