import { UNTOUCHED, unstoredOf } from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import { isOfAnother, later, type Policy, type PolicyRevision } from "../../core/policies/policy.ts";
import { type StoredAccount, record } from "../storage/records.ts";
import type { KeyStorage } from "../storage/storage.ts";
import { endExpired } from "./idempotency.ts";
import { KeyState } from "./key-state.ts";
import {
  type ChosenVersion,
  readPolicy,
  RuleFingerprints,
  storedVersion,
  versionIn,
  Versions,
} from "./versions.ts";

/** What one object has of the memory. It is the object's own: when that goes, this goes too. */
interface MemoryShare {
  keys: number;
  bytes: number;
}

/** While there is too little memory, objects that have gone are searched for after this many changes. */
const SEARCH_AFTER = 1_024;

/**
 * The memory that keys may take, for all objects that share it. On Cloudflare objects of one class may run in one
 * isolate, which has 128 MB for all of them.
 *
 * No object can drop another one's keys: it may not write for it. So when there is too little, each drops keys of its own
 * when it is called, as long as it has more than an even part. One that has less may still grow to that, so there may be
 * twice as much as allowed, until those that have more are called, or leave memory because nobody calls them.
 */
export class MemoryBudget {
  readonly #maxKeys: number;
  readonly #maxBytes: number;
  /** The runtime drops an object without telling it. */
  readonly #shares = new Set<WeakRef<MemoryShare>>();
  #keys = 0;
  #bytes = 0;
  #changes = 0;
  /** With this many objects it is time to search for those that have gone. */
  #searchAt = SEARCH_AFTER;

  constructor(maxKeys: number, maxBytes: number) {
    this.#maxKeys = maxKeys;
    this.#maxBytes = maxBytes;
  }

  /** One more object. */
  join(): MemoryShare {
    const share = { keys: 0, bytes: 0 };
    this.#shares.add(new WeakRef(share));
    if (this.#shares.size > this.#searchAt) this.#forgetGone();
    return share;
  }

  /** Notes that an object has more of the memory than before, or less. */
  add(share: MemoryShare, keys: number, bytes: number): void {
    share.keys += keys;
    share.bytes += bytes;
    this.#keys += keys;
    this.#bytes += bytes;
    this.#changes += 1;
  }

  /** Whether the object has to drop keys before it gets so many others. */
  hasTooManyKeys(share: MemoryShare, others: number): boolean {
    const isOver = () => {
      const own = share.keys + others;
      return this.#keys + others > this.#maxKeys && own * this.#shares.size > this.#maxKeys;
    };
    return this.#isStill(isOver);
  }

  /** Whether the object has to drop keys because all of them are too large together. */
  hasTooManyBytes(share: MemoryShare): boolean {
    return this.#isStill(
      () => this.#bytes > this.#maxBytes && share.bytes * this.#shares.size > this.#maxBytes,
    );
  }

  /** Whether it is so when objects do not count that have gone. */
  #isStill(isOver: () => boolean): boolean {
    if (!isOver()) return false;
    if (this.#changes >= SEARCH_AFTER && this.#shares.size > 1) this.#forgetGone();
    return isOver();
  }

  #forgetGone(): void {
    [this.#changes, this.#keys, this.#bytes] = [0, 0, 0];
    for (const reference of this.#shares) {
      const share = reference.deref();
      if (share === undefined) this.#shares.delete(reference);
      this.#keys += share?.keys ?? 0;
      this.#bytes += share?.bytes ?? 0;
    }
    this.#searchAt = 2 * this.#shares.size + SEARCH_AFTER;
  }
}

/** The most keys in memory of all objects in an isolate, at about 1 KiB each. Other keys are read from storage. */
export const MAX_KEYS = 20_000;
/**
 * The bytes of its 128 MB that keys may take beside that, until some are dropped: two of the largest states. They are
 * weighed when they are loaded and when a call has changed them.
 */
export const MAX_BYTES = 32 * 2 ** 20;
/** What all objects in an isolate share. */
export const SHARED_MEMORY = new MemoryBudget(MAX_KEYS, MAX_BYTES);
/** A call to a key that grows looks through this many keys for one to drop. It mostly adds far less than that one takes. */
const GROWTH_STEPS = 64;

/**
 * The object's memory: a cache of its storage. Memory may be ahead of storage by what write-behind allows. All methods
 * are synchronous, and memory changes only after storage has: a write that throws has changed nothing.
 */
export class KeyCache {
  /** The rules that other versions of its policies have. */
  readonly fingerprints = new RuleFingerprints();
  /** The versions in force that calls have named for their keys. */
  readonly versions = new Versions();
  readonly #storage: KeyStorage;
  readonly #memory: MemoryBudget;
  readonly #share: MemoryShare;
  readonly #keys = new Map<string, KeyState>();

  /** @param memory what other objects have a part of too; absent: it is this one's alone */
  constructor(storage: KeyStorage, memory = new MemoryBudget(MAX_KEYS, MAX_BYTES)) {
    this.#storage = storage;
    this.#memory = memory;
    this.#share = memory.join();
  }

  /** How many keys are in memory. */
  get size(): number {
    return this.#keys.size;
  }

  /** The keys in memory. They may change, and leave, while they are looked through. */
  get states(): Iterable<KeyState> {
    return this.#keys.values();
  }

  /**
   * The key as it is at `nowMs`: from memory or else from storage, with every expired hold debited.
   *
   * @param file the policy as the deployment's file has it; `undefined`: only a call, or the key's record, can name it
   * @throws Error when there is no such policy
   */
  open(name: string, file: Policy | undefined, key: string, nowMs: number): KeyState {
    const { versions, fingerprints } = this;
    const latest = versions.size === 0 ? undefined : versions.take(key);
    const known = this.#keys.get(key);
    // An object has keys of one policy. A call with another name is of a policy that is not known.
    if (known !== undefined && known.policy.name !== name) chosen(name, file, latest);
    const keyState = known ?? this.#load(key, (kept) => chosen(name, file, later(kept, latest)), nowMs);
    keyState.isTouched = true;
    if (known !== undefined && later(known.inForce, latest) !== known.inForce) {
      this.#adopt(known, chosen(name, file, latest), nowMs);
      this.#weigh(known);
    }
    const isCompared = fingerprints.size > 0 && keyState.inForce?.fields === undefined;
    keyState.compare(isCompared ? fingerprints.comparison(name, nowMs) : undefined);
    keyState.advance(nowMs);
    return keyState;
  }

  /** The policy by which a key is decided, by memory, storage or the file; `undefined`: none of them has it. */
  policyOf(name: string, file: Policy | undefined, key: string): Policy | undefined {
    const known = this.#keys.get(key);
    const inForce = known === undefined ? versionIn(this.#storage.read(key)?.rules) : known.inForce;
    return inForce?.fields === undefined ? file : chosen(name, file, inForce).policy;
  }

  /**
   * Writes these accounts as the key's record.
   *
   * @param ahead by rule: how far memory may go ahead of this record, beside what holders have; absent: not at all
   * @param minDueMs a sweep need not read the key before
   * @returns the instant from which the key is untouched again if no call comes, or `minDueMs` if that is later
   */
  write(
    keyState: KeyState,
    accounts: readonly Account[],
    nowMs: number,
    ahead: readonly number[] = [],
    minDueMs = -Infinity,
  ): number {
    const storage = this.#storage;
    const { key, policy, ruleStates, expired } = keyState;
    const wholeMs = Math.max(minDueMs, keyState.wholeAtMs(accounts, nowMs));
    const { memory } = storage.leads;
    const records = ruleStates.map(({ rule, stored }, index) =>
      record(
        rule,
        accounts[index] ?? UNTOUCHED,
        ahead[index] ?? 0,
        nowMs,
        policy.reservation,
        stored,
        memory,
      ),
    );
    const stored = records.map((each) => each.stored);
    const rules: Record<string, StoredAccount> = {};
    for (const [index, { rule }] of ruleStates.entries()) rules[rule.name] = stored[index] as StoredAccount;
    Object.assign(rules, storedVersion(keyState.inForce));
    const write = () => {
      // Segments first: their table makes the table of records, so that a first record is not written twice.
      for (const [index, { rule }] of ruleStates.entries()) {
        const segment = records[index]?.segment;
        if (segment !== undefined) storage.writeSegment(key, rule.name, segment);
      }
      storage.write({ key, policy: policy.name, rules }, wholeMs);
      for (const claim of expired) endExpired(storage, keyState, claim);
    };
    const isOneRow = expired.length === 0 && records.every(({ segment }) => segment === undefined);
    if (isOneRow) write();
    else storage.atomically(write);
    keyState.noteWritten(stored, accounts, wholeMs);
    return wholeMs;
  }

  /**
   * Replaces the key's accounts by ones that have been written, or that what is stored covers.
   *
   * @param isWritten whether just these have been written, and memory may not be ahead of them
   */
  take(keyState: KeyState, accounts: readonly Account[], nowMs: number, isWritten: boolean): void {
    keyState.replaceAccounts(accounts, isWritten);
    this.#weigh(keyState);
    if (!this.#isFull(0)) return;
    // The operation that changed the key is not done with it.
    const unpin = keyState.pin();
    this.#dropOne(nowMs, GROWTH_STEPS);
    unpin();
  }

  /** Removes a key from memory of which storage knows as much. Another `KeyState` of the same key would stay. */
  drop(keyState: KeyState): void {
    if (this.#keys.get(keyState.key) !== keyState) return;
    this.#keys.delete(keyState.key);
    this.#memory.add(this.#share, -1, -keyState.bytes);
  }

  /** Whether the key is in memory. */
  has(key: string): boolean {
    return this.#keys.has(key);
  }

  /** Removes a key from memory whatever it knows of it: its record has been replaced, or has gone. */
  forget(key: string): void {
    const keyState = this.#keys.get(key);
    if (keyState !== undefined) this.drop(keyState);
  }

  /** A transaction was rolled back that memory takes for made. The key is read again. */
  reload(keyState: KeyState, nowMs: number): void {
    keyState.reload(this.#storage, nowMs, true);
    this.#weigh(keyState);
  }

  /** Ends an operation: a key without any state leaves memory, so that a peek at an unused key leaves nothing. */
  release(keyState: KeyState): void {
    if (keyState.isEmpty) this.drop(keyState);
  }

  /**
   * Writes the exact state of every key, as far as it is not written.
   *
   * @returns whether no isolate has units of any key: then nothing is ahead of what is stored
   */
  writeAll(nowMs: number): boolean {
    let isExact = true;
    for (const keyState of this.#keys.values()) {
      this.#writeLast(keyState, nowMs);
      isExact &&= keyState.accounts.every((account) => unstoredOf(account) === 0);
    }
    return isExact;
  }

  #load(key: string, choose: (kept: PolicyRevision | undefined) => ChosenVersion, nowMs: number): KeyState {
    // Two rounds find a key that is not pinned, if there is one. Several have to go when a large one came before.
    while (this.#isFull(1) && this.#dropOne(nowMs, 2 * this.#keys.size));
    const keyState = new KeyState(this.#storage, choose, key, nowMs);
    this.#writeFound(keyState, nowMs);
    this.#keys.set(key, keyState);
    this.#memory.add(this.#share, 1, 0);
    this.#weigh(keyState);
    return keyState;
  }

  /** The record of a key that is loaded is written again when it is of an earlier version, or of other rules. */
  #writeFound(keyState: KeyState, nowMs: number): void {
    const { found, inForce, policy, ruleStates } = keyState;
    const isRecorded = keyState.dueMs > -Infinity;
    if (isRecorded && isOfAnother(found, inForce))
      return this.#beginAnew(keyState, { policy, inForce }, nowMs);
    const isNewVersion = isRecorded && later(found, inForce) !== found;
    if (!isNewVersion && !ruleStates.some(({ isConverted }) => isConverted)) return;
    keyState.advance(nowMs);
    this.write(keyState, keyState.accounts, nowMs);
  }

  #writeLast(keyState: KeyState, nowMs: number): void {
    keyState.advance(nowMs);
    if (!keyState.isWritten && !(keyState.isUnrecorded && keyState.isWhole(nowMs)))
      this.#writeExact(keyState, nowMs);
  }

  /**
   * Another version is in force from now on. That is stored with all that is stored of the key. What holds have become in
   * memory is written first: from then on memory has them, and nothing is presumed of a record.
   */
  #adopt(keyState: KeyState, to: ChosenVersion, nowMs: number): void {
    if (isOfAnother(keyState.inForce, to.inForce)) return this.#beginAnew(keyState, to, nowMs);
    keyState.advance(nowMs);
    if (!keyState.isUnrecorded || !keyState.isWhole(nowMs)) this.#writeExact(keyState, nowMs);
    keyState.compare(undefined);
    keyState.adopt(this.#storage, to, nowMs);
    if (!keyState.isUnrecorded) this.#writeExact(keyState, nowMs);
  }

  /**
   * Another candidate decides the key from now on: nothing that it has counted counts for this one, nor what holders have
   * of it. Holders are still known, so that their later messages are recognised as those of before.
   */
  #beginAnew(keyState: KeyState, to: ChosenVersion, nowMs: number): void {
    const storage = this.#storage;
    storage.atomically(() => {
      storage.answers.removeAll(keyState.key);
      storage.remove(keyState.key);
    });
    keyState.noteDeleted();
    keyState.replaceAccounts([], true);
    keyState.compare(undefined);
    keyState.adopt(storage, to, nowMs);
    keyState.replaceAccounts([], true);
    // An object that starts presumes units of a key without a record for a while.
    this.#writeExact(keyState, nowMs);
  }

  #writeExact(keyState: KeyState, nowMs: number): void {
    const { accounts } = keyState;
    this.write(keyState, accounts, nowMs);
    keyState.replaceAccounts(accounts, true);
  }

  #weigh(keyState: KeyState): void {
    this.#memory.add(this.#share, 0, keyState.weigh());
  }

  #isFull(others: number): boolean {
    return this.#memory.hasTooManyKeys(this.#share, others) || this.#memory.hasTooManyBytes(this.#share);
  }

  /**
   * Drops the first key in insertion order that was not used since the last search ("second chance"). When bytes are
   * short and not places, it drops none that is lighter than the average: thousands of those would make no room.
   *
   * @param steps how many keys to look through; the next search goes on from there
   * @returns whether there was one. If not in two rounds, all are pinned by calls that wait, and memory grows
   */
  #dropOne(nowMs: number, steps: number): boolean {
    let left = steps;
    const minBytes = this.#memory.hasTooManyKeys(this.#share, 1) ? 0 : this.#share.bytes / this.#keys.size;
    for (const keyState of this.#keys.values()) {
      if (!keyState.isTouched && !keyState.isPinned && keyState.bytes >= minBytes) {
        this.#writeLast(keyState, nowMs);
        this.drop(keyState);
        return true;
      }
      keyState.isTouched = false;
      this.#keys.delete(keyState.key);
      this.#keys.set(keyState.key, keyState);
      left -= 1;
      if (left <= 0) break;
    }
    return false;
  }
}

/**
 * The policy of a version.
 *
 * @param file the policy as the deployment's file has it; `undefined`: it has no such policy
 * @throws Error when there is no policy
 */
function chosen(name: string, file: Policy | undefined, inForce: PolicyRevision | undefined): ChosenVersion {
  const policy = (inForce?.fields === undefined ? undefined : readPolicy(name, inForce.fields)) ?? file;
  if (policy === undefined)
    throw new Error(`this version of the object has no policy ${JSON.stringify(name)}`);
  return { policy, inForce };
}
