import { inWords } from "./claims.ts";
import { isProvisionallyBlocked, whenUncontended } from "./contention.ts";
import { costOf, decideTogether, withoutTaking } from "../../core/accounts/joint-decision.ts";
import type { Entry } from "../keys/key-state.ts";
import { refund } from "../../core/accounts/account.ts";
import type { Ledger } from "../keys/key-store.ts";
import type { AnswerText, Cost, Decided } from "../../core/protocol/messages.ts";
import type { WaitingRoom } from "./wait-queue.ts";

/** Units that are taken at once, and given back. */
export class Limits {
  readonly #ledger: Ledger;
  readonly #room: WaitingRoom;

  constructor(ledger: Ledger, room: WaitingRoom) {
    this.#ledger = ledger;
    this.#room = room;
  }

  /** Decides on a cost and takes it if every rule admits it. */
  limit(
    entry: Entry,
    cost: Cost,
    idempotencyKey: string | undefined,
    nowMs: number,
  ): AnswerText | Promise<AnswerText> {
    const idempotent =
      idempotencyKey === undefined ? undefined : { idempotencyKey, request: `limit of ${inWords(cost)}` };
    const answerAt = (atMs: number, isLast: boolean): AnswerText | undefined => {
      // Looked up each time: the same call made again may have been answered while this one waited.
      const earlier = this.#ledger.earlier(entry, idempotent, atMs);
      // A denial that was counted is not counted again, but decided anew.
      const isCounted = earlier !== undefined && isDenial(earlier);
      if (earlier !== undefined && !isCounted) return earlier;
      const { admitted, accounts, rules } = decideTogether(entry.books, atMs, cost);
      if (!admitted && !isLast && isProvisionallyBlocked(entry, cost, atMs)) return undefined;
      if (!admitted && isCounted) return JSON.stringify({ rules: withoutTaking(entry.books, atMs, cost) });
      const answer = JSON.stringify({ rules } satisfies Decided);
      const remember = idempotent === undefined ? [] : [{ ...idempotent, answer }];
      if (accounts !== undefined && cost !== 0) this.#ledger.commit(entry, { accounts, remember }, atMs);
      return answer;
    };
    return answerAt(nowMs, false) ?? whenUncontended(this.#room, entry, { cost }, nowMs, answerAt);
  }

  /** Gives units back, at most up to an untouched quota. */
  refund(entry: Entry, units: Cost, idempotencyKey: string, nowMs: number): AnswerText {
    const idempotent = { idempotencyKey, request: `refund of ${inWords(units)}` };
    const earlier = this.#ledger.earlier(entry, idempotent, nowMs);
    if (earlier !== undefined) return earlier;
    const refunded = entry.books.map(({ rule, account }) => ({
      rule,
      account: refund(rule, account, nowMs, costOf(rule, units)),
    }));
    const answer = JSON.stringify({ rules: withoutTaking(refunded, nowMs, 0) } satisfies Decided);
    const accounts = refunded.map(({ account }) => account);
    this.#ledger.commit(entry, { accounts, remember: [{ ...idempotent, answer }] }, nowMs);
    this.#room.serve(entry);
    return answer;
  }
}

function isDenial(answer: AnswerText): boolean {
  const { rules = [] } = JSON.parse(answer) as Partial<Decided>;
  return rules.some(({ success }) => !success);
}
