import { type Account, settle } from "../../core/accounts/account.ts";
import type { Policies } from "../../core/policies/policy.ts";
import type { Conflict, Decided } from "../../core/protocol/answers.ts";
import type { Full } from "../../core/protocol/problems.ts";
import type { Claim } from "../storage/records.ts";
import type { KeyStorage } from "../storage/storage.ts";
import { answersFull, claimsFull } from "./capacity-checks.ts";
import {
  type Charge,
  endOfHold,
  findAnswer,
  findCharge,
  forgetCharge,
  type Idempotent,
  rememberAnswer,
  type RememberedAnswer,
  type StandingCharge,
} from "./idempotency.ts";
import type { KeyCache } from "./key-cache.ts";
import type { KeyState } from "./key-state.ts";
import { isCovered, isLed } from "./rule-state.ts";

/** What one call changes of a key. `commit` saves all of it or nothing. */
interface Change {
  readonly accounts: readonly Account[];
  /** Claims that begin or are renewed. */
  readonly put?: readonly Claim[];
  /** Claims that end. */
  readonly end?: readonly Claim[];
  /** Answers that a caller gets again when it repeats the call. */
  readonly remember?: readonly (Idempotent & {
    readonly answer: RememberedAnswer;
    readonly charge?: Charge;
  })[];
  /** The record is written even if what is stored covers the accounts, and memory may not be ahead of it. */
  readonly isExact?: boolean;
  /** The idempotency key of the call whose charge is given back. */
  readonly uncharge?: string | undefined;
  /** Idempotency keys whose answers are not valid any more. */
  readonly forget?: readonly string[];
}

/**
 * Opens keys, and saves what a call changes before memory changes. Everything is synchronous, so no other call comes
 * between opening a key and saving it.
 */
export class KeyStore {
  readonly #policies: Pick<Policies, "get">;
  readonly #storage: KeyStorage;
  readonly #cache: KeyCache;
  /** Is called after a write, with the instant from which the key is whole if nobody comes. */
  readonly #onWritten: (wholeMs: number, nowMs: number) => void;

  constructor(
    policies: Pick<Policies, "get">,
    storage: KeyStorage,
    cache: KeyCache,
    onWritten: (wholeMs: number, nowMs: number) => void,
  ) {
    this.#policies = policies;
    this.#storage = storage;
    this.#cache = cache;
    this.#onWritten = onWritten;
  }

  /** @throws Error while versions mix: the worker has a policy that this object's version does not know yet */
  open(name: string, key: string, nowMs: number): KeyState {
    const file = this.#policies.get(name);
    // Only a deployment moves keys, so those of a policy that it does not have stay where they are.
    if (file !== undefined && this.#storage.moves.isAway(file, key))
      throw new Error(`key ${JSON.stringify(key)} is elsewhere`);
    return this.#cache.open(name, file, key, nowMs);
  }

  /** The operation that opened the key has ended: see `KeyCache.release`. */
  release(keyState: KeyState): void {
    this.#cache.release(keyState);
  }

  /** The earlier answer under an idempotency key; `undefined`: there is none that is still valid. */
  earlier(
    keyState: KeyState,
    idempotent: Idempotent | undefined,
    nowMs: number,
  ): Decided | Conflict | undefined {
    // An `Ending` is remembered under the request of `endOfHold`, which no call has: so none is returned here.
    return (
      idempotent && (findAnswer(this.#storage, keyState, idempotent, nowMs) as Decided | Conflict | undefined)
    );
  }

  /** The charge of the call with an idempotency key; `undefined`: it is unknown, or has been given back. */
  chargeOf(keyState: KeyState, idempotencyKey: string, nowMs: number): StandingCharge | undefined {
    return findCharge(this.#storage, keyState, idempotencyKey, nowMs);
  }

  /** How a hold ended, or the answer to its settle; `undefined`: it is not known here. */
  endOf(keyState: KeyState, holdId: string, nowMs: number): RememberedAnswer | Conflict | undefined {
    return findAnswer(this.#storage, keyState, endOfHold(holdId), nowMs);
  }

  /** Commits what a call changes, unless a bound leaves no room for what it keeps. Then nothing is touched. */
  commitWithin(keyState: KeyState, change: Change, nowMs: number): Full | undefined {
    const { put = [], remember = [] } = change;
    const [answered] = remember;
    const over =
      claimsFull(this.#storage, keyState, put) ??
      (answered && answersFull(this.#storage, keyState, answered.idempotencyKey, nowMs));
    if (over === undefined) this.commit(keyState, change, nowMs);
    return over;
  }

  /** Writes what has to be written, then changes memory. When writing throws, nothing has changed. */
  commit(keyState: KeyState, change: Change, nowMs: number): void {
    for (const wholeMs of this.#save(keyState, change, nowMs)) this.#onWritten(wholeMs, nowMs);
  }

  /** The same, and returns what `#onWritten` has to be told. */
  #save(keyState: KeyState, change: Change, nowMs: number): number[] {
    const { accounts, put = [], end = [], remember = [], forget = [], uncharge } = change;
    const isSaved = isCovered(keyState.ruleStates, accounts, nowMs);
    const leastDueMs = dueWith(keyState, put, nowMs);
    const writesState = !isSaved || change.isExact === true || remember.length > 0;
    const writesRecord = writesState || leastDueMs > keyState.dueMs;
    const isNew = keyState.dueMs === -Infinity;
    const dueMs = writesState || isNew ? leastDueMs : roomyDueMs(leastDueMs, nowMs);
    const ahead = isSaved ? [] : keyState.noteGiven(accounts);
    const writeRecord = () =>
      writesRecord ? this.#cache.write(keyState, accounts, nowMs, ahead, dueMs) : undefined;
    const isExact = writesRecord && !ahead.some((units) => units > 0);
    const isAhead = !isExact && (writesRecord || isLed(keyState.ruleStates, nowMs));
    const leadEndsMs = this.#lead(keyState, accounts, nowMs, isAhead);
    const writesRows = put.length + end.length + remember.length + forget.length > 0;
    const writeAll = () => {
      for (const claim of end) this.#storage.claims.remove(keyState.key, claim.id);
      for (const claim of put)
        this.#storage.claims.write(keyState.key, claim, !keyState.claims.has(claim.id));
      for (const each of forget) this.#storage.answers.remove(keyState.key, each);
      if (uncharge !== undefined) forgetCharge(this.#storage, keyState, uncharge);
      for (const { answer, charge, ...each } of remember)
        rememberAnswer(this.#storage, keyState, each, answer, nowMs, charge);
      return writeRecord();
    };
    const wholeMs = writesRows ? this.#allOrNothing(keyState, writeAll, nowMs) : writeRecord();
    keyState.noteClaims(end, put);
    this.#cache.take(keyState, accounts, nowMs, isExact);
    return [leadEndsMs, wholeMs].filter((each) => each !== undefined);
  }

  /**
   * Renews the lead, unless it is not needed, or lasts until all that holders have must be spent.
   *
   * @returns when it does not matter any more, if it had to be written
   */
  #lead(
    { policy }: KeyState,
    accounts: readonly Account[],
    nowMs: number,
    isAhead: boolean,
  ): number | undefined {
    // What a region's object has of a pool is not stored.
    if (policy.pool !== undefined) return undefined;
    let neededMs = isAhead ? nowMs : -Infinity;
    for (const { holds } of accounts)
      for (const { isStored, expiresAtMs } of holds)
        if (isStored !== true) neededMs = Math.max(neededMs, expiresAtMs);
    if (neededMs === -Infinity) return undefined;
    return this.#storage.leads.renew(policy, neededMs, nowMs);
  }

  /** Ends all holds and leases of a key as unused, and deletes its answers. */
  endClaims(keyState: KeyState, nowMs: number): void {
    const end = [...keyState.claims.values()];
    const accounts = keyState.ruleStates.map(({ rule, account }) =>
      end.reduce((current, { id }) => settle(rule, current, nowMs, id, 0), account),
    );
    this.#storage.answers.removeAll(keyState.key);
    this.commit(keyState, { accounts, end }, nowMs);
  }

  /** Makes the key untouched, except for units that isolates may still be spending: those stay outstanding. */
  reset(keyState: KeyState, nowMs: number): void {
    const accounts = keyState.accounts.map(({ holds }) => ({
      state: undefined,
      holds: holds.filter(({ isStored }) => isStored !== true),
    }));
    const reset = () => {
      this.#storage.answers.removeAll(keyState.key);
      this.#storage.remove(keyState.key);
      keyState.noteDeleted();
      // Whoever reads the key again must not presume what an object before this one may have given out.
      const isExact = this.#storage.leads.isPresumed(keyState.policy, nowMs);
      if (isExact || accounts.some(({ holds }) => holds.length > 0))
        return this.#save(keyState, { accounts, isExact }, nowMs);
      this.#cache.take(keyState, accounts, nowMs, true);
      return [];
    };
    // Without the record that was there, nobody would know what isolates have: so all of this is written or nothing.
    for (const wholeMs of this.#allOrNothing(keyState, reset, nowMs)) this.#onWritten(wholeMs, nowMs);
  }

  /** Writes all rows or none. A charge without its answer could be made twice, an answer without its charge never. */
  #allOrNothing<Result>(keyState: KeyState, work: () => Result, nowMs: number): Result {
    try {
      return this.#storage.atomically(work);
    } catch (error) {
      this.#cache.reload(keyState, nowMs);
      throw error;
    }
  }
}

/**
 * Due times: from when on a sweep looks at a key (garbage-collection.ts). A record is never due before a claim of its
 * key ends: the alarm finds claims by it, and a version that does not know their policy goes by it alone. It may be due
 * before what was consumed has come back, since memory may be ahead of it: the sweep writes a later one then.
 *
 * @returns when these claims let the key's record be due; -Infinity: there are none
 */
function dueWith({ claims }: KeyState, put: readonly Claim[], nowMs: number): number {
  // One that waits to be confirmed most likely will be, and then lasts as long as its caller has asked for.
  const ends = put.map(({ id, ttlMs, expiresAtMs }) =>
    claims.has(id) ? expiresAtMs : Math.max(expiresAtMs, nowMs + ttlMs),
  );
  return Math.max(-Infinity, ...ends);
}

/** The same where a record is written for nothing else: it leaves room for claims to be renewed as long again. */
function roomyDueMs(dueMs: number, nowMs: number): number {
  return dueMs + Math.max(0, dueMs - nowMs);
}
