/** A call takes units in its turn, or is denied at once, with the exact wait, if that cannot end in time. */
import { admitsUnprovisional, withoutTaking } from "../../core/accounts/account.ts";
import {
  leastWaitMs,
  type PlannedCost,
  type QueuedCost,
  waitBehindMs,
} from "../../core/accounts/queue-waits.ts";
import { shareBehind } from "../../core/algorithms/fair/fair.ts";
import { type Cost, costOf } from "../../core/policies/policy.ts";
import type { Answer, Decided, RuleDecision } from "../../core/protocol/answers.ts";
import type { SeenBy } from "../../core/protocol/calls.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { LeaveSignal } from "./operations.ts";
import type { WaitQueue } from "./wait-queue.ts";

interface RequestedUnits extends SeenBy {
  readonly cost: Cost;
}

interface TurnCall extends RequestedUnits {
  /** How long a lease will last; 0: the units are used. */
  readonly ttlMs: number;
  readonly caller?: string | undefined;
  /** `AcquireCall.mark`. */
  readonly mark?: string | undefined;
  readonly idempotencyKey?: string | undefined;
  /** Aborted when the caller has gone: the call leaves the queue, and is granted nothing. */
  readonly signal?: LeaveSignal | undefined;
}

/** How such a call is answered. Called again at each instant at which the answer may change. */
interface TurnAnswers {
  earlier(atMs: number): Answer | undefined;
  /** Takes the units; `undefined`: a rule denies them. */
  grant(atMs: number, waitedMs: number | undefined): Answer | undefined;
  deny(atMs: number): Answer;
}

/** The answer for a caller that has gone. */
export const TO_NOBODY: Decided = { rules: [] };

export function takeTurn(
  queue: WaitQueue,
  keyState: KeyState,
  call: TurnCall,
  nowMs: number,
  answers: TurnAnswers,
): MaybePromise<Answer> {
  queue.serve(keyState, false);
  const { cost, ttlMs, signal, caller, idempotencyKey, priority, group, namedBy, inForce } = call;
  const waitedAt = (atMs: number) => (call.waitMs === undefined ? {} : { waitedMs: atMs - nowMs });
  const standing = (atMs: number): Answer | undefined => {
    const hasLeases = keyState.policy.lease !== undefined;
    const known = answers.earlier(atMs);
    if (known !== undefined || hasLeases === ttlMs > 0) return known;
    return { ...kindMismatch(keyState, atMs), ...waitedAt(atMs) };
  };
  const earlier = standing(nowMs);
  if (earlier !== undefined) return earlier;
  const { policy } = keyState;
  const waiters = queue.aheadOf(keyState, call, nowMs);
  const granted = waiters.length === 0 ? answers.grant(nowMs, waitedAt(nowMs).waitedMs) : undefined;
  if (granted !== undefined) return granted;
  const waitMs = policy.shadow ? 0 : (call.waitMs ?? 0);
  const minMs =
    waitMs === 0
      ? Infinity
      : (leastWaitMs(keyState.seenBy(call), planned(keyState, call, waiters), cost, nowMs) ?? Infinity);
  const deny = (atMs: number, reason?: Decided["reason"]): Answer => {
    const ahead = queue.aheadOf(keyState, call, atMs);
    const answer =
      ahead.length === 0 ? answers.deny(atMs) : { rules: behind(queue, keyState, call, atMs, ahead) };
    return { ...answer, ...waitedAt(atMs), ...(reason && { reason }) };
  };
  if (minMs > waitMs) return deny(nowMs);
  if (!queue.makeRoom(keyState, waiters.length, call, nowMs)) return deny(nowMs, "queue-full");
  const over = queue.fullFor(caller);
  if (over !== undefined) return over;
  const apart = keyState.seenBy(call).map(({ rule }) => rule.apart ?? 0);
  const untilMs = nowMs + waitMs;
  const waiting = {
    mark: call.mark,
    cost,
    ttlMs,
    sinceMs: nowMs,
    untilMs,
    caller,
    idempotencyKey,
    priority,
    group,
    namedBy,
    inForce,
    waitMs,
    apart,
  };
  const answerAt = (atMs: number, isLast: boolean, isPushedOut = false) => {
    const last = isPushedOut ? "queue-full" : "wait-timeout";
    return standing(atMs) ?? (isLast ? deny(atMs, last) : answers.grant(atMs, atMs - nowMs));
  };
  return queue.wait(keyState, waiting, answerAt, signal && { signal, answer: TO_NOBODY });
}

export function peekTurn(queue: WaitQueue, keyState: KeyState, call: RequestedUnits, nowMs: number) {
  const waiters = queue.aheadOf(keyState, call, nowMs);
  return waiters.length === 0
    ? behindOlder(queue, keyState, call, nowMs, withoutTaking(keyState.seenBy(call), nowMs, call.cost))
    : behind(queue, keyState, call, nowMs, waiters);
}

/** The denials of a call that nobody is ahead of now, as `retryMs` has their waits. */
export function behindOlder(
  queue: WaitQueue,
  keyState: KeyState,
  call: RequestedUnits,
  nowMs: number,
  rules: readonly RuleDecision[],
): readonly RuleDecision[] {
  if (queue.waitersOf(keyState).length === 0) return rules;
  const deniedMs = rules.map(({ success, retryAfterMs }) => (success ? 0 : (retryAfterMs ?? Infinity)));
  const soonestMs = Math.max(...deniedMs);
  if (soonestMs === 0 || soonestMs === Infinity) return rules;
  const retryAfterMs = retryMs(queue, keyState, call, nowMs, { ahead: [], waitMs: soonestMs });
  return retryAfterMs === soonestMs
    ? rules
    : rules.map((rule) => (rule.success ? rule : { ...rule, retryAfterMs }));
}

/** So often the waiters that age past a call are sought. Then all that may age so count. */
const MAX_SEARCHES = 8;

/**
 * When a call passes if it comes again then. Calls that wait have aged meanwhile: it may come behind some that it would
 * pass now, and its wait behind these may be so long that more have aged.
 */
function retryMs(
  queue: WaitQueue,
  keyState: KeyState,
  call: RequestedUnits,
  nowMs: number,
  first: { readonly ahead: readonly QueuedCost[]; readonly waitMs: number | null },
): number | null {
  let { ahead, waitMs } = first;
  for (let searches = 1; waitMs !== null; searches += 1) {
    const againMs = searches < MAX_SEARCHES ? nowMs + waitMs : Infinity;
    const older = queue.aheadOf(keyState, call, nowMs, againMs);
    if (older.length === ahead.length) break;
    ahead = older;
    waitMs = waitBehindMs(keyState.seenBy(call), planned(keyState, call, ahead), call.cost, nowMs);
  }
  return waitMs;
}

/** Decides a cost behind these waiters: only a rate beside a rule that leases has units before they do. */
function behind(
  queue: WaitQueue,
  keyState: KeyState,
  call: RequestedUnits,
  nowMs: number,
  waiters: readonly QueuedCost[],
) {
  const { cost } = call;
  const { policy } = keyState;
  const ruleStates = keyState.seenBy(call);
  const waitMs = waitBehindMs(ruleStates, planned(keyState, call, waiters), cost, nowMs);
  const retryAfterMs = retryMs(queue, keyState, call, nowMs, { ahead: waiters, waitMs });
  return withoutTaking(ruleStates, nowMs, cost).map((decision, index): RuleDecision => {
    const { rule, account } = ruleStates[index] ?? {};
    const isQueued = rule !== undefined && (policy.lease === undefined || rule.lease !== undefined);
    if (!isQueued || decision.reason === "cost-over-limit") return decision;
    if (costOf(rule, cost) === 0) return { ...decision, remaining: 0 };
    const reason = decision.success ? "quota" : decision.reason;
    const { delayMs: _, ...denied } = decision;
    const own = waiters
      .filter(({ group }) => group === call.group)
      .map((waiter) => costOf(rule, waiter.cost));
    const share = shareBehind(rule.config, account?.state, nowMs, costOf(rule, cost), own);
    return { ...denied, ...(share && { share }), success: false, remaining: 0, retryAfterMs, reason };
  });
}

/** The waiters with the rules of the plans that they name, where those are others than the call's. */
function planned(
  keyState: KeyState,
  call: RequestedUnits,
  waiters: readonly QueuedCost[],
): readonly PlannedCost[] {
  const { plan } = call.inForce ?? {};
  if (waiters.every(({ inForce }) => inForce?.plan === plan)) return waiters;
  const byPlan = new Map([[plan, undefined as PlannedCost["ruleAccounts"]]]);
  return waiters.map((waiter) => {
    const { inForce } = waiter;
    if (!byPlan.has(inForce?.plan))
      byPlan.set(inForce?.plan, keyState.seenBy({ ...call, inForce, waitMs: Infinity }));
    return { ...waiter, ruleAccounts: byPlan.get(inForce?.plan) };
  });
}

/** Denies a call that waited while its policy changed between a rate and slots: nothing would count it. */
export function kindMismatch(keyState: KeyState, nowMs: number): Decided {
  const rules = withoutTaking(keyState.seenBy(), nowMs, 0).map(
    (rule) => ({ ...rule, success: false, retryAfterMs: null, reason: "cost-over-limit" }) as const,
  );
  return { rules };
}

/* Calls on several keys hold units provisionally. A call that would pass without these waits for their end. */

/** At most half the policy's deadline. A denial at once would be needless, its `retryAfterMs` wrong. */
const CONTENTION_WAIT_MS = 250;

/** Whether the cost would pass without provisional holds. */
export function isProvisionallyBlocked(keyState: KeyState, call: RequestedUnits, nowMs: number): boolean {
  const { cost } = call;
  for (const { isProvisional } of keyState.claims.values()) {
    if (isProvisional !== true) continue;
    return keyState
      .seenBy(call)
      .every(({ rule, account }) => admitsUnprovisional(rule, account, nowMs, costOf(rule, cost)));
  }
  return false;
}

/** Waits until `answerAt` answers, as it must when `isLast`: for `waitMs`, by default `CONTENTION_WAIT_MS`. */
export function whenUncontended<Result>(
  queue: WaitQueue,
  keyState: KeyState,
  {
    cost,
    group,
    inForce,
    ttlMs = 0,
    waitMs,
  }: RequestedUnits & { readonly ttlMs?: number; readonly waitMs?: number },
  nowMs: number,
  answerAt: (atMs: number, isLast: boolean) => Result | undefined,
): MaybePromise<Result> {
  // If too many calls wait already, this one gets its last answer at once.
  const last = queue.fullFor(undefined) === undefined ? undefined : answerAt(nowMs, true);
  if (last !== undefined) return last;
  const maxMs = waitMs ?? Math.min(CONTENTION_WAIT_MS, Math.floor(keyState.policy.deadlineMs / 2));
  const untilMs = nowMs + maxMs;
  return queue.wait(
    keyState,
    { cost, group, inForce, ttlMs, sinceMs: nowMs, untilMs, isBrief: true },
    answerAt,
  );
}

/**
 * How long a denial is valid before its wait is over, in milliseconds; 0: unknown.
 *
 * An exact wait assumes that all held units get used: units returned unused end it sooner. Without held
 * units, only a refund, a reset, a debit or another policy returns any. Another isolate may do so, so the
 * policy bounds the time (`denialTtl`). Units taken, or held and returned, after the denial never make it
 * shorter. Units that the holder settled in the window before leave a sliding window counter sooner: at most
 * a sixteenth of the limit, so a cost of 1 passes sooner by at most a fifteenth of the time between two
 * units, which is worth no message.
 *
 * The time is unknown where callers wait, since they may leave; of a pool, whose other regions hold units; of a region
 * that decides alone until the pool answers; and where groups share a rule: a group's wait ends sooner when others leave.
 *
 * @param holder the isolate that gets the denial, which knows when it returns units itself
 * @param isInLine callers wait for units of the key
 */
export function cacheableForMs(keyState: KeyState, holder: string | undefined, isInLine: boolean): number {
  const { ruleStates, policy, holders } = keyState;
  const isShared = policy.pool !== undefined || policy.region !== undefined || policy.isFair === true;
  if (isShared || isInLine || !policy.localDecisions.denies) return 0;
  const own = holder === undefined ? undefined : holders.get(holder)?.hold;
  const isHeld = ruleStates.some(({ account }) => account.holds.some(({ id }) => id !== own));
  return isHeld ? 0 : policy.denialTtlMs;
}

/** The denial of a further call of cost 1, if any, and how long it is valid: it saves the next call. */
export function cacheableDenial(
  keyState: KeyState,
  holder: string | undefined,
  of: SeenBy,
  isInLine: boolean,
  nowMs: number,
): Pick<Decided, "next" | "firmForMs"> {
  const next = withoutTaking(keyState.seenBy(of), nowMs, 1);
  if (next.every(({ success }) => success)) return {};
  const firmMs = cacheableForMs(keyState, holder, isInLine);
  return { next, ...(firmMs > 0 && { firmForMs: firmMs }) };
}
