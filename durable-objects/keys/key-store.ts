import { settle, type Account } from "../../core/accounts/account.ts";
import type { Policies } from "../../core/policies/policy.ts";
import type { Conflict, Decided } from "../../core/protocol/messages.ts";
import type { Claim } from "../storage/records.ts";
import type { Storage } from "../storage/storage.ts";
import { endOfHold, findAnswer, rememberAnswer, type Idempotent, type Remembered } from "./idempotency.ts";
import type { KeyCache } from "./key-cache.ts";
import type { KeyState } from "./key-state.ts";

/** What one call changes. All of it is saved, or nothing. */
export interface Change {
  readonly accounts: readonly Account[];
  /** Holds and leases that begin or are renewed, and those that end. */
  readonly put?: readonly Claim[];
  readonly end?: readonly Claim[];
  /** Answers to give again to whoever repeats the call. */
  readonly remember?: readonly (Idempotent & { readonly answer: Remembered })[];
  /** Idempotency keys whose answers do not stand any more. */
  readonly forget?: readonly string[];
}

/**
 * Opens keys, and saves what a call changed before it becomes the truth. Everything is synchronous: nothing comes
 * between opening a key and saving it.
 */
export class KeyStore {
  readonly #policies: Pick<Policies, "get">;
  readonly #storage: Storage;
  readonly #cache: KeyCache;
  /** Told of the instant from which a key that was written is whole. */
  readonly #onWritten: (wholeMs: number, nowMs: number) => void;

  constructor(
    policies: Pick<Policies, "get">,
    storage: Storage,
    cache: KeyCache,
    onWritten: (wholeMs: number, nowMs: number) => void,
  ) {
    this.#policies = policies;
    this.#storage = storage;
    this.#cache = cache;
    this.#onWritten = onWritten;
  }

  open(policyName: string, key: string, nowMs: number): KeyState {
    const policy = this.#policies.get(policyName);
    // Only while versions mix: the worker has a policy that this object's version does not know yet.
    if (policy === undefined)
      throw new Error(`this version of the object has no policy ${JSON.stringify(policyName)}`);
    return this.#cache.open(policy, key, nowMs);
  }

  /** What was answered before under an idempotency key. */
  earlier(
    keyState: KeyState,
    idempotent: Idempotent | undefined,
    nowMs: number,
  ): Decided | Conflict | undefined {
    // How a hold ended is remembered for requests of its own, so that it is never found here.
    return (
      idempotent && (findAnswer(this.#storage, keyState, idempotent, nowMs) as Decided | Conflict | undefined)
    );
  }

  /** How a hold ended that is not there any more. */
  endOf(keyState: KeyState, holdId: string, nowMs: number): Remembered | Conflict | undefined {
    return findAnswer(this.#storage, keyState, endOfHold(holdId), nowMs);
  }

  /** Saves what has to be saved, then makes it the truth. If saving throws, nothing has happened. */
  commit(keyState: KeyState, change: Change, nowMs: number): void {
    const { accounts, put = [], end = [], remember = [], forget = [] } = change;
    const isCovered = keyState.isCovered(accounts, nowMs);
    // Whatever else is stored has a record beside it, which the alarm finds it by.
    const isRecorded = keyState.ruleStates.some(({ stored }) => stored !== undefined);
    const write = () => this.#cache.write(keyState, accounts, nowMs, this.#cache.isHot(keyState, nowMs));
    const writesRecord = !isCovered || remember.length > 0 || (put.length > 0 && !isRecorded);
    const writesRows = put.length + end.length + remember.length + forget.length > 0;
    const writeAll = () => {
      for (const claim of end) this.#storage.removeClaim(keyState.key, claim.id);
      for (const claim of put) this.#storage.writeClaim(keyState.key, claim);
      for (const each of forget) this.#storage.answers.remove(keyState.key, each);
      for (const { answer, ...each } of remember)
        rememberAnswer(this.#storage, keyState, each, answer, nowMs);
      return writesRecord ? write() : undefined;
    };
    const wholeMs = writesRows
      ? this.#allOrNothing(keyState, writeAll, nowMs)
      : writesRecord
        ? write()
        : undefined;
    if (wholeMs !== undefined) this.#onWritten(wholeMs, nowMs);
    for (const claim of end) keyState.endClaim(claim);
    for (const claim of put) keyState.putClaim(claim);
    this.#cache.take(keyState, accounts, nowMs);
  }

  /** Ends all that callers have of a key, and forgets what was answered. */
  endClaims(keyState: KeyState, nowMs: number): void {
    const end = [...keyState.claims.values()];
    const accounts = keyState.ruleStates.map(({ rule, account }) =>
      end.reduce((current, { id }) => settle(rule, current, nowMs, id, 0), account),
    );
    this.#storage.answers.removeAll(keyState.key);
    this.commit(keyState, { accounts, end }, nowMs);
  }

  /** Makes the key as new, but for units that isolates may still be spending: those stay apart. */
  reset(keyState: KeyState, nowMs: number): void {
    const accounts = keyState.accounts.map(({ holds }) => ({
      state: undefined,
      holds: holds.filter(({ isStored }) => isStored !== true),
    }));
    this.#storage.atomically(() => {
      this.#storage.answers.removeAll(keyState.key);
      this.#storage.remove(keyState.key);
    });
    this.#cache.drop(keyState, nowMs);
    if (accounts.every(({ holds }) => holds.length === 0)) return;
    const renewed = this.#cache.open(keyState.policy, keyState.key, nowMs);
    if (renewed !== keyState) renewed.holders.takeOver(keyState.holders);
    this.commit(renewed, { accounts }, nowMs);
  }

  /** A charge without its answer would be charged twice, an answer without its charge not at all. */
  #allOrNothing<Result>(keyState: KeyState, work: () => Result, nowMs: number): Result {
    try {
      return this.#storage.atomically(work);
    } catch (error) {
      // What memory believes to be stored may not be: start over from what is.
      this.#cache.drop(keyState, nowMs);
      throw error;
    }
  }
}
