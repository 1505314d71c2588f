import { DurableObject } from "cloudflare:workers";
import { readClockMs } from "./clock.ts";
import { decideTogether, withoutTaking } from "./decisions.ts";
import { policies } from "./deployment.ts";
import { outstandingOf, refund, type Account } from "./holds.ts";
import { findAnswer, rememberAnswer, type Idempotent } from "./idempotency.ts";
import { accountsOf, KeyBook, QUIET_MS, type Entry } from "./key-book.ts";
import type { AnswerText, Decided, LimiterMethods, Peeked } from "./protocol.ts";
import { Storage } from "./storage.ts";
import { FORGET_AFTER_MS, sweep } from "./sweep.ts";

/** An alarm is moved forward only for this much or more: each move is a row written. */
const ALARM_SLACK_MS = 60_000;
/** No alarm is set further ahead; it looks again then. */
const MOST_ALARM_MS = 30 * 24 * 60 * 60 * 1_000;

/**
 * The object: load, decide, save, answer. It serves one or many keys of one policy. Nothing is awaited
 * between reading and writing, so there are no locks; and what an answer says has been written, or is covered
 * by what was, before it leaves (the output gate holds it back until the write is durable).
 */
export class LimiterObject extends DurableObject implements LimiterMethods {
  readonly #storage: Storage;
  readonly #book: KeyBook;
  #lastNowMs = 0;
  #alarmAtMs = Infinity;
  #hasQuietTimer = false;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    this.#storage = new Storage(ctx.storage);
    this.#book = new KeyBook(this.#storage);
    if (!this.#storage.isEmpty) {
      void ctx.blockConcurrencyWhile(async () => {
        this.#alarmAtMs = (await ctx.storage.getAlarm()) ?? Infinity;
      });
    }
  }

  /** Decides on `cost` units and takes them if every rule admits them. */
  limit(policy: string, key: string, cost: number, idempotencyKey?: string): AnswerText {
    const nowMs = this.#nowMs();
    const entry = this.#open(policy, key, nowMs);
    const idempotent =
      idempotencyKey === undefined ? undefined : { idempotencyKey, request: `limit of ${cost}` };
    const earlier = idempotent && findAnswer(this.#storage, this.#book, entry, idempotent, nowMs);
    if (earlier !== undefined) return earlier;
    const decision = decideTogether(entry.books, nowMs, cost);
    const answer = JSON.stringify({ rules: decision.rules } satisfies Decided);
    if (decision.admitted && cost > 0) this.#commit(entry, decision.accounts, nowMs, answer, idempotent);
    return answer;
  }

  /** Gives units back, at most up to an untouched quota. */
  refund(policy: string, key: string, units: number, idempotencyKey: string): AnswerText {
    const nowMs = this.#nowMs();
    const entry = this.#open(policy, key, nowMs);
    const idempotent = { idempotencyKey, request: `refund of ${units}` };
    const earlier = findAnswer(this.#storage, this.#book, entry, idempotent, nowMs);
    if (earlier !== undefined) return earlier;
    const refunded = entry.books.map(({ rule, account }) => ({
      rule,
      account: refund(rule, account, nowMs, units),
    }));
    const answer = JSON.stringify({ rules: withoutTaking(refunded, nowMs, 0) } satisfies Decided);
    this.#commit(
      entry,
      refunded.map(({ account }) => account),
      nowMs,
      answer,
      idempotent,
    );
    return answer;
  }

  /** What a call of cost 1 would be answered, and what is outstanding; nothing is taken. */
  peek(policy: string, key: string): Peeked {
    const nowMs = this.#nowMs();
    const entry = this.#open(policy, key, nowMs);
    const outstanding = Math.max(...accountsOf(entry).map(outstandingOf));
    return { rules: withoutTaking(entry.books, nowMs, 1), outstanding };
  }

  /** Makes the key as new: its consumption and its idempotency keys are forgotten. */
  reset(policy: string, key: string): void {
    const entry = this.#open(policy, key, this.#nowMs());
    this.#storage.atomically(() => {
      this.#storage.removeAnswers(key);
      this.#storage.remove(key);
    });
    this.#book.drop(entry);
  }

  /** Forgets keys that are whole again and answers that no longer stand; deletes everything when nothing is left. */
  override async alarm(): Promise<void> {
    const nowMs = this.#nowMs();
    this.#alarmAtMs = Infinity;
    const dueMs = sweep(this.#storage, this.#book, policies, nowMs);
    if (dueMs === undefined) await this.#storage.removeAll();
    else this.#alarmBy(dueMs, nowMs);
  }

  #open(policyName: string, key: string, nowMs: number): Entry {
    const policy = policies.get(policyName);
    // Only while versions mix: the worker has a policy that this object's version does not know yet.
    if (policy === undefined)
      throw new Error(`this version of the object has no policy ${JSON.stringify(policyName)}`);
    const entry = this.#book.open(policy, key, nowMs);
    this.#watchQuiet();
    return entry;
  }

  /** Saves what has to be saved, then makes it the truth. If saving throws, nothing has happened. */
  #commit(
    entry: Entry,
    accounts: readonly Account[],
    nowMs: number,
    answer: AnswerText,
    idempotent: Idempotent | undefined,
  ): void {
    const write = () => this.#book.write(entry, accounts, nowMs, this.#book.isHot(entry, nowMs));
    if (idempotent !== undefined) {
      const writeBoth = () => {
        rememberAnswer(this.#storage, entry, idempotent, answer, nowMs);
        return write();
      };
      this.#alarmBy(this.#allOrNothing(entry, writeBoth) + FORGET_AFTER_MS, nowMs);
    } else if (!this.#book.isCovered(entry, accounts, nowMs)) {
      this.#alarmBy(write() + FORGET_AFTER_MS, nowMs);
    }
    this.#book.take(entry, accounts, nowMs);
    this.#watchQuiet();
  }

  /** A charge without its answer would be charged twice, an answer without its charge not at all. */
  #allOrNothing<Result>(entry: Entry, work: () => Result): Result {
    try {
      return this.#storage.atomically(work);
    } catch (error) {
      // What memory believes to be stored may not be: start over from what is.
      this.#book.drop(entry);
      throw error;
    }
  }

  /** Sees to it that an alarm comes by then. */
  #alarmBy(dueMs: number, nowMs: number): void {
    const alarmAtMs = Math.min(dueMs, nowMs + MOST_ALARM_MS);
    if (this.#alarmAtMs <= alarmAtMs + ALARM_SLACK_MS) return;
    this.#alarmAtMs = alarmAtMs;
    void this.ctx.storage.setAlarm(alarmAtMs);
  }

  /** While memory is ahead of storage, a timer writes what has been quiet; it keeps no idle object in memory. */
  #watchQuiet(): void {
    if (this.#hasQuietTimer || !this.#book.isAhead) return;
    this.#hasQuietTimer = true;
    setTimeout(() => {
      this.#hasQuietTimer = false;
      this.#book.writeQuiet(this.#nowMs());
      this.#watchQuiet();
    }, QUIET_MS);
  }

  /** The clock of this object never runs backwards. */
  #nowMs(): number {
    this.#lastNowMs = Math.max(this.#lastNowMs, readClockMs());
    return this.#lastNowMs;
  }
}
