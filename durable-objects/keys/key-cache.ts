import { broughtTo, UNTOUCHED, unstoredOf } from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import { NOTHING_NOTICED } from "../../core/accounts/notices.ts";
import {
  isOfAnother,
  later,
  type Policy,
  type PolicyRevision,
  publicName,
} from "../../core/policies/policy.ts";
import { planOf } from "../../core/policies/seen-policy.ts";
import type { JournalRoom } from "../storage/journal.ts";
import { record, storedNotices } from "../storage/records.ts";
import type { KeyStorage } from "../storage/storage.ts";
import { KeyAnswers } from "./idempotency.ts";
import { KeyState } from "./key-state.ts";
import {
  type Choose,
  type ChosenVersion,
  readPolicy,
  RuleFingerprints,
  storedVersion,
  type VersionedPolicies,
  versionIn,
  Versions,
} from "./versions.ts";

/** One object's part of the memory. It is garbage collected with the object. */
interface MemoryShare {
  keys: number;
  bytes: number;
}

/** While memory is short, dropped objects are searched after this many changes. */
const SEARCH_AFTER = 1_024;

/**
 * The memory of all objects in an isolate, which has 128 MB. An object may not write for another's keys. So
 * when memory is short, each called object above an even part drops its own. Twice as much may be in use
 * until the larger ones are called or evicted.
 */
export class MemoryBudget {
  readonly #maxKeys: number;
  readonly #maxBytes: number;
  /** The runtime drops an object without notice. */
  readonly #shares = new Set<WeakRef<MemoryShare>>();
  #keys = 0;
  #bytes = 0;
  #changes = 0;
  /** From this many objects on, dropped ones are searched. */
  #searchAt = SEARCH_AFTER;

  constructor(maxKeys: number, maxBytes: number) {
    this.#maxKeys = maxKeys;
    this.#maxBytes = maxBytes;
  }

  join(): MemoryShare {
    const share = { keys: 0, bytes: 0 };
    this.#shares.add(new WeakRef(share));
    if (this.#shares.size > this.#searchAt) this.#forgetGone();
    return share;
  }

  add(share: MemoryShare, keys: number, bytes: number): void {
    share.keys += keys;
    share.bytes += bytes;
    this.#keys += keys;
    this.#bytes += bytes;
    this.#changes += 1;
  }

  hasTooManyKeys(share: MemoryShare, others: number): boolean {
    return this.#isStill(() => this.#isOver(this.#keys + others, share.keys + others, this.#maxKeys));
  }

  hasTooManyBytes(share: MemoryShare): boolean {
    return this.#isStill(() => this.#isOver(this.#bytes, share.bytes, this.#maxBytes));
  }

  #isOver(all: number, own: number, max: number): boolean {
    return all > max && own * this.#shares.size > max;
  }

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

/** The most keys in memory of all objects in an isolate, at about 1 KiB each. */
export const MAX_KEYS = 20_000;
/** The bytes that keys may take beside that: two of the largest states. Loads and changes weigh them. */
export const MAX_BYTES = 32 * 2 ** 20;
export const SHARED_MEMORY = new MemoryBudget(MAX_KEYS, MAX_BYTES);
/** The characters of the journals of all objects in an isolate; in memory each takes some bytes. */
const MAX_JOURNALS_LENGTH = 4 * 2 ** 20;
const JOURNALS = new MemoryBudget(Infinity, MAX_JOURNALS_LENGTH);

/** This object's part of the memory for journals. */
export function journalRoom(memory = JOURNALS): JournalRoom {
  const share = memory.join();
  return { add: (length) => memory.add(share, 0, length), isShort: () => memory.hasTooManyBytes(share) };
}

/** A call to a growing key checks this many keys for one to drop. It mostly adds far less than one takes. */
const GROWTH_STEPS = 64;

/** A cache of the object's storage. Memory changes after storage, so a write that throws changes nothing. */
export class KeyCache {
  readonly fingerprints = new RuleFingerprints();
  readonly versions = new Versions();
  readonly answers: KeyAnswers;
  readonly #storage: KeyStorage;
  readonly #policies: VersionedPolicies;
  readonly #memory: MemoryBudget;
  readonly #share: MemoryShare;
  readonly #keys = new Map<string, KeyState>();

  /** @param memory shared with other objects; absent: not shared */
  constructor(
    storage: KeyStorage,
    memory = new MemoryBudget(MAX_KEYS, MAX_BYTES),
    policies: VersionedPolicies = {},
  ) {
    this.#storage = storage;
    this.#policies = policies;
    this.answers = new KeyAnswers(storage);
    this.#memory = memory;
    this.#share = memory.join();
  }

  get size(): number {
    return this.#keys.size;
  }

  /** Keys may change, and be dropped, during the iteration. */
  get states(): Iterable<KeyState> {
    return this.#keys.values();
  }

  /** The key at `nowMs`. `file`: the policy in the deployment's file. @throws Error when there is none */
  open(name: string, file: Policy | undefined, key: string, nowMs: number): KeyState {
    const { versions, fingerprints } = this;
    const latest = versions.size === 0 ? undefined : versions.take(key);
    const known = this.#keys.get(key);
    // An object has keys of one policy. A call with another name is of an unknown policy.
    if (known !== undefined && known.policy.name !== name) this.#chosen(name, file, latest);
    // Until now the version of its record has decided, if there is one and it can still be read.
    const choose: Choose = (kept, isRecorded) =>
      (isRecorded ? this.#found(name, file, kept) : undefined) ??
      this.#chosen(name, file, later(kept, latest));
    const keyState = known ?? this.#load(key, choose, nowMs);
    keyState.isTouched = true;
    // A later version that comes with a look or a release names no plan, and the key keeps its own.
    const inForce = later(keyState.inForce, latest);
    if (inForce !== keyState.inForce) {
      const to = this.#chosen(name, file, inForce);
      // One row, also for a call that waits and is no turn.
      this.atomically(keyState, () => this.#adopt(keyState, to, nowMs), nowMs);
      this.#weigh(keyState);
    }
    const isCompared = fingerprints.size > 0 && keyState.inForce?.fields === undefined;
    keyState.compare(isCompared ? fingerprints.comparison(name, nowMs) : undefined, nowMs);
    keyState.advance(nowMs);
    return keyState;
  }

  /** The policy that decides a key, from memory, storage or the file; `undefined`: there is none. */
  policyOf(name: string, file: Policy | undefined, key: string): Policy | undefined {
    const known = this.#keys.get(key);
    const inForce = known === undefined ? versionIn(this.#storage.read(key)?.rules) : known.inForce;
    return inForce === undefined ? file : this.#chosen(name, file, inForce).policy;
  }

  /**
   * Writes these accounts as the key's record. Returns when it is due: untouched, and not before `minDueMs`.
   *
   * @param ahead by rule: how far memory may go ahead of this record; absent: not at all
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
    const { memory } = storage.allowances;
    const records = ruleStates.map(({ rule, stored }, index) => {
      const account = accounts[index] ?? UNTOUCHED;
      const units = ahead[index] ?? 0;
      return { rule, ...record(rule, account, units, nowMs, policy.reservation, stored, memory) };
    });
    const stored = Object.fromEntries(
      records.map((each, index) => {
        const { noticed = NOTHING_NOTICED } = ruleStates[index] ?? {};
        return [each.rule.name, { ...each.stored, ...storedNotices(noticed) }];
      }),
    );
    const write = () => {
      // Segments first: their table makes the table of records, so that a first record is not written twice.
      for (const { rule, segment } of records)
        if (segment !== undefined) storage.writeSegment(key, rule.name, segment);
      const rules = { ...stored, ...storedVersion(keyState.inForce) };
      storage.write({ key, policy: policy.name, rules }, wholeMs);
      for (const claim of expired) this.answers.endExpired(keyState, claim);
    };
    const isOneRow = expired.length === 0 && records.every(({ segment }) => segment === undefined);
    if (isOneRow) write();
    else storage.atomically(write);
    keyState.noteWritten(stored, accounts, wholeMs);
    return wholeMs;
  }

  /** Takes accounts that the record covers. `isWritten`: it has exactly these, so memory is not ahead. */
  take(keyState: KeyState, accounts: readonly Account[], nowMs: number, isWritten: boolean): void {
    keyState.replaceAccounts(accounts, isWritten);
    this.#weigh(keyState);
    if (!this.#isFull(0)) return;
    // The operation that changed the key still uses it.
    const unpin = keyState.pin();
    this.#dropOne(nowMs, GROWTH_STEPS);
    unpin();
  }

  /** Drops a key that memory knows no better than storage. Another `KeyState` of the same key would stay. */
  drop(keyState: KeyState): void {
    if (this.#keys.get(keyState.key) !== keyState) return;
    this.#keys.delete(keyState.key);
    this.#memory.add(this.#share, -1, -keyState.bytes);
  }

  /** If it is in memory. */
  known(key: string): KeyState | undefined {
    return this.#keys.get(key);
  }

  /** Drops a key without a write: its record was replaced or deleted. */
  forget(key: string): void {
    const keyState = this.#keys.get(key);
    if (keyState !== undefined) this.drop(keyState);
  }

  /** Runs `work` in a transaction. After a rollback the key is read again. */
  atomically<Result>(keyState: KeyState, work: () => Result, nowMs: number): Result {
    try {
      return this.#storage.atomically(work);
    } catch (error) {
      keyState.reload(this.#storage, nowMs, true);
      this.#weigh(keyState);
      throw error;
    }
  }

  /** Ends an operation. A key without state is dropped, so that a peek at an unused key leaves nothing. */
  release(keyState: KeyState): void {
    if (keyState.isEmpty) this.drop(keyState);
  }

  /** Writes every key exactly. Returns whether no isolate has units of any key: then storage is exact. */
  writeAll(nowMs: number): boolean {
    let isExact = true;
    for (const keyState of this.#keys.values()) {
      this.#writeLast(keyState, nowMs);
      isExact &&= keyState.accounts.every((account) => unstoredOf(account) === 0);
    }
    return isExact;
  }

  /** @throws Error when neither a version nor the deployment's file has the policy */
  #chosen(name: string, file: Policy | undefined, inForce: PolicyRevision | undefined): ChosenVersion {
    const chosen = this.#found(name, file, inForce);
    if (chosen === undefined)
      throw new Error(`this version of the object has no policy ${JSON.stringify(name)}`);
    return chosen;
  }

  #found(name: string, file: Policy | undefined, inForce?: PolicyRevision): ChosenVersion | undefined {
    const { fields } = inForce ?? {};
    const policy = (fields === undefined ? undefined : readPolicy(name, fields, this.#policies)) ?? file;
    return policy && { policy: planOf(policy, inForce?.plan), whole: policy, inForce };
  }

  #load(key: string, choose: Choose, nowMs: number): KeyState {
    // Two rounds find a key that is not pinned, if any. A large key may require several drops.
    while (this.#isFull(1) && this.#dropOne(nowMs, 2 * this.#keys.size));
    const keyState = new KeyState(this.#storage, choose, key, nowMs);
    this.#writeFound(keyState, nowMs);
    this.#keys.set(key, keyState);
    this.#memory.add(this.#share, 1, 0);
    this.#weigh(keyState);
    return keyState;
  }

  /** Writes a loaded record again if it is of an earlier version or of other rules. */
  #writeFound(keyState: KeyState, nowMs: number): void {
    const { found, inForce, chosen, ruleStates } = keyState;
    const isRecorded = keyState.dueMs > -Infinity;
    if (isRecorded && isOfAnother(found, inForce)) return this.#beginAnew(keyState, chosen, nowMs);
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

  /** Stores another version. Memory is written before, so nothing is presumed of a record. */
  #adopt(keyState: KeyState, to: ChosenVersion, nowMs: number): void {
    if (isOfAnother(keyState.inForce, to.inForce)) return this.#beginAnew(keyState, to, nowMs);
    if ((keyState.inForce?.plan ?? "") !== (to.inForce?.plan ?? ""))
      this.#storage.counter?.add("plan_changes", [publicName(to.policy.name)]);
    keyState.advance(nowMs);
    if (keyState.keepsShare(to)) {
      if (!keyState.isUnrecorded) this.#writeExact(keyState, nowMs);
      return;
    }
    // What time has returned until now came at the rates until now.
    const until = keyState.ruleStates.map(({ rule, account }) => broughtTo(rule, account, nowMs));
    keyState.replaceAccounts(until, false);
    if (!keyState.isUnrecorded || !keyState.isWhole(nowMs)) this.#writeExact(keyState, nowMs);
    keyState.compare(undefined, nowMs);
    keyState.adopt(this.#storage, to, nowMs);
    if (!keyState.isUnrecorded) this.#writeExact(keyState, nowMs);
  }

  /** Another candidate begins with no counts or holds. Holders stay known, for their late messages. */
  #beginAnew(keyState: KeyState, to: ChosenVersion, nowMs: number): void {
    const storage = this.#storage;
    storage.atomically(() => {
      storage.answers.removeAll(keyState.key);
      storage.remove(keyState.key);
    });
    keyState.noteDeleted();
    keyState.replaceAccounts([], true);
    keyState.compare(undefined, nowMs);
    keyState.adopt(storage, to, nowMs);
    keyState.replaceAccounts([], true);
    // An object that starts presumes units of a key without a record for a while, but none of a pool.
    if (to.policy.pool === undefined) this.#writeExact(keyState, nowMs);
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
   * Drops the first key in insertion order that was not used since the last search ("second chance"), of
   * `steps` keys. If bytes are short and places are not, it skips keys below the average weight: thousands of
   * them would make no room. Returns false if none was found: after two rounds, calls that wait have pinned
   * all keys, and memory grows.
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
