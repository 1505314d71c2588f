import { accountsOf, latestWholeMs, readEntry, type Entry } from "./key-state.ts";
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
export class KeyBook {
  readonly #storage: Storage;
  readonly #entries = new Map<string, Entry>();
  /** Entries that are ahead of their record. */
  readonly #ahead = new Set<Entry>();
  #bytes = 0;

  constructor(storage: Storage) {
    this.#storage = storage;
  }

  /** Whether anything is ahead of its record, so that somebody should call `writeQuiet` in a while. */
  get isAhead(): boolean {
    return this.#ahead.size > 0;
  }

  /** The key's entry, every hold that has expired debited. */
  open(policy: Policy, key: string, nowMs: number): Entry {
    const entry = this.#entries.get(key) ?? this.#load(policy, key, nowMs);
    entry.touched = true;
    this.advance(entry, nowMs);
    return entry;
  }

  /** Debits every hold that has expired. */
  advance(entry: Entry, nowMs: number): void {
    let hasExpired = false;
    for (const book of entry.books) {
      const account = advance(book.rule, book.account, nowMs);
      hasExpired ||= account !== book.account;
      book.account = account;
    }
    if (!hasExpired) return;
    this.#note(entry);
    for (const claim of entry.claims.values()) {
      if (claim.expiresAtMs > nowMs) continue;
      entry.claims.delete(claim.id);
      entry.expired.push(claim);
    }
  }

  /** Whether what is stored covers these accounts, so that they need no write. */
  isCovered({ books }: Entry, accounts: readonly Account[], nowMs: number): boolean {
    return books.every(({ rule, stored }, index) =>
      covers(rule, stored, accounts[index] ?? UNTOUCHED, nowMs),
    );
  }

  /** Whether units were taken so lately that memory may go ahead of storage. */
  isHot(entry: Entry, nowMs: number): boolean {
    return nowMs - entry.takenAtMs < QUIET_MS;
  }

  /** Writes these accounts as the key's record and returns the instant from which the key is whole. */
  write(entry: Entry, accounts: readonly Account[], nowMs: number, isHot: boolean): number {
    const wholeMs = latestWholeMs(entry.books, accounts, nowMs);
    const ttlMs = entry.policy.reservation.mostMs;
    const records = entry.books.map(({ rule, stored }, index) =>
      record(rule, accounts[index] ?? UNTOUCHED, isHot ? aheadUnits(rule) : 0, nowMs, ttlMs, stored),
    );
    const rules = Object.fromEntries(
      entry.books.map(({ rule }, index) => [rule.name, records[index]?.stored]),
    ) as Record<string, StoredAccount>;
    const write = () => {
      this.#storage.write({ key: entry.key, policy: entry.policy.name, rules }, wholeMs);
      for (const [index, { rule }] of entry.books.entries()) {
        const segment = records[index]?.segment;
        if (segment !== undefined) this.#storage.writeSegment(entry.key, rule.name, segment);
      }
      for (const claim of entry.expired) endExpired(this.#storage, entry, claim);
    };
    const isOneRow = entry.expired.length === 0 && records.every(({ segment }) => segment === undefined);
    if (isOneRow) write();
    else this.#storage.atomically(write);
    entry.expired = [];
    for (const [index, book] of entry.books.entries()) book.stored = records[index]?.stored;
    this.#note(entry, accounts);
    return wholeMs;
  }

  /** Takes over accounts that have been written or are covered. */
  take(entry: Entry, accounts: readonly Account[], nowMs: number): void {
    for (const [index, book] of entry.books.entries()) book.account = accounts[index] ?? UNTOUCHED;
    entry.takenAtMs = nowMs;
    this.#note(entry);
    this.#weigh(entry);
  }

  /** Whether the key is as good as new. */
  isWhole({ books, waiting }: Entry, nowMs: number): boolean {
    const isWholeBook = ({ rule, account }: Entry["books"][number]) =>
      account.holds.length === 0 && wholeAtMs(rule, account, nowMs) <= nowMs;
    return waiting === 0 && books.every(isWholeBook);
  }

  /** Forgets what memory has of the key; what storage has is then all there is. */
  drop(entry: Entry, nowMs: number): void {
    this.#ahead.delete(entry);
    if (entry.waiting === 0) {
      this.#bytes -= entry.bytes;
      return void this.#entries.delete(entry.key);
    }
    // Callers wait in this very entry, so it is filled anew and not replaced.
    Object.assign(entry, readEntry(this.#storage, entry.policy, entry.key, nowMs), { expired: [] });
    this.#weigh(entry);
    this.#note(entry);
  }

  /** Writes the exact state of every key that has been quiet, once. Units that are reserved stay covered. */
  writeQuiet(nowMs: number): void {
    for (const entry of this.#ahead) {
      this.advance(entry, nowMs);
      const isUnclear = accountsOf(entry).some(isRestored);
      if (!isUnclear && !this.isHot(entry, nowMs)) this.write(entry, accountsOf(entry), nowMs, false);
    }
  }

  #load(policy: Policy, key: string, nowMs: number): Entry {
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
    const entry = { key, policy, ...readEntry(this.#storage, policy, key, nowMs), ...nothing };
    this.#entries.set(key, entry);
    this.#weigh(entry);
    this.#note(entry);
    return entry;
  }

  #weigh(entry: Entry): void {
    let bytes = HOLDER_BYTES * entry.holders.size;
    for (const { rule, account } of entry.books) {
      if (account.state !== undefined) bytes += rule.algorithm.bytes?.(account.state) ?? 0;
    }
    this.#bytes += bytes - entry.bytes;
    entry.bytes = bytes;
  }

  /** An entry is ahead while its record covers more than the units that are reserved now. */
  #note(entry: Entry, accounts: readonly Account[] = accountsOf(entry)): void {
    const isAhead = entry.books.some(({ stored }, index) => {
      const account = accounts[index] ?? UNTOUCHED;
      return (stored?.ahead ?? 0) > unstoredOf(account) || isRestored(account);
    });
    if (isAhead) this.#ahead.add(entry);
    else this.#ahead.delete(entry);
  }

  /** Drops the first key in insertion order that nobody used since the last search ("second chance"). */
  #dropOne(nowMs: number): void {
    // Twice round finds one, unless callers wait for every key there is.
    let steps = 2 * this.#entries.size;
    for (const entry of this.#entries.values()) {
      if (!entry.touched && entry.waiting === 0) {
        if (this.#ahead.has(entry)) this.write(entry, accountsOf(entry), nowMs, false);
        return this.drop(entry, nowMs);
      }
      entry.touched = false;
      this.#entries.delete(entry.key);
      this.#entries.set(entry.key, entry);
      steps -= 1;
      if (steps === 0) return;
    }
  }
}
