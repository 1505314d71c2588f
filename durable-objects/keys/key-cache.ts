import { accountsOf, latestWholeMs, readEntry, type KeyState } from "./key-state.ts";
import { advance, unstoredOf, UNTOUCHED, wholeAtMs, type Account } from "../../core/accounts/account.ts";
import { endExpired } from "./idempotency.ts";
import type { Policy } from "../../core/policies/parse-policies.ts";
import type { Storage } from "../storage/storage.ts";
import { aheadUnits, covers, isRestored, record, type StoredAccount } from "../storage/write-behind.ts";

/**
 * A key is hot when units were taken within this time before: then its memory may be ahead of its storage.
 * After as long without, the exact state is written. Longer would lose more to a crash, shorter would write
 * more for keys that come about once a second.
 */
export const QUIET_MS = 1_000;

/** Keys in memory, about 1 KiB each; the rest are read from storage when they come. */
export const MOST_ENTRIES = 20_000;
/** What large states (logs) may take of an isolate's 128 MB before others make room: two of the largest. */
const MOST_BYTES = 32 * 2 ** 20;

const HOLDER_BYTES = 300;

/**
 * The object's memory: a cache of its storage, ahead of it by what write-ahead allows. Everything here is
 * synchronous, and memory changes only after storage has: a write that throws has changed nothing.
 */
export class KeyCache {
  readonly #storage: Storage;
  readonly #entries = new Map<string, KeyState>();
  /** Entries that are ahead of their record. */
  readonly #ahead = new Set<KeyState>();
  #bytes = 0;

  constructor(storage: Storage) {
    this.#storage = storage;
  }

  /** Whether anything is ahead of its record, so that somebody should call `writeQuiet` in a while. */
  get isAhead(): boolean {
    return this.#ahead.size > 0;
  }

  /** The key's entry, every hold that has expired debited. */
  open(policy: Policy, key: string, nowMs: number): KeyState {
    const keyState = this.#entries.get(key) ?? this.#load(policy, key, nowMs);
    keyState.touched = true;
    this.advance(keyState, nowMs);
    return keyState;
  }

  /** Debits every hold that has expired. */
  advance(keyState: KeyState, nowMs: number): void {
    let hasExpired = false;
    for (const ruleState of keyState.ruleStates) {
      const account = advance(ruleState.rule, ruleState.account, nowMs);
      hasExpired ||= account !== ruleState.account;
      ruleState.account = account;
    }
    if (!hasExpired) return;
    this.#note(keyState);
    for (const claim of keyState.claims.values()) {
      if (claim.expiresAtMs > nowMs) continue;
      keyState.claims.delete(claim.id);
      keyState.expired.push(claim);
    }
  }

  /** Whether what is stored covers these accounts, so that they need no write. */
  isCovered({ ruleStates }: KeyState, accounts: readonly Account[], nowMs: number): boolean {
    return ruleStates.every(({ rule, stored }, index) =>
      covers(rule, stored, accounts[index] ?? UNTOUCHED, nowMs),
    );
  }

  /** Whether units were taken so lately that memory may go ahead of storage. */
  isHot(keyState: KeyState, nowMs: number): boolean {
    return nowMs - keyState.takenAtMs < QUIET_MS;
  }

  /** Writes these accounts as the key's record and returns the instant from which the key is whole. */
  write(keyState: KeyState, accounts: readonly Account[], nowMs: number, isHot: boolean): number {
    const wholeMs = latestWholeMs(keyState.ruleStates, accounts, nowMs);
    const ttlMs = keyState.policy.reservation.mostMs;
    const records = keyState.ruleStates.map(({ rule, stored }, index) =>
      record(rule, accounts[index] ?? UNTOUCHED, isHot ? aheadUnits(rule) : 0, nowMs, ttlMs, stored),
    );
    const rules = Object.fromEntries(
      keyState.ruleStates.map(({ rule }, index) => [rule.name, records[index]?.stored]),
    ) as Record<string, StoredAccount>;
    const write = () => {
      this.#storage.write({ key: keyState.key, policy: keyState.policy.name, rules }, wholeMs);
      for (const [index, { rule }] of keyState.ruleStates.entries()) {
        const segment = records[index]?.segment;
        if (segment !== undefined) this.#storage.writeSegment(keyState.key, rule.name, segment);
      }
      for (const claim of keyState.expired) endExpired(this.#storage, keyState, claim);
    };
    const isOneRow = keyState.expired.length === 0 && records.every(({ segment }) => segment === undefined);
    if (isOneRow) write();
    else this.#storage.atomically(write);
    keyState.expired = [];
    for (const [index, ruleState] of keyState.ruleStates.entries()) ruleState.stored = records[index]?.stored;
    this.#note(keyState, accounts);
    return wholeMs;
  }

  /** Takes over accounts that have been written or are covered. */
  take(keyState: KeyState, accounts: readonly Account[], nowMs: number): void {
    for (const [index, ruleState] of keyState.ruleStates.entries())
      ruleState.account = accounts[index] ?? UNTOUCHED;
    keyState.takenAtMs = nowMs;
    this.#note(keyState);
    this.#weigh(keyState);
  }

  /** Whether the key is as good as new. */
  isWhole({ ruleStates, waiting }: KeyState, nowMs: number): boolean {
    const isWholeBook = ({ rule, account }: KeyState["ruleStates"][number]) =>
      account.holds.length === 0 && wholeAtMs(rule, account, nowMs) <= nowMs;
    return waiting === 0 && ruleStates.every(isWholeBook);
  }

  /** Forgets what memory has of the key; what storage has is then all there is. */
  drop(keyState: KeyState, nowMs: number): void {
    this.#ahead.delete(keyState);
    if (keyState.waiting === 0) {
      this.#bytes -= keyState.bytes;
      return void this.#entries.delete(keyState.key);
    }
    // Callers wait in this very entry, so it is filled anew and not replaced.
    Object.assign(keyState, readEntry(this.#storage, keyState.policy, keyState.key, nowMs), { expired: [] });
    this.#weigh(keyState);
    this.#note(keyState);
  }

  /** Writes the exact state of every key that has been quiet, once. Units that are reserved stay covered. */
  writeQuiet(nowMs: number): void {
    for (const keyState of this.#ahead) {
      this.advance(keyState, nowMs);
      const isUnclear = accountsOf(keyState).some(isRestored);
      if (!isUnclear && !this.isHot(keyState, nowMs))
        this.write(keyState, accountsOf(keyState), nowMs, false);
    }
  }

  #load(policy: Policy, key: string, nowMs: number): KeyState {
    if (this.#entries.size >= MOST_ENTRIES || this.#bytes > MOST_BYTES) this.#dropOne(nowMs);
    const nothing = {
      holders: new Map(),
      expired: [],
      waiting: 0,
      bytes: 0,
      takenAtMs: -Infinity,
      endsByMs: policy.pool === undefined ? Infinity : -Infinity,
      touched: true,
      answers: undefined,
    };
    const keyState = { key, policy, ...readEntry(this.#storage, policy, key, nowMs), ...nothing };
    this.#entries.set(key, keyState);
    this.#weigh(keyState);
    this.#note(keyState);
    return keyState;
  }

  #weigh(keyState: KeyState): void {
    let bytes = HOLDER_BYTES * keyState.holders.size;
    for (const { rule, account } of keyState.ruleStates) {
      if (account.state !== undefined) bytes += rule.algorithm.bytes?.(account.state) ?? 0;
    }
    this.#bytes += bytes - keyState.bytes;
    keyState.bytes = bytes;
  }

  /** An entry is ahead while its record covers more than the units that are reserved now. */
  #note(keyState: KeyState, accounts: readonly Account[] = accountsOf(keyState)): void {
    const isAhead = keyState.ruleStates.some(({ stored }, index) => {
      const account = accounts[index] ?? UNTOUCHED;
      return (stored?.ahead ?? 0) > unstoredOf(account) || isRestored(account);
    });
    if (isAhead) this.#ahead.add(keyState);
    else this.#ahead.delete(keyState);
  }

  /** Drops the first key in insertion order that nobody used since the last search ("second chance"). */
  #dropOne(nowMs: number): void {
    // Twice round finds one, unless callers wait for every key there is.
    let steps = 2 * this.#entries.size;
    for (const keyState of this.#entries.values()) {
      if (!keyState.touched && keyState.waiting === 0) {
        if (this.#ahead.has(keyState)) this.write(keyState, accountsOf(keyState), nowMs, false);
        return this.drop(keyState, nowMs);
      }
      keyState.touched = false;
      this.#entries.delete(keyState.key);
      this.#entries.set(keyState.key, keyState);
      steps -= 1;
      if (steps === 0) return;
    }
  }
}
