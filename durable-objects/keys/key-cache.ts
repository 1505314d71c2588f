import { UNTOUCHED, type Account } from "../../core/accounts/account.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { StoredAccount } from "../storage/records.ts";
import type { Storage } from "../storage/storage.ts";
import { aheadUnits, isRestored, record } from "../storage/write-behind.ts";
import { endExpired } from "./idempotency.ts";
import { KeyState } from "./key-state.ts";

/**
 * A key is hot when units were taken within this time before: then its memory may be ahead of its storage.
 * After as long without, the exact state is written. Longer would lose more to a crash, shorter would write
 * more for keys that come about once a second.
 */
export const QUIET_MS = 1_000;

/** Keys in memory, about 1 KiB each; the rest are read from storage when they come. */
export const MOST_KEYS = 20_000;
/** What large states (logs) may take of an isolate's 128 MB before others make room: two of the largest. */
const MOST_BYTES = 32 * 2 ** 20;

/**
 * The object's memory: a cache of its storage, ahead of it by what write-behind allows. Everything here is
 * synchronous, and memory changes only after storage has: a write that throws has changed nothing.
 */
export class KeyCache {
  readonly #storage: Storage;
  readonly #keys = new Map<string, KeyState>();
  /** Keys whose memory is ahead of their record. */
  readonly #ahead = new Set<KeyState>();
  #bytes = 0;

  constructor(storage: Storage) {
    this.#storage = storage;
  }

  /** Whether anything is ahead of its record, so that somebody should call `writeQuiet` in a while. */
  get isAhead(): boolean {
    return this.#ahead.size > 0;
  }

  /** The key, every hold of it that has expired debited. */
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

  /** Whether units were taken so lately that memory may go ahead of storage. */
  isHot(keyState: KeyState, nowMs: number): boolean {
    return nowMs - keyState.takenAtMs < QUIET_MS;
  }

  /** Writes these accounts as the key's record, and returns the instant from which the key is whole. */
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

  /** Takes over accounts that have been written or are covered. */
  take(keyState: KeyState, accounts: readonly Account[], nowMs: number): void {
    keyState.replaceAccounts(accounts);
    keyState.noteTaken(nowMs);
    this.#note(keyState);
    this.#weigh(keyState);
  }

  /** Forgets what memory has of the key; what storage has is then all there is. */
  drop(keyState: KeyState, nowMs: number): void {
    this.#ahead.delete(keyState);
    if (!keyState.isPinned) {
      this.#bytes -= keyState.bytes;
      return void this.#keys.delete(keyState.key);
    }
    // Callers wait with this very object, so it is filled anew and not replaced.
    keyState.reload(this.#storage, nowMs);
    this.#weigh(keyState);
    this.#note(keyState);
  }

  /** Writes the exact state of every key that has been quiet, once. Units that are reserved stay covered. */
  writeQuiet(nowMs: number): void {
    for (const keyState of this.#ahead) {
      this.advance(keyState, nowMs);
      const isUnclear = keyState.accounts.some(isRestored);
      if (!isUnclear && !this.isHot(keyState, nowMs)) this.write(keyState, keyState.accounts, nowMs, false);
    }
  }

  #load(policy: Policy, key: string, nowMs: number): KeyState {
    if (this.#keys.size >= MOST_KEYS || this.#bytes > MOST_BYTES) this.#dropOne(nowMs);
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

  /** Drops the first key in insertion order that nobody used since the last search ("second chance"). */
  #dropOne(nowMs: number): void {
    // Twice round finds one, unless callers wait for every key there is.
    let steps = 2 * this.#keys.size;
    for (const keyState of this.#keys.values()) {
      if (!keyState.isTouched && !keyState.isPinned) {
        if (this.#ahead.has(keyState)) this.write(keyState, keyState.accounts, nowMs, false);
        return this.drop(keyState, nowMs);
      }
      keyState.passOver();
      this.#keys.delete(keyState.key);
      this.#keys.set(keyState.key, keyState);
      steps -= 1;
      if (steps === 0) return;
    }
  }
}
