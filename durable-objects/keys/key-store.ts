import type { Account, Hold } from "../../core/accounts/hold.ts";
import type { Noticed } from "../../core/accounts/notices.ts";
import { tokenPassedMs } from "../../core/algorithms/concurrency.ts";
import { readClockMs } from "../../core/clock.ts";
import type { Policies, Rule } from "../../core/policies/policy.ts";
import type { Full } from "../../core/protocol/problems.ts";
import type { Claim } from "../storage/records.ts";
import type { KeyStorage } from "../storage/storage.ts";
import { claimsFull, type KeyAnswers, type Remembered } from "./idempotency.ts";
import type { KeyCache } from "./key-cache.ts";
import { aheadAgain, deniedIn, hasUnsent, type KeyChange, type NoticeBox, noticedOf } from "./key-notices.ts";
import type { KeyState } from "./key-state.ts";

/** One call's changes to a key. `commit` saves all of them or none. */
interface Change {
  readonly accounts: readonly Account[];
  readonly put?: readonly Claim[];
  readonly end?: readonly Claim[];
  /** They end earlier than their rows say, which stay as they are. */
  readonly sooner?: readonly Claim[];
  readonly remember?: readonly Remembered[];
  /** Write the record even if the last one covers the accounts, without units ahead of it. */
  readonly isExact?: boolean;
  /** By rule: what is noticed after it, if that must be written. */
  readonly noticed?: readonly Noticed[] | undefined;
  readonly uncharge?: string | undefined;
  readonly forget?: readonly string[];
}

/** Opens keys, and saves changes before memory changes. It is synchronous, so no other call comes between. */
export class KeyStore {
  readonly answers: KeyAnswers;
  readonly #policies: Pick<Policies, "get">;
  readonly #storage: KeyStorage;
  readonly #cache: KeyCache;
  /** Is called after a write, with the instant from which the key is untouched without further calls. */
  readonly #onWritten: (wholeMs: number, nowMs: number) => void;
  /** Absent: nobody is told when limits are reached. */
  notices: NoticeBox | undefined;

  constructor(
    policies: Pick<Policies, "get">,
    storage: KeyStorage,
    cache: KeyCache,
    onWritten: (wholeMs: number, nowMs: number) => void,
  ) {
    this.#policies = policies;
    this.#storage = storage;
    this.#cache = cache;
    this.answers = cache.answers;
    this.#onWritten = onWritten;
  }

  /** @throws Error while versions mix: this object's version does not know the worker's policy yet */
  open(name: string, key: string, nowMs: number): KeyState {
    const file = this.#policies.get(name);
    // Only a deployment moves keys: keys of a policy that it lacks stay where they are.
    if (file?.objectsBefore !== undefined && this.#storage.moves.isAway(key))
      throw new Error(`key ${JSON.stringify(key)} is elsewhere`);
    return this.#cache.open(name, file, key, nowMs);
  }

  release(keyState: KeyState): void {
    this.#cache.release(keyState);
  }

  /** Whether it is still what is known of its key. */
  isHere(keyState: KeyState): boolean {
    return this.#cache.known(keyState.key) === keyState;
  }

  /** Commits a change unless it exceeds a bound. Then nothing changes. */
  commitWithin(keyState: KeyState, change: Change, nowMs: number): Full | undefined {
    const { put = [], remember = [] } = change;
    const [answered] = remember;
    const over =
      (put.length > 0 ? claimsFull(this.#storage, keyState, put) : undefined) ??
      (answered && this.answers.full(keyState, answered.idempotencyKey, nowMs));
    if (over === undefined) this.commit(keyState, change, nowMs);
    return over;
  }

  /** Writes what storage does not cover, then changes memory. If a write throws, nothing has changed. */
  commit(keyState: KeyState, change: Change, nowMs: number): void {
    const noticed = change.noticed ?? this.#noticedAfter(keyState, change, nowMs);
    for (const wholeMs of this.#save(keyState, { ...change, noticed }, nowMs))
      this.#onWritten(wholeMs, nowMs);
    if (noticed !== undefined && hasUnsent(keyState)) this.notices?.add(keyState, nowMs);
  }

  #noticedAfter(keyState: KeyState, change: KeyChange, nowMs: number): readonly Noticed[] | undefined {
    return this.notices && noticedOf(keyState, change, this.notices, nowMs);
  }

  /** A denial for want of units may be the first of a key. */
  answered(keyState: KeyState, answer: unknown, nowMs: number): void {
    const denied = deniedIn(answer);
    if (denied.length > 0) this.notice(keyState, nowMs, denied);
  }

  /** Notices what is reached without a change: by a denial, or since units count as used that a hold has left. */
  notice(keyState: KeyState, nowMs: number, denied: readonly string[] = []): void {
    const { accounts } = keyState;
    const noticed = this.#noticedAfter(keyState, { accounts, denied }, nowMs);
    if (noticed !== undefined) this.commit(keyState, { accounts, noticed }, nowMs);
  }

  /** These notices have arrived, or are given up. */
  unsend(keyState: KeyState, ids: ReadonlySet<string>, nowMs: number): void {
    const noticed = keyState.ruleStates.map(({ noticed: { reached, unsent } }) => ({
      reached,
      unsent: unsent.filter(({ id }) => !ids.has(id)),
    }));
    this.commit(keyState, { accounts: keyState.accounts, noticed }, nowMs);
  }

  #save(keyState: KeyState, change: Change, nowMs: number): number[] {
    const { accounts, put = [], end = [], sooner = [], remember = [], forget = [] } = change;
    const { noticed, uncharge } = change;
    const [storage, { key }] = [this.#storage, keyState];
    if (noticed !== undefined) keyState.noteNotices(noticed);
    const isSaved = keyState.isCovered(accounts, nowMs);
    const minDueMs = put.length > 0 ? dueWith(keyState, put, nowMs) : -Infinity;
    const writesState = !isSaved || change.isExact === true || remember.length > 0 || noticed !== undefined;
    const writesRecord = writesState || minDueMs > keyState.dueMs;
    const isNew = keyState.dueMs === -Infinity;
    // A record that is written again leaves time to renew its claims once.
    const dueMs = isNew ? minDueMs : minDueMs + Math.max(0, minDueMs - nowMs);
    const again = noticed === undefined ? [] : aheadAgain(keyState);
    const ahead = isSaved ? again : keyState.noteGiven(accounts, nowMs);
    const writeRecord = () =>
      writesRecord ? this.#cache.write(keyState, accounts, nowMs, ahead, dueMs) : undefined;
    const isExact = writesRecord && !ahead.some((units) => units > 0);
    const isAhead = !isExact && (writesRecord || keyState.isAhead(nowMs));
    const allowanceEndsMs = this.#renewAllowance(keyState, accounts, nowMs, isAhead);
    keyState.leaveRows(put);
    // A row of slots lasts longer than they do. After a crash they would be taken beside those that others have got since.
    const lapsed = writesRecord ? [] : keyState.expired.filter(({ isSlots }) => isSlots === true);
    const writeAll = () => {
      for (const claim of lapsed) this.answers.endExpired(keyState, claim);
      for (const claim of end) storage.claims.remove(key, claim);
      for (const claim of put) storage.claims.write(key, claim, !keyState.claims.has(claim.id));
      for (const each of forget) storage.answers.remove(key, each);
      if (uncharge !== undefined) this.answers.forgetCharge(keyState, uncharge);
      for (const each of remember) this.answers.remember(keyState, each, nowMs);
      return writeRecord();
    };
    const rows = put.length + end.length + forget.length + lapsed.length;
    const changes = writesRecord || rows > 0 || uncharge !== undefined;
    // A charge without its answer could be made twice, an answer without its charge never.
    const wholeMs = changes ? this.#cache.atomically(keyState, writeAll, nowMs) : undefined;
    if (changes) keyState.leaveRows(lapsed);
    if (put.length + end.length + sooner.length > 0) keyState.noteClaims(end, [...put, ...sooner]);
    this.#cache.take(keyState, accounts, nowMs, isExact);
    return [allowanceEndsMs, wholeMs].filter((each) => each !== undefined);
  }

  /** Renews the crash allowance if needed. Returns when it has no effect any more, if it was written. */
  #renewAllowance({ policy }: KeyState, accounts: readonly Account[], nowMs: number, isAhead: boolean) {
    // A region's share of a pool is not stored.
    if (policy.pool !== undefined) return undefined;
    let neededMs = isAhead ? nowMs : -Infinity;
    for (const { holds } of accounts)
      for (const { isStored, expiresAtMs } of holds)
        if (isStored !== true) neededMs = Math.max(neededMs, expiresAtMs);
    if (neededMs === -Infinity) return undefined;
    return this.#storage.allowances.renew(policy, neededMs, nowMs);
  }

  /** Ends all holds and leases of a key as unused, and deletes its answers. */
  endClaims(keyState: KeyState, nowMs: number): void {
    const end = [...keyState.claims.values()];
    const accounts = keyState.accountsWithout(end, nowMs);
    this.#storage.answers.removeAll(keyState.key);
    this.commit(keyState, { accounts, end }, nowMs);
  }

  /** Makes the key untouched, but units that isolates may still spend stay held. */
  reset(keyState: KeyState, nowMs: number): void {
    const slots = [...keyState.claims.values()].filter(({ isSlots }) => isSlots === true);
    const isLent = ({ isStored, id }: Hold) => isStored !== true || slots.some((claim) => claim.id === id);
    const accounts = keyState.ruleStates.map(({ rule, account: { state, holds } }) => ({
      state: lastToken(rule, state, nowMs),
      holds: holds.filter(isLent),
    }));
    const reset = () => {
      this.#storage.answers.removeAll(keyState.key);
      this.#storage.remove(keyState.key);
      keyState.noteDeleted();
      // The next object must not presume units from before this object started.
      const isExact = this.#storage.allowances.isPresumed(keyState.policy, nowMs) || hasUnsent(keyState);
      if (isExact || accounts.some(({ state, holds }) => state !== undefined || holds.length > 0))
        return this.#save(keyState, { accounts, isExact, put: slots }, nowMs);
      this.#cache.take(keyState, accounts, nowMs, true);
      return [];
    };
    // All or nothing: without the earlier record the units of isolates would be unknown.
    for (const wholeMs of this.#cache.atomically(keyState, reset, nowMs)) this.#onWritten(wholeMs, nowMs);
  }
}

/** What is left of a state after a reset: a fencing token that the clock has not reached. */
function lastToken({ algorithm }: Rule, state: unknown, nowMs: number): unknown {
  const { leasing } = algorithm;
  if (leasing === undefined || tokenPassedMs(algorithm, state) <= nowMs) return undefined;
  return leasing.resumed(leasing.fencingToken(state));
}

/**
 * When a sweep may read a key with these claims. A record is not due before a claim of its key ends: the
 * alarm finds claims by it. It may be due before its units have refilled, since memory may be ahead: the
 * sweep then writes a later one.
 */
function dueWith({ claims }: KeyState, put: readonly Claim[], nowMs: number): number {
  // A claim to be confirmed most likely will be, and then lasts for its requested time.
  const ends = put.map(({ id, ttlMs, expiresAtMs }) =>
    claims.has(id) ? expiresAtMs : Math.max(expiresAtMs, nowMs + ttlMs),
  );
  return Math.max(...ends);
}

/** The alarm moves earlier only to gain more than this, in milliseconds: each move writes a row. */
const ALARM_SLACK_MS = 60_000;
/** The longest time to an alarm, in milliseconds. One that comes early sets the next. */
const MAX_ALARM_MS = 30 * 24 * 60 * 60 * 1_000;

type Alarm = Pick<DurableObjectStorage, "getAlarm" | "setAlarm">;

/** The object's clock and its alarm. */
export class Timers {
  readonly #storage: Alarm;
  readonly #read: () => number;
  /** The clock was put back, and has not caught up: how much time passes is not known. */
  isBehind = false;
  #lastNowMs = 0;
  #alarmAtMs = Infinity;

  constructor(storage: Alarm, read = readClockMs) {
    this.#storage = storage;
    this.#read = read;
  }

  /** Reads the alarm set before the object started. If the runtime dropped it, sets one in `lostMs`. */
  async readAlarm(lostMs: number): Promise<void> {
    this.#alarmAtMs = (await this.#storage.getAlarm()) ?? Infinity;
    const nowMs = this.nowMs();
    if (this.#alarmAtMs === Infinity) this.alarmBy(nowMs + lostMs, nowMs);
  }

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

  /** In milliseconds since the Unix epoch. It never runs backwards. */
  nowMs(): number {
    const readMs = this.#read();
    this.isBehind = readMs < this.#lastNowMs;
    this.#lastNowMs = Math.max(this.#lastNowMs, readMs);
    return this.#lastNowMs;
  }
}
