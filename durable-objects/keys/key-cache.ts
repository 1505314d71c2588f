import { UNTOUCHED, type Account } from "../../core/accounts/account.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { StoredAccount } from "../storage/records.ts";
import type { Storage } from "../storage/storage.ts";
import { aheadUnits, isRestored, record } from "../storage/write-behind.ts";
import { endExpired } from "./idempotency.ts";
import { KeyState } from "./key-state.ts";

/**
 * A key is hot for this long after a call changed it, in milliseconds: while it is hot, its memory may be ahead of its
 * storage. After that the key is quiet, and its exact state is written. A longer time would lose more to a crash. A
 * shorter time would write more for keys that come about once a second.
 */
export const QUIET_MS = 1_000;

/** The most keys in memory, at about 1 KiB each. Other keys are read from storage when a call opens them. */
export const MOST_KEYS = 20_000;
/**
 * The bytes of an isolate's 128 MB that keys may take beside that, until some are dropped: two of the largest states.
 * They are weighed when they are loaded and when a call has changed them.
 */
const MOST_BYTES = 32 * 2 ** 20;
/** A call to a key that grows looks at so many keys for one to drop. It mostly adds far less than that one takes. */
const GROWTH_STEPS = 64;

/**
 * The object's memory: a cache of its storage. Memory may be ahead of storage by what write-behind allows. All methods
 * are synchronous, and memory changes only after storage has: a write that throws has changed nothing.
 */
export class KeyCache {
  readonly #storage: Storage;
  readonly #keys = new Map<string, KeyState>();
  /** Keys that are ahead of their record (`KeyState.isAhead`). */
  readonly #ahead = new Set<KeyState>();
  #bytes = 0;

  constructor(storage: Storage) {
    this.#storage = storage;
  }

  /** How many keys are in memory. */
  get size(): number {
    return this.#keys.size;
  }

  /** Whether any key is ahead of its record, so that `writeQuiet` has to be called later. */
  get isAhead(): boolean {
    return this.#ahead.size > 0;
  }

  /** The key as it is at `nowMs`: from memory or else from storage, with every expired hold debited. */
  open(policy: Policy, key: string, nowMs: number): KeyState {
    const keyState = this.#keys.get(key) ?? this.#load(policy, key, nowMs);
    keyState.touch();
    this.advance(keyState, nowMs);
    return keyState;
  }

  /** Debits every hold that has expired. */
  advance(keyState: KeyState, nowMs: number): void {
    if (keyState.advance(nowMs)) this.#note(keyState);
  }

  /** Whether a call changed the key within `QUIET_MS`, so that its memory may be ahead of its storage. */
  isHot(keyState: KeyState, nowMs: number): boolean {
    return nowMs - keyState.changedAtMs < QUIET_MS;
  }

  /**
   * Writes these accounts as the key's record.
   *
   * @param isHot whether memory may go ahead of this record
   * @returns the instant from which the key is whole if nobody comes
   */
  write(keyState: KeyState, accounts: readonly Account[], nowMs: number, isHot: boolean): number {
    const { key, policy, ruleStates, expired } = keyState;
    const wholeMs = keyState.wholeAtMs(accounts, nowMs);
    const ttlMs = policy.reservation.mostMs;
    const records = ruleStates.map(({ rule, stored }, index) =>
      record(rule, accounts[index] ?? UNTOUCHED, isHot ? aheadUnits(rule) : 0, nowMs, ttlMs, stored),
    );
    const rules = Object.fromEntries(
      ruleStates.map(({ rule }, index) => [rule.name, records[index]?.stored]),
    ) as Record<string, StoredAccount>;
    const write = () => {
      this.#storage.write({ key, policy: policy.name, rules }, wholeMs);
      for (const [index, { rule }] of ruleStates.entries()) {
        const segment = records[index]?.segment;
        if (segment !== undefined) this.#storage.writeSegment(key, rule.name, segment);
      }
      for (const claim of expired) endExpired(this.#storage, keyState, claim);
    };
    const isOneRow = expired.length === 0 && records.every(({ segment }) => segment === undefined);
    if (isOneRow) write();
    else this.#storage.atomically(write);
    keyState.noteWritten(records.map(({ stored }) => stored));
    this.#note(keyState, accounts);
    return wholeMs;
  }

  /** Replaces the key's accounts by ones that have been written, or that the record covers. */
  take(keyState: KeyState, accounts: readonly Account[], nowMs: number): void {
    keyState.replaceAccounts(accounts);
    keyState.noteChanged(nowMs);
    this.#note(keyState);
    this.#weigh(keyState);
    if (this.#bytes > MOST_BYTES) this.#makeRoomFor(keyState, nowMs);
  }

  /** Removes the key from memory. A key that is pinned stays, and is read again from storage. */
  drop(keyState: KeyState, nowMs: number): void {
    this.#ahead.delete(keyState);
    if (!keyState.isPinned) return this.#remove(keyState);
    // Waiting calls refer to this `KeyState`, so it is reloaded and not replaced.
    keyState.reload(this.#storage, nowMs);
    this.#weigh(keyState);
    this.#note(keyState);
  }

  /**
   * Removes the key from memory if there is nothing of it, here or in storage: whoever looks at keys that nobody uses
   * leaves nothing behind. Is called after each operation, so a key that has a record is told by one comparison.
   */
  letGo(keyState: KeyState): void {
    if (isBlank(keyState)) this.#remove(keyState);
  }

  /** Writes the exact state of every key that is quiet and ahead of its record. Reserved units stay covered. */
  writeQuiet(nowMs: number): void {
    for (const keyState of this.#ahead) {
      this.advance(keyState, nowMs);
      const isUnclear = keyState.accounts.some(isRestored);
      if (!isUnclear && !this.isHot(keyState, nowMs)) this.write(keyState, keyState.accounts, nowMs, false);
    }
  }

  #load(policy: Policy, key: string, nowMs: number): KeyState {
    // Two rounds find a key that is not pinned, if there is one. Several have to go when a large one came before.
    while (this.#isFull && this.#dropOne(nowMs, 2 * this.#keys.size));
    const keyState = new KeyState(this.#storage, policy, key, nowMs);
    this.#keys.set(key, keyState);
    this.#weigh(keyState);
    this.#note(keyState);
    return keyState;
  }

  #weigh(keyState: KeyState): void {
    this.#bytes += keyState.weigh();
  }

  #note(keyState: KeyState, accounts: readonly Account[] = keyState.accounts): void {
    if (keyState.isAhead(accounts)) this.#ahead.add(keyState);
    else this.#ahead.delete(keyState);
  }

  get #isFull(): boolean {
    return this.#keys.size >= MOST_KEYS || this.#bytes > MOST_BYTES;
  }

  /** Drops others for a key that has grown. */
  #makeRoomFor(keyState: KeyState, nowMs: number): void {
    // The operation that changed the key is not done with it.
    const unpin = keyState.pin();
    this.#dropOne(nowMs, GROWTH_STEPS);
    unpin();
  }

  #remove(keyState: KeyState): void {
    // Another `KeyState` of the same key would stay.
    if (this.#keys.get(keyState.key) !== keyState) return;
    this.#keys.delete(keyState.key);
    this.#bytes -= keyState.bytes;
  }

  /**
   * Drops the first key in insertion order that was not used since the last search ("second chance"). When bytes are
   * short and not places, it drops none that is lighter than the average: thousands of those would make no room.
   *
   * @param steps how many keys to look at; the next search goes on from there
   * @returns whether there was one. If none is found in two rounds, all are pinned, and memory grows. A pinned key has
   * a call that waits, which takes far more memory than the key
   */
  #dropOne(nowMs: number, steps: number): boolean {
    let left = steps;
    const leastBytes = this.#keys.size >= MOST_KEYS ? 0 : this.#bytes / this.#keys.size;
    for (const keyState of this.#keys.values()) {
      if (!keyState.isTouched && !keyState.isPinned && keyState.bytes >= leastBytes) {
        if (this.#ahead.has(keyState)) this.write(keyState, keyState.accounts, nowMs, false);
        this.drop(keyState, nowMs);
        return true;
      }
      keyState.passOver();
      this.#keys.delete(keyState.key);
      this.#keys.set(keyState.key, keyState);
      left -= 1;
      if (left <= 0) break;
    }
    return false;
  }
}

/** Whether nothing of the key is stored, nothing in memory differs from an untouched key, and nobody refers to it. */
function isBlank({ ruleStates, claims, expired, holders, isPinned }: KeyState): boolean {
  for (const { stored, account } of ruleStates)
    if (stored !== undefined || account.state !== undefined || account.holds.length > 0) return false;
  return !isPinned && claims.size === 0 && expired.length === 0 && holders.size === 0;
}
