import { refund, uncharge } from "../../core/accounts/account.ts";
import {
  admitsTogether,
  decideTogether,
  withoutTaking,
  type JointDecision,
} from "../../core/accounts/joint-decision.ts";
import type { Answer, Decided } from "../../core/protocol/answers.ts";
import { writtenKey } from "../../core/protocol/caller-keys.ts";
import { costOf, costText, takesNothing, type Cost } from "../../core/protocol/cost.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import { full } from "../../core/protocol/problems.ts";
import { chargeOf, type Idempotent, takenOf, takesAll } from "../keys/idempotency.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { MISSING } from "./claims.ts";
import {
  cacheableDenial,
  kindMismatch,
  cacheableForMs,
  isProvisionallyBlocked,
  whenUncontended,
} from "./denials.ts";
import type { Limiting } from "./operations.ts";
import type { Turns } from "./turns.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** The calls that take units, and give units back: `limit` and `refund`. */
export class Limits {
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;
  readonly #turns: Turns;

  constructor(store: KeyStore, queue: WaitQueue, turns: Turns) {
    this.#store = store;
    this.#queue = queue;
    this.#turns = turns;
  }

  /**
   * Decides on a cost and takes it if every rule admits it: at once or, with `waitMs`, when the caller's turn comes.
   * While callers wait, a call that does not wait is denied: nobody passes them.
   */
  limit(keyState: KeyState, call: Limiting, nowMs: number): MaybePromise<Answer> {
    const { cost, waitMs, signal, caller, idempotencyKey, priority, shed } = call;
    this.#queue.serve(keyState);
    if (takesNothing(keyState.policy, cost)) return this.#look(keyState, call, nowMs);
    const isBehind = this.#queue.aheadOf(keyState, priority, nowMs).length > 0;
    if (shed !== undefined || (waitMs === undefined && !isBehind))
      return this.#limitAtOnce(keyState, call, nowMs);
    const turn = { cost, ttlMs: 0, waitMs, signal, caller, idempotencyKey, priority };
    return this.#turns.take(keyState, turn, nowMs, {
      earlier: (atMs) => this.#standing(keyState, call, atMs),
      grant: (atMs, waitedMs) =>
        admitsTogether(keyState.seenBy(priority), atMs, cost)
          ? this.#answer(keyState, call, this.#decide(keyState, call, atMs), atMs, waitedMs)
          : undefined,
      deny: (atMs) => this.#answer(keyState, call, this.#decide(keyState, call, atMs), atMs),
    });
  }

  /** Decides at once, and waits only for calls on several keys to end: see denials.ts. */
  #limitAtOnce(keyState: KeyState, call: Limiting, nowMs: number): MaybePromise<Answer> {
    const { cost } = call;
    const answerAt = (atMs: number, isLast: boolean): Answer | undefined => {
      // This is looked up each time: a repetition of this call may have been answered while this one waited.
      const standing = this.#standing(keyState, call, atMs) ?? kindMismatch(keyState, "units", atMs);
      if (standing !== undefined) return standing;
      if (call.shed !== undefined) return { shed: call.shed };
      const decided = this.#decide(keyState, call, atMs);
      if (!decided.admitted && !isLast && isProvisionallyBlocked(keyState, call, atMs)) return undefined;
      return this.#answer(keyState, call, decided, atMs);
    };
    const answer = answerAt(nowMs, false);
    if (answer !== undefined) return answer;
    if (call.isBatched === true) return full("batch-waits", 0);
    return whenUncontended(this.#queue, keyState, { cost }, nowMs, answerAt);
  }

  /** The answer to a cost that takes nothing. */
  #look(keyState: KeyState, call: Limiting, nowMs: number): Answer {
    return this.#earlier(keyState, call, nowMs) ?? { rules: this.#turns.look(keyState, call, nowMs) };
  }

  #earlier(keyState: KeyState, { cost, idempotencyKey }: Limiting, atMs: number): Answer | undefined {
    return this.#store.earlier(keyState, idempotentOf(cost, idempotencyKey), atMs);
  }

  /** The earlier answer to the same call, unless it is a denial that a rule has counted: that is decided anew. */
  #standing(keyState: KeyState, call: Limiting, atMs: number): Answer | undefined {
    const earlier = this.#earlier(keyState, call, atMs);
    return earlier !== undefined && isDenial(earlier) ? undefined : earlier;
  }

  #decide(keyState: KeyState, { cost, priority }: Limiting, atMs: number): JointDecision {
    return decideTogether(keyState.seenBy(priority), atMs, cost);
  }

  /** Writes what was decided, and remembers it under the call's idempotency key. */
  #answer(
    keyState: KeyState,
    call: Limiting,
    { admitted, accounts, rules }: JointDecision,
    atMs: number,
    waitedMs?: number,
  ): Answer {
    const { cost, idempotencyKey, priority } = call;
    // A denial that a rule has counted (`countDenied`) is not counted again.
    const isCounted = !admitted && this.#earlier(keyState, call, atMs) !== undefined;
    if (isCounted) return { rules: withoutTaking(keyState.seenBy(priority), atMs, cost) };
    const answer = { rules, ...(waitedMs !== undefined && { waitedMs }) };
    if (accounts === undefined) return admitted ? answer : this.#firmly(keyState, answer);
    const charge = admitted ? chargeOf(keyState.policy.rules, cost) : undefined;
    const idempotent = idempotentOf(cost, idempotencyKey);
    const remember = idempotent === undefined ? [] : [{ ...idempotent, answer, ...(charge && { charge }) }];
    const over = this.#store.commitWithin(keyState, { accounts, remember }, atMs);
    if (over !== undefined || !admitted || idempotent !== undefined) return over ?? answer;
    return this.#withDenialToCome(keyState, priority, answer, atMs);
  }

  /** An admission, with the denial of the next call if nothing is left. */
  #withDenialToCome(
    keyState: KeyState,
    priority: string | undefined,
    answer: Decided,
    atMs: number,
  ): Decided {
    const isLast = answer.rules.some(({ remaining }) => remaining === 0);
    if (!isLast || !keyState.policy.localDecisions.denies) return answer;
    const isInLine = this.#queue.waitersOf(keyState).length > 0;
    return { ...answer, ...cacheableDenial(keyState, { priority, isInLine }, atMs) };
  }

  /** A denial that changes nothing, with how long it stands. */
  #firmly(keyState: KeyState, answer: Decided): Decided {
    const isInLine = this.#queue.waitersOf(keyState).length > 0;
    const firmMs = cacheableForMs(keyState, undefined, isInLine);
    return firmMs > 0 ? { ...answer, firmForMs: firmMs } : answer;
  }

  /** Gives units back, at most up to an untouched quota. */
  refund(
    keyState: KeyState,
    units: Cost,
    idempotencyKey: string,
    charge: string | undefined,
    nowMs: number,
  ): Answer {
    const idempotent = { idempotencyKey, request: refundText(units, charge) };
    const earlier = this.#store.earlier(keyState, idempotent, nowMs);
    if (earlier !== undefined) return earlier;
    const standing = charge === undefined ? undefined : this.#store.chargeOf(keyState, charge, nowMs);
    if (charge !== undefined && standing === undefined) return MISSING;
    const refunded = keyState.seenBy().map(({ rule, account }) => ({
      rule,
      account:
        standing === undefined
          ? refund(rule, account, nowMs, costOf(rule, units))
          : uncharge(rule, account, nowMs, takenOf(rule, standing.charge, units), standing.atMs),
    }));
    const answer = { rules: withoutTaking(refunded, nowMs, 0) };
    const accounts = refunded.map(({ account }) => account);
    // All in one commit: a charge that stood while its units are back could be given back again.
    const change = { accounts, remember: [{ ...idempotent, answer }] };
    // Nothing is left of a charge that came back whole. So its call is decided anew when it is made again.
    const isWhole = standing !== undefined && takesAll(keyState.policy.rules, standing.charge, units);
    const end = charge === undefined ? {} : isWhole ? { forget: [charge] } : { uncharge: charge };
    const over = this.#store.commitWithin(keyState, { ...change, ...end }, nowMs);
    if (over === undefined) this.#queue.serve(keyState);
    return over ?? answer;
  }
}

function idempotentOf(cost: Cost, idempotencyKey: string | undefined): Idempotent | undefined {
  return idempotencyKey === undefined ? undefined : { idempotencyKey, request: `limit of ${costText(cost)}` };
}

/** A refund in words, with the call whose charge it gives back. Stored: never reword. */
export function refundText(units: Cost, charge: string | undefined): string {
  const text = `refund of ${costText(units)}`;
  return charge === undefined ? text : `${text} of the charge ${JSON.stringify(writtenKey(charge))}`;
}

function isDenial(answer: Answer): boolean {
  return "rules" in answer && answer.rules.some(({ success }) => !success);
}
