import { refund } from "../../core/accounts/account.ts";
import { decideTogether, withoutTaking } from "../../core/accounts/joint-decision.ts";
import { costOf, costText, type Cost } from "../../core/protocol/cost.ts";
import type { Answer } from "../../core/protocol/messages.ts";
import type { Maybe } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { KeyStore } from "../keys/key-store.ts";
import { isProvisionallyBlocked, whenUncontended } from "./contention.ts";
import type { WaitQueue } from "./wait-queue.ts";

/** The calls that take units at once, and give units back: `limit` and `refund`. */
export class Limits {
  readonly #store: KeyStore;
  readonly #queue: WaitQueue;

  constructor(store: KeyStore, queue: WaitQueue) {
    this.#store = store;
    this.#queue = queue;
  }

  /** Decides on a cost and takes it if every rule admits it. */
  limit(keyState: KeyState, cost: Cost, idempotencyKey: string | undefined, nowMs: number): Maybe<Answer> {
    const idempotent =
      idempotencyKey === undefined ? undefined : { idempotencyKey, request: `limit of ${costText(cost)}` };
    const answerAt = (atMs: number, isLast: boolean): Answer | undefined => {
      // This is looked up each time: a repetition of this call may have been answered while this one waited.
      const earlier = this.#store.earlier(keyState, idempotent, atMs);
      // A denial that a rule has counted (`countDenied`) is decided anew, but not counted again.
      const isCounted = earlier !== undefined && isDenial(earlier);
      if (earlier !== undefined && !isCounted) return earlier;
      const { admitted, accounts, rules } = decideTogether(keyState.ruleStates, atMs, cost);
      if (!admitted && !isLast && isProvisionallyBlocked(keyState, cost, atMs)) return undefined;
      if (!admitted && isCounted) return { rules: withoutTaking(keyState.ruleStates, atMs, cost) };
      const answer = { rules };
      const remember = idempotent === undefined ? [] : [{ ...idempotent, answer }];
      if (accounts !== undefined && cost !== 0) this.#store.commit(keyState, { accounts, remember }, atMs);
      return answer;
    };
    return answerAt(nowMs, false) ?? whenUncontended(this.#queue, keyState, { cost }, nowMs, answerAt);
  }

  /** Gives units back, at most up to an untouched quota. */
  refund(keyState: KeyState, units: Cost, idempotencyKey: string, nowMs: number): Answer {
    const idempotent = { idempotencyKey, request: `refund of ${costText(units)}` };
    const earlier = this.#store.earlier(keyState, idempotent, nowMs);
    if (earlier !== undefined) return earlier;
    const refunded = keyState.ruleStates.map(({ rule, account }) => ({
      rule,
      account: refund(rule, account, nowMs, costOf(rule, units)),
    }));
    const answer = { rules: withoutTaking(refunded, nowMs, 0) };
    const accounts = refunded.map(({ account }) => account);
    this.#store.commit(keyState, { accounts, remember: [{ ...idempotent, answer }] }, nowMs);
    this.#queue.serve(keyState);
    return answer;
  }
}

function isDenial(answer: Answer): boolean {
  return "rules" in answer && answer.rules.some(({ success }) => !success);
}
