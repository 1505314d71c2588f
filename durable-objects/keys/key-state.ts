import { type Account, advance, restoredOf, UNTOUCHED } from "../../core/accounts/account.ts";
import { later, type Policy, type PolicyRevision } from "../../core/policies/policy.ts";
import type { AnswerCount } from "../storage/answers.ts";
import { claimsOf } from "../storage/conversions.ts";
import { type Claim, CLAIM_BYTES, type StoredAccount } from "../storage/records.ts";
import type { DueKey, KeyStorage } from "../storage/storage.ts";
import { aheadOfRecord, recordWholeAtMs } from "../storage/write-behind.ts";
import {
  bytesOf,
  comparedBy,
  givenSince,
  Holders,
  readRuleStates,
  type RuleState,
  statesSeenBy,
  wholeAtMsOf,
  withHoldsOf,
} from "./rule-state.ts";
import { type Choose, type ChosenVersion, type Comparison, versionIn } from "./versions.ts";

/** A rule's state as `KeyState` itself sees it; nobody else may change it. */
type Changing = { -readonly [Field in keyof RuleState]: RuleState[Field] };

/** One key in memory. Only its own methods change it. Others read it, or tell it by a method what has happened. */
export class KeyState {
  readonly key: string;
  /** The version under which its record, as it was found, was written. */
  readonly found: PolicyRevision | undefined;
  /** Isolates that hold units of it, or asked for some lately. */
  readonly holders = new Holders();
  /** Waiting calls, or a message to the pool, that refer to this `KeyState`: then it stays in memory. */
  readonly pins = new Pins();
  /** By then reservations and leases must end: a region's pool keeps units until then. `Infinity`: there is no pool. */
  endsByMs: number;
  /** Whether the key was used since a search for a key to drop passed it over. */
  isTouched = true;
  /** From when on a sweep looks at what is stored of the key; -Infinity: it has no record. */
  dueMs = -Infinity;
  /** The bytes that its name, states, claims and holders took at the last `weigh`, beside about 1 KiB for each key. */
  bytes = 0;
  /** How many answers are remembered, by caller (`rangeOf`); absent: they have not been counted since it was loaded. */
  readonly answers = new Map<string, AnswerCount>();
  readonly #choose: Choose;
  #chosen: ChosenVersion;
  #ruleStates: readonly Changing[] = [];
  #claims = new KeyClaims();
  #isWritten = true;
  #comparison: Comparison | undefined;

  constructor(storage: KeyStorage, choose: Choose, key: string, nowMs: number) {
    this.key = key;
    this.#choose = choose;
    const record = storage.read(key);
    this.found = versionIn(record?.rules);
    this.#chosen = choose(this.found);
    this.endsByMs = this.policy.pool === undefined ? Infinity : -Infinity;
    this.#take(storage, record, nowMs, false);
  }

  /** The policy by which the key is decided. */
  get policy(): Policy {
    return this.#chosen.policy;
  }

  /** Which version of it that is; `undefined`: the deployment's file says it. */
  get inForce(): PolicyRevision | undefined {
    return this.#chosen.inForce;
  }

  /** The state of each rule, in the policy's order. `reload` replaces the whole list. */
  get ruleStates(): readonly RuleState[] {
    return this.#ruleStates;
  }

  get accounts(): readonly Account[] {
    return this.#ruleStates.map(({ account }) => account);
  }

  /** The rules with their accounts as calls of this priority see them: see core/policies/parse-policy.ts. */
  seenBy(priority?: string): readonly RuleState[] {
    return statesSeenBy(this.policy, this.#ruleStates, priority);
  }

  /** From now on rules are decided together with those of another version; `undefined`: alone. */
  compare(comparison: Comparison | undefined): void {
    if (comparison === this.#comparison) return;
    this.#comparison = comparison;
    this.#ruleStates = comparedBy(this.policy, this.#ruleStates, comparison);
  }

  /** The holds and leases of callers, by their ids. KeyStorage has them too. */
  get claims(): ReadonlyMap<string, Claim> {
    return this.#claims.all;
  }

  /** Claims that have expired and whose rows are still in storage. */
  get expired(): readonly Claim[] {
    return this.#claims.expired;
  }

  /** Whether an object that reads the key from storage knows as much: nothing has changed since it was read or written. */
  get isWritten(): boolean {
    return this.#isWritten;
  }

  /** Whether the key equals an untouched one and is not pinned. */
  isWhole(nowMs: number): boolean {
    if (this.pins.isAny || this.#ruleStates.some(({ account }) => account.holds.length > 0)) return false;
    return wholeAtMsOf(this.#ruleStates, this.accounts, nowMs) <= nowMs;
  }

  /** By rule: how far memory may go ahead of a record of these accounts, which what is stored does not cover. */
  noteGiven(accounts: readonly Account[]): number[] {
    return this.#ruleStates.map((ruleState, index) => {
      ruleState.given += givenSince(ruleState, accounts[index]);
      return aheadOfRecord(ruleState.rule, ruleState.given);
    });
  }

  /** Reads the key again. Its holders stay: what they hold is presumed. `isLost`: more was known than is stored. */
  reload(storage: KeyStorage, nowMs: number, isLost: boolean): void {
    const record = storage.read(this.key);
    const read = this.#choose(versionIn(record?.rules));
    if (later(this.inForce, read.inForce) !== this.inForce) this.#chosen = read;
    this.#take(storage, record, nowMs, isLost);
  }

  /**
   * From now on the key is decided by another version. What was consumed stays so, and what is held stays held: memory has
   * just been written under the version before, and is read under this one.
   */
  adopt(storage: KeyStorage, to: ChosenVersion, nowMs: number): void {
    const before = this.#ruleStates;
    this.#chosen = to;
    this.#take(storage, storage.read(this.key), nowMs, false);
    this.#ruleStates = withHoldsOf(before, this.#ruleStates);
  }

  #take(storage: KeyStorage, record: DueKey | undefined, nowMs: number, isLost: boolean): void {
    const claims = claimsOf(this.policy, storage.claims.read(this.key));
    this.#ruleStates = readRuleStates(storage, this.policy, this.key, record, claims, nowMs, isLost);
    this.dueMs = record?.wholeAtMs ?? -Infinity;
    this.#comparison = undefined;
    this.#claims = new KeyClaims(claims);
    this.#isWritten = !isLost;
    this.answers.clear();
  }

  /** All that was stored of the key has been deleted. */
  noteDeleted(): void {
    for (const ruleState of this.#ruleStates) ruleState.stored = undefined;
    this.dueMs = -Infinity;
    this.#claims = new KeyClaims();
    this.answers.clear();
  }

  /** Debits every hold that has expired. */
  advance(nowMs: number): void {
    let hasExpired = false;
    for (const ruleState of this.#ruleStates) {
      const account = advance(ruleState.rule, ruleState.account, nowMs);
      hasExpired ||= account !== ruleState.account;
      ruleState.account = account;
    }
    if (hasExpired) this.#claims.expire(nowMs);
  }

  /** Replaces all accounts. `isWritten`: just these have been written, and memory may not be ahead of them. */
  replaceAccounts(accounts: readonly Account[], isWritten: boolean): void {
    this.#isWritten = isWritten;
    for (const [index, ruleState] of this.#ruleStates.entries())
      ruleState.account = accounts[index] ?? UNTOUCHED;
  }

  /** Replaces the account of one rule. */
  replaceAccount(ruleState: RuleState, account: Account): void {
    (ruleState as Changing).account = account;
    this.#isWritten = false;
  }

  /** Weighs the key again, and returns by how many bytes it has grown since the last time. */
  weigh(): number {
    const before = this.bytes;
    this.bytes = this.key.length + this.#claims.bytes + this.holders.bytes + bytesOf(this.#ruleStates);
    return this.bytes - before;
  }

  /** These records of these accounts have been written, due at `dueMs`, and the rows of expired claims deleted. */
  noteWritten(records: readonly StoredAccount[], accounts: readonly Account[], dueMs: number): void {
    this.dueMs = dueMs;
    for (const [index, ruleState] of this.#ruleStates.entries()) {
      ruleState.stored = records[index];
      ruleState.presumed = restoredOf(accounts[index] ?? UNTOUCHED);
      ruleState.storedWholeMs = recordWholeAtMs(ruleState.rule, accounts[index]?.state);
    }
    this.#claims.forgetExpired();
  }

  /** Holds and leases end; others begin, or are renewed. */
  noteClaims(end: readonly Claim[], put: readonly Claim[]): void {
    this.#claims.note(end, put);
  }
}

/** The holds and leases of callers of one key, by their ids. Storage has them too. */
class KeyClaims {
  readonly #all: Map<string, Claim>;
  #expired: readonly Claim[] = [];

  constructor(claims: Map<string, Claim> = new Map()) {
    this.#all = claims;
  }

  get all(): ReadonlyMap<string, Claim> {
    return this.#all;
  }

  /** Those that have expired and whose rows are still in storage. */
  get expired(): readonly Claim[] {
    return this.#expired;
  }

  /** About the bytes of memory that they take. */
  get bytes(): number {
    return CLAIM_BYTES * this.#all.size;
  }

  /** Holds and leases end; others begin, or are renewed. */
  note(end: readonly Claim[], put: readonly Claim[]): void {
    for (const { id } of end) this.#all.delete(id);
    for (const claim of put) this.#all.set(claim.id, claim);
  }

  /** Those whose time is over are claims no more. */
  expire(nowMs: number): void {
    const expired = [...this.#all.values()].filter(({ expiresAtMs }) => expiresAtMs <= nowMs);
    for (const { id } of expired) this.#all.delete(id);
    this.#expired = [...this.#expired, ...expired];
  }

  /** The rows of those that have expired were deleted. */
  forgetExpired(): void {
    this.#expired = [];
  }
}

/** How many refer to a key, so that it has to stay in memory. */
class Pins {
  #count = 0;

  get isAny(): boolean {
    return this.#count > 0;
  }

  /** Adds one. The returned function takes it away; calling it again does nothing. */
  add(): () => void {
    this.#count += 1;
    let left = 1;
    return () => {
      this.#count -= left;
      left = 0;
    };
  }
}
