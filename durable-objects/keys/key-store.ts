import { settle, type Account } from "../../core/accounts/account.ts";
import { findAnswer, rememberAnswer, type Idempotent } from "./idempotency.ts";
import type { Entry } from "./key-state.ts";
import type { KeyBook } from "./key-cache.ts";
import type { Policies } from "../../core/policies/parse-policies.ts";
import type { AnswerText } from "../../core/protocol/messages.ts";
import type { Claim, Storage } from "../storage/storage.ts";

/** What one call changes. All of it is saved, or nothing. */
export interface Change {
  readonly accounts: readonly Account[];
  /** A hold or lease that begins or is renewed, and those that end. */
  readonly put?: readonly Claim[];
  readonly end?: readonly Claim[];
  /** Answers to give again to whoever repeats the call. */
  readonly remember?: readonly (Idempotent & { readonly answer: AnswerText })[];
  /** Idempotency keys whose answers do not stand any more. */
  readonly forget?: readonly string[];
}

/**
 * Opens keys, and saves what a call changed before it becomes the truth. Everything is synchronous: nothing comes
 * between opening a key and saving it.
 */
export class Ledger {
  readonly #policies: Pick<Policies, "get">;
  readonly #storage: Storage;
  readonly #book: KeyBook;
  /** Told of the instant from which a key that was written is whole. */
  readonly #onWritten: (wholeMs: number, nowMs: number) => void;

  constructor(
    policies: Pick<Policies, "get">,
    storage: Storage,
    book: KeyBook,
    onWritten: (wholeMs: number, nowMs: number) => void,
  ) {
    this.#policies = policies;
    this.#storage = storage;
    this.#book = book;
    this.#onWritten = onWritten;
  }

  open(policyName: string, key: string, nowMs: number): Entry {
    const policy = this.#policies.get(policyName);
    // Only while versions mix: the worker has a policy that this object's version does not know yet.
    if (policy === undefined)
      throw new Error(`this version of the object has no policy ${JSON.stringify(policyName)}`);
    return this.#book.open(policy, key, nowMs);
  }

  /** What was answered before under an idempotency key. */
  earlier(entry: Entry, idempotent: Idempotent | undefined, nowMs: number): AnswerText | undefined {
    const isWhole = () => this.#book.isWhole(entry, nowMs);
    return idempotent && findAnswer(this.#storage, entry, idempotent, nowMs, isWhole);
  }

  /** Saves what has to be saved, then makes it the truth. If saving throws, nothing has happened. */
  commit(entry: Entry, change: Change, nowMs: number): void {
    const { accounts, put = [], end = [], remember = [], forget = [] } = change;
    const isCovered = this.#book.isCovered(entry, accounts, nowMs);
    // Whatever else is stored has a record beside it, which the alarm finds it by.
    const isRecorded = entry.books.some(({ stored }) => stored !== undefined);
    const write = () => this.#book.write(entry, accounts, nowMs, this.#book.isHot(entry, nowMs));
    const writesRecord = !isCovered || remember.length > 0 || (put.length > 0 && !isRecorded);
    const writesRows = put.length + end.length + remember.length + forget.length > 0;
    const writeAll = () => {
      for (const claim of end) this.#storage.removeClaim(entry.key, claim.id);
      for (const claim of put) this.#storage.writeClaim(entry.key, claim);
      for (const each of forget) this.#storage.answers.remove(entry.key, each);
      for (const { answer, ...each } of remember) rememberAnswer(this.#storage, entry, each, answer, nowMs);
      return writesRecord ? write() : undefined;
    };
    const wholeMs = writesRows
      ? this.#allOrNothing(entry, writeAll, nowMs)
      : writesRecord
        ? write()
        : undefined;
    if (wholeMs !== undefined) this.#onWritten(wholeMs, nowMs);
    for (const claim of end) entry.claims.delete(claim.id);
    for (const claim of put) entry.claims.set(claim.id, claim);
    this.#book.take(entry, accounts, nowMs);
  }

  /** Ends all that callers have of a key, and forgets what was answered. */
  endClaims(entry: Entry, nowMs: number): void {
    const end = [...entry.claims.values()];
    const accounts = entry.books.map(({ rule, account }) =>
      end.reduce((current, { id }) => settle(rule, current, nowMs, id, 0), account),
    );
    this.#storage.answers.removeAll(entry.key);
    this.commit(entry, { accounts, end }, nowMs);
  }

  /** Makes the key as new, but for units that isolates may still be spending: those stay apart. */
  reset(entry: Entry, nowMs: number): void {
    const { holders } = entry;
    const accounts = entry.books.map(({ account: { holds } }) => ({
      state: undefined,
      holds: holds.filter(({ isStored }) => isStored !== true),
    }));
    this.#storage.atomically(() => {
      this.#storage.answers.removeAll(entry.key);
      this.#storage.remove(entry.key);
    });
    this.#book.drop(entry, nowMs);
    if (accounts.every(({ holds }) => holds.length === 0)) return;
    const renewed = this.#book.open(entry.policy, entry.key, nowMs);
    for (const [id, holder] of holders) renewed.holders.set(id, holder);
    this.commit(renewed, { accounts }, nowMs);
  }

  /** A charge without its answer would be charged twice, an answer without its charge not at all. */
  #allOrNothing<Result>(entry: Entry, work: () => Result, nowMs: number): Result {
    try {
      return this.#storage.atomically(work);
    } catch (error) {
      // What memory believes to be stored may not be: start over from what is.
      this.#book.drop(entry, nowMs);
      throw error;
    }
  }
}
