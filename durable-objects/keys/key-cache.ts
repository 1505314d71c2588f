import { type Account, unstoredOf } from "../../core/accounts/account.ts";
import { readClockMs } from "../../core/clock.ts";
import { later, type Policy } from "../../core/policies/policy.ts";
import type { KeyStorage } from "../storage/storage.ts";
import { KeyState } from "./key-state.ts";
import { adopt, isEmpty, writeFound, writeLast, writeRecord } from "./record-writing.ts";
import { type Choose, chosen, RuleFingerprints, versionIn, Versions } from "./versions.ts";

/** What one object has of the memory. It is the object's own: when that goes, this goes too. */
interface MemoryShare {
  keys: number;
  bytes: number;
}

/** While there is too little memory, the objects that have gone are looked for after so many changes. */
const LOOK_AFTER = 1_024;

/**
 * The memory that keys may take, for all objects that share it. On Cloudflare objects of one class may run in one
 * isolate, which has 128 MB for all of them.
 *
 * No object can drop another one's keys: it may not write for it. So when there is too little, each drops keys of its own
 * when it is called, as long as it has more than an even part. One that has less may still grow to that, so there may be
 * twice as much as allowed, until those that have more are called, or leave memory because nobody calls them.
 */
export class MemoryBudget {
  readonly #mostKeys: number;
  readonly #mostBytes: number;
  /** The runtime drops an object without telling it. */
  readonly #shares = new Set<WeakRef<MemoryShare>>();
  #keys = 0;
  #bytes = 0;
  #changes = 0;
  /** With so many objects it is time to look for those that have gone. */
  #lookAt = LOOK_AFTER;

  constructor(mostKeys: number, mostBytes: number) {
    this.#mostKeys = mostKeys;
    this.#mostBytes = mostBytes;
  }

  /** One more object. */
  join(): MemoryShare {
    const share = { keys: 0, bytes: 0 };
    this.#shares.add(new WeakRef(share));
    if (this.#shares.size > this.#lookAt) this.#look();
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
      return this.#keys + others > this.#mostKeys && own * this.#shares.size > this.#mostKeys;
    };
    return this.#isStill(isOver);
  }

  /** Whether the object has to drop keys because all of them are too large together. */
  hasTooManyBytes(share: MemoryShare): boolean {
    return this.#isStill(
      () => this.#bytes > this.#mostBytes && share.bytes * this.#shares.size > this.#mostBytes,
    );
  }

  /** Whether it is so when objects do not count that have gone. */
  #isStill(isOver: () => boolean): boolean {
    if (!isOver()) return false;
    if (this.#changes >= LOOK_AFTER && this.#shares.size > 1) this.#look();
    return isOver();
  }

  /** Looks for objects that have gone. */
  #look(): void {
    [this.#changes, this.#keys, this.#bytes] = [0, 0, 0];
    for (const reference of this.#shares) {
      const share = reference.deref();
      if (share === undefined) this.#shares.delete(reference);
      this.#keys += share?.keys ?? 0;
      this.#bytes += share?.bytes ?? 0;
    }
    this.#lookAt = 2 * this.#shares.size + LOOK_AFTER;
  }
}

/** The most keys in memory of all objects in an isolate, at about 1 KiB each. Other keys are read from storage when a call opens them. */
export const MAX_KEYS = 20_000;
/**
 * The bytes of its 128 MB that keys may take beside that, until some are dropped: two of the largest states. They are
 * weighed when they are loaded and when a call has changed them.
 */
export const MAX_BYTES = 32 * 2 ** 20;
/** What all objects in an isolate share. */
export const SHARED_MEMORY = new MemoryBudget(MAX_KEYS, MAX_BYTES);
/** A call to a key that grows looks at so many keys for one to drop. It mostly adds far less than that one takes. */
const GROWTH_STEPS = 64;

/**
 * The object's memory: a cache of its storage. Memory may be ahead of storage by what write-behind allows. All methods
 * are synchronous, and memory changes only after storage has: a write that throws has changed nothing.
 */
export class KeyCache {
  /** What other versions of its policies say. */
  readonly heard = new RuleFingerprints();
  /** What calls have said that is in force for their keys. */
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
   * @param file the policy as the deployment's file has it; `undefined`: only a call, or the key's record, can say it
   * @throws Error when nobody says what the policy is
   */
  open(name: string, file: Policy | undefined, key: string, nowMs: number): KeyState {
    const told = this.versions.take(key);
    const known = this.#keys.get(key);
    // An object has keys of one policy. A call with another name is of a policy that nobody knows.
    if (known !== undefined && known.policy.name !== name) chosen(name, file, told);
    const keyState = known ?? this.#load(key, (kept) => chosen(name, file, later(kept, told)), nowMs);
    keyState.isTouched = true;
    if (known !== undefined && later(known.inForce, told) !== known.inForce) {
      adopt(this.#storage, known, chosen(name, file, told), nowMs);
      this.#weigh(known);
    }
    keyState.compare(keyState.inForce?.fields === undefined ? this.heard.comparison(name, nowMs) : undefined);
    keyState.advance(nowMs);
    return keyState;
  }

  /** The policy by which a key is decided, as far as memory, what is stored or the file says; `undefined`: none does. */
  policyOf(name: string, file: Policy | undefined, key: string): Policy | undefined {
    const known = this.#keys.get(key);
    const inForce = known === undefined ? versionIn(this.#storage.read(key)?.rules) : known.inForce;
    return inForce?.fields === undefined ? file : chosen(name, file, inForce).policy;
  }

  /**
   * Writes these accounts as the key's record.
   *
   * @param ahead by rule: how far memory may go ahead of this record, beside what holders have; absent: not at all
   * @param leastDueMs a sweep need not look at the key before
   * @returns the instant from which the key is whole if nobody comes, or `leastDueMs` if that is later
   */
  write(
    keyState: KeyState,
    accounts: readonly Account[],
    nowMs: number,
    ahead: readonly number[] = [],
    leastDueMs = -Infinity,
  ): number {
    return writeRecord(this.#storage, keyState, accounts, nowMs, ahead, leastDueMs);
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
    const unpin = keyState.pins.add();
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

  /** A transaction was rolled back, of which memory believes that it was made. The key is read again. */
  reload(keyState: KeyState, nowMs: number): void {
    keyState.reload(this.#storage, nowMs, true);
    this.#weigh(keyState);
  }

  /**
   * Removes the key from memory if there is nothing of it anywhere: who looks at keys that nobody uses leaves nothing.
   * Is called after each operation, so a key that has a record is told by one comparison.
   */
  release(keyState: KeyState): void {
    if (isEmpty(keyState)) this.drop(keyState);
  }

  /**
   * Writes the exact state of every key, as far as it is not written.
   *
   * @returns whether no isolate has units of any key: then nothing is ahead of what is stored
   */
  writeAll(nowMs: number): boolean {
    let isExact = true;
    for (const keyState of this.#keys.values()) {
      writeLast(this.#storage, keyState, nowMs);
      isExact &&= keyState.accounts.every((account) => unstoredOf(account) === 0);
    }
    return isExact;
  }

  #load(key: string, choose: Choose, nowMs: number): KeyState {
    // Two rounds find a key that is not pinned, if there is one. Several have to go when a large one came before.
    while (this.#isFull(1) && this.#dropOne(nowMs, 2 * this.#keys.size));
    const keyState = new KeyState(this.#storage, choose, key, nowMs);
    writeFound(this.#storage, keyState, nowMs);
    this.#keys.set(key, keyState);
    this.#memory.add(this.#share, 1, 0);
    this.#weigh(keyState);
    return keyState;
  }

  #weigh(keyState: KeyState): void {
    this.#memory.add(this.#share, 0, keyState.weigh());
  }

  /** Whether there is no room for so many other keys. */
  #isFull(others: number): boolean {
    return this.#memory.hasTooManyKeys(this.#share, others) || this.#memory.hasTooManyBytes(this.#share);
  }

  /**
   * Drops the first key in insertion order that was not used since the last search ("second chance"). When bytes are
   * short and not places, it drops none that is lighter than the average: thousands of those would make no room.
   *
   * @param steps how many keys to look at; the next search goes on from there
   * @returns whether there was one. If not in two rounds, all are pinned by calls that wait, and memory grows
   */
  #dropOne(nowMs: number, steps: number): boolean {
    let left = steps;
    const leastBytes = this.#memory.hasTooManyKeys(this.#share, 1) ? 0 : this.#share.bytes / this.#keys.size;
    for (const keyState of this.#keys.values()) {
      if (!keyState.isTouched && !keyState.pins.isAny && keyState.bytes >= leastBytes) {
        writeLast(this.#storage, keyState, nowMs);
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

/** An alarm is set to an earlier instant only if it gains more than this, in milliseconds: each move writes a row. */
const ALARM_SLACK_MS = 60_000;
/** No alarm is set further ahead than this, in milliseconds. It comes early then, and sets the next one. */
const MAX_ALARM_MS = 30 * 24 * 60 * 60 * 1_000;

/** Does work that may take long, in steps: calls may come in between. None comes between the last step and `finish`. */
export async function inTurns<Result>(
  work: Generator<undefined, Result>,
  finish: (result: Result) => Promise<void>,
): Promise<void> {
  let step = work.next();
  for (; step.done !== true; step = work.next()) await new Promise((resolve) => setTimeout(resolve, 0));
  await finish(step.value);
}

/** Where an alarm is set. */
export type Alarm = Pick<DurableObjectStorage, "getAlarm" | "setAlarm">;

/** The object's clock and its alarm. */
export class Timers {
  readonly #storage: Alarm;
  readonly #read: () => number;
  #lastNowMs = 0;
  #alarmAtMs = Infinity;

  constructor(storage: Alarm, read = readClockMs) {
    this.#storage = storage;
    this.#read = read;
  }

  /**
   * Reads the alarm that was set before the object started. If none is, though something is stored, one is set that
   * comes after `lostMs`: the runtime has given it up.
   */
  async readAlarm(lostMs: number): Promise<void> {
    this.#alarmAtMs = (await this.#storage.getAlarm()) ?? Infinity;
    const nowMs = this.nowMs();
    if (this.#alarmAtMs === Infinity) this.alarmBy(nowMs + lostMs, nowMs);
  }

  /** The alarm has come, or was deleted: none is set now. */
  alarmCame(): void {
    this.#alarmAtMs = Infinity;
  }

  /** Sets an alarm for `dueMs`, unless one is already set for at most `slackMs` later. */
  alarmBy(dueMs: number, nowMs: number, slackMs = ALARM_SLACK_MS): void {
    const alarmAtMs = Math.min(dueMs, nowMs + MAX_ALARM_MS);
    if (this.#alarmAtMs <= alarmAtMs + slackMs) return;
    this.#alarmAtMs = alarmAtMs;
    void this.#storage.setAlarm(alarmAtMs);
  }

  /** The object's clock, in milliseconds since the Unix epoch. It never runs backwards. */
  nowMs(): number {
    this.#lastNowMs = Math.max(this.#lastNowMs, this.#read());
    return this.#lastNowMs;
  }
}
