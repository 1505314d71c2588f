import { advance, UNTOUCHED, wholeAtMs, type Account } from "../../core/accounts/account.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { AnswerCount } from "../storage/answers.ts";
import { claimsOf } from "../storage/conversions.ts";
import { CLAIM_BYTES, type Claim, type StoredAccount } from "../storage/records.ts";
import type { KeyStorage } from "../storage/storage.ts";
import { aheadOfRecord, recordWholeAtMs } from "../storage/write-behind.ts";
import type { Comparison } from "./heard-terms.ts";
import { Holders } from "./holders.ts";
import { Pins } from "./pins.ts";
import {
  bytesOf,
  comparedBy,
  givenSince,
  readRuleStates,
  statesSeenBy,
  type RuleState,
} from "./rule-state.ts";

/** A rule's state as `KeyState` itself sees it; nobody else may change it. */
type Changing = { -readonly [Field in keyof RuleState]: RuleState[Field] };

/** One key in memory. Only its own methods change it. Others read it, or tell it by a method what has happened. */
export class KeyState {
  readonly key: string;
  readonly policy: Policy;
  /** Isolates that hold units of it, or asked for some lately. */
  readonly holders = new Holders();
  /** Whether the key was used since a search for a key to drop passed it over. */
  isTouched = true;
  /** How many answers are remembered, by caller (`rangeOf`); absent: they have not been counted since it was loaded. */
  readonly answers = new Map<string, AnswerCount>();
  #ruleStates: readonly Changing[] = [];
  #claims = new Map<string, Claim>();
  #expired: readonly Claim[] = [];
  readonly #pins = new Pins();
  #isWritten = true;
  #dueMs = -Infinity;
  #endsByMs: number;
  #comparison: Comparison | undefined;
  #bytes = 0;

  constructor(storage: KeyStorage, policy: Policy, key: string, nowMs: number) {
    this.key = key;
    this.policy = policy;
    this.#endsByMs = policy.pool === undefined ? Infinity : -Infinity;
    this.reload(storage, nowMs, false);
  }

  /** The state of each rule, in the policy's order. `reload` replaces the whole list. */
  get ruleStates(): readonly RuleState[] {
    return this.#ruleStates;
  }

  get accounts(): readonly Account[] {
    return this.#ruleStates.map(({ account }) => account);
  }

  /** The rules with their accounts as calls of this priority see them: see core/policies/priorities.ts. */
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
    return this.#claims;
  }

  /** Claims that have expired and whose rows are still in storage. */
  get expired(): readonly Claim[] {
    return this.#expired;
  }

  /** Whether an object that reads the key from storage knows as much: nothing has changed since it was read or written. */
  get isWritten(): boolean {
    return this.#isWritten;
  }

  /** From when on a sweep looks at what is stored of the key; -Infinity: it has no record. */
  get dueMs(): number {
    return this.#dueMs;
  }

  /** By then reservations and leases must end: a region's pool keeps units until then. `Infinity`: there is no pool. */
  get endsByMs(): number {
    return this.#endsByMs;
  }

  /** Whether waiting calls, or a message to the pool, refer to this `KeyState`: then it stays in memory. */
  get isPinned(): boolean {
    return this.#pins.isAny;
  }

  /** The bytes that its name, states, claims and holders took at the last `weigh`, beside about 1 KiB for each key. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Whether the key equals an untouched one and is not pinned. */
  isWhole(nowMs: number): boolean {
    if (this.isPinned || this.#ruleStates.some(({ account }) => account.holds.length > 0)) return false;
    return this.wholeAtMs(this.accounts, nowMs) <= nowMs;
  }

  /** The instant from which all of these accounts equal untouched ones, if nobody comes. */
  wholeAtMs(accounts: readonly Account[], nowMs: number): number {
    const of = ({ rule }: RuleState, index: number) => wholeAtMs(rule, accounts[index] ?? UNTOUCHED, nowMs);
    return Math.max(...this.#ruleStates.map(of));
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
    const claims = claimsOf(this.policy, storage.claims.read(this.key));
    const record = storage.read(this.key);
    this.#ruleStates = readRuleStates(storage, this.policy, this.key, record, claims, nowMs, isLost);
    this.#dueMs = record?.wholeAtMs ?? -Infinity;
    this.#comparison = undefined;
    this.#claims = claims;
    this.#expired = [];
    this.#isWritten = !isLost;
    this.answers.clear();
  }

  /** All that was stored of the key has been deleted. */
  noteDeleted(): void {
    for (const ruleState of this.#ruleStates) ruleState.stored = undefined;
    this.#dueMs = -Infinity;
    this.#claims.clear();
    this.#expired = [];
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
    if (!hasExpired) return;
    const expired = [...this.#claims.values()].filter(({ expiresAtMs }) => expiresAtMs <= nowMs);
    for (const { id } of expired) this.#claims.delete(id);
    this.#expired = [...this.#expired, ...expired];
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
    const before = this.#bytes;
    this.#bytes =
      this.key.length + CLAIM_BYTES * this.#claims.size + this.holders.bytes + bytesOf(this.#ruleStates);
    return this.#bytes - before;
  }

  /** These records of these accounts have been written, due at `dueMs`, and the rows of expired claims deleted. */
  noteWritten(records: readonly StoredAccount[], accounts: readonly Account[], dueMs: number): void {
    this.#dueMs = dueMs;
    for (const [index, ruleState] of this.#ruleStates.entries()) {
      ruleState.stored = records[index];
      ruleState.storedWholeMs = recordWholeAtMs(ruleState.rule, accounts[index]?.state);
    }
    this.#expired = [];
  }

  /** Holds and leases end; others begin, or are renewed. */
  noteClaims(end: readonly Claim[], put: readonly Claim[]): void {
    for (const { id } of end) this.#claims.delete(id);
    for (const claim of put) this.#claims.set(claim.id, claim);
  }

  /** Keeps the key in memory. The returned function ends that; calling it again does nothing. */
  pin(): () => void {
    return this.#pins.add();
  }

  /** The pool keeps units for this key until `endsByMs`. */
  boundBy(endsByMs: number): void {
    this.#endsByMs = endsByMs;
  }
}
