import { advance, restoredOf, unstoredOf, UNTOUCHED, wholeAtMs } from "../../core/accounts/account.ts";
import { type Account, type Hold, type RuleAccount } from "../../core/accounts/hold.ts";
import { dualState, singleState } from "../../core/algorithms/dual-config.ts";
import { forPriority, later, type Policy, type PolicyRevision } from "../../core/policies/policy.ts";
import type { AnswerCount } from "../storage/answers.ts";
import { converted, convertedClaims } from "../storage/conversions.ts";
import { CLAIM_BYTES, type Claim, type StoredAccount, isReadable, storedName } from "../storage/records.ts";
import type { DueKey, KeyStorage } from "../storage/storage.ts";
import {
  aheadOfRecord,
  aheadUnits,
  covers,
  lastsLongEnough,
  recordWholeAtMs,
  restore,
} from "../storage/write-behind.ts";
import { HOLDER_BYTES, Holders } from "./holders.ts";
import { type Choose, type ChosenVersion, type Comparison, versionIn } from "./versions.ts";

/** One rule of a key: its account, and its part of the key's record (`undefined`: storage has none). */
export interface RuleState extends RuleAccount {
  readonly stored: StoredAccount | undefined;
  /** Of the units that the record is ahead by, those that were presumed when it was written, or found. */
  readonly presumed: number;
  /** From when on what the record counts has come back: memory may be as far ahead of it then as of no record. */
  readonly storedWholeMs: number;
  /** At least this many units were given out since the key was loaded. */
  readonly given: number;
  /** The record was of other rules, and has to be written again before anything is decided. */
  readonly isConverted: boolean;
}

type Changing = { -readonly [Field in keyof RuleState]: RuleState[Field] };

/** One key in memory. Only its own methods change it. */
export class KeyState {
  readonly key: string;
  /** The version under which its record, as it was found, was written. */
  readonly found: PolicyRevision | undefined;
  /** Isolates that hold units of it, or asked for some lately. */
  readonly holders = new Holders();
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
  #claims = new Map<string, Claim>();
  #expired: readonly Claim[] = [];
  #isWritten = true;
  #comparison: Comparison | undefined;
  #pins = 0;

  constructor(storage: KeyStorage, choose: Choose, key: string, nowMs: number) {
    this.key = key;
    this.#choose = choose;
    const record = storage.read(key);
    this.found = record && versionIn(record.rules);
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

  /** The state of each rule, in the policy's order. `reload` replaces the list. */
  get ruleStates(): readonly RuleState[] {
    return this.#ruleStates;
  }

  get accounts(): readonly Account[] {
    return this.#ruleStates.map(({ account }) => account);
  }

  /** The rules with their accounts as calls of this priority see them: see core/policies/parse-policy.ts. */
  seenBy(priority?: string): readonly RuleState[] {
    const { rules } = forPriority(this.policy, priority);
    if (rules === this.policy.rules) return this.#ruleStates;
    return this.#ruleStates.map((state, index) => {
      const { apart = 0 } = rules[index] ?? {};
      // The rule may be compared with another version's (versions.ts).
      const capacity = Math.max(0, state.rule.capacity - apart);
      return apart === 0 ? state : { ...state, rule: { ...state.rule, apart, capacity } };
    });
  }

  /** From now on rules are decided together with those of another version; `undefined`: alone. */
  compare(comparison: Comparison | undefined): void {
    if (comparison === this.#comparison) return;
    this.#comparison = comparison;
    this.#ruleStates = this.#ruleStates.map((ruleState, index) => {
      const own = this.policy.rules[index] ?? ruleState.rule;
      const rule = comparison?.get(own);
      const { state, holds } = ruleState.account;
      const single = ruleState.rule === own ? state : singleState(state);
      const account = { state: rule === undefined ? single : dualState(single), holds };
      return { ...ruleState, rule: rule ?? own, account };
    });
  }

  /** The holds and leases of callers, by their ids. Storage has them too. */
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

  /** Whether the key has no record: what there is of it is in memory alone. */
  get isUnrecorded(): boolean {
    for (const { stored } of this.#ruleStates) if (stored !== undefined) return false;
    return true;
  }

  /** Whether nothing of the key is stored, nothing refers to it, and memory knows no more than storage would say. */
  get isEmpty(): boolean {
    if (!this.isUnrecorded) return false;
    for (const { account } of this.#isWritten ? [] : this.#ruleStates)
      if (account.state !== undefined || account.holds.length > 0) return false;
    const size = this.#claims.size + this.#expired.length + this.holders.size;
    return !this.isPinned && size === 0;
  }

  /** Whether the key equals an untouched one and is not pinned. */
  isWhole(nowMs: number): boolean {
    if (this.isPinned || this.#ruleStates.some(({ account }) => account.holds.length > 0)) return false;
    return this.wholeAtMs(this.accounts, nowMs) <= nowMs;
  }

  /** The instant from which all of these accounts equal untouched ones if no call comes. */
  wholeAtMs(accounts: readonly Account[], nowMs: number): number {
    const of = ({ rule }: RuleState, index: number) => wholeAtMs(rule, accounts[index] ?? UNTOUCHED, nowMs);
    return Math.max(...this.#ruleStates.map(of));
  }

  /** Whether what is stored covers these accounts, so that no write is needed. */
  isCovered(accounts: readonly Account[], nowMs: number): boolean {
    return this.#ruleStates.every((state, index) => {
      const { rule, stored, presumed } = state;
      const account = accounts[index] ?? UNTOUCHED;
      // An object that starts with this record would presume again what has ended here.
      if (stored !== undefined && restoredOf(account) < presumed) return false;
      if (!lastsLongEnough(stored, account, nowMs)) return false;
      return covers(rule, stored, account, nowMs, aheadOf(state, nowMs));
    });
  }

  /** Whether memory may be ahead of what is stored now. */
  isAhead(nowMs: number): boolean {
    return this.#ruleStates.some((state) => aheadOf(state, nowMs) > 0);
  }

  /** By rule: how far memory may go ahead of a record of these accounts, which what is stored does not cover. */
  noteGiven(accounts: readonly Account[]): number[] {
    return this.#ruleStates.map((ruleState, index) => {
      const { rule, stored, presumed } = ruleState;
      // Units since the record was written. Of units ahead of no record the number is not known.
      const account = accounts[index] ?? UNTOUCHED;
      const own = unstoredOf(account) - restoredOf(account);
      ruleState.given += 1 + Math.max(0, (stored?.ahead ?? 0) - presumed - own);
      return aheadOfRecord(rule, ruleState.given);
    });
  }

  /** Reads the key again. Its holders stay: what they hold is presumed. `isLost`: more was known than is stored. */
  reload(storage: KeyStorage, nowMs: number, isLost: boolean): void {
    const record = storage.read(this.key);
    const read = this.#choose(record && versionIn(record.rules));
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
    for (const ruleState of this.#ruleStates) {
      const earlier = before.find(({ rule }) => rule.name === ruleState.rule.name);
      if (earlier !== undefined && storedName(earlier.rule) === storedName(ruleState.rule))
        ruleState.account = { state: ruleState.account.state, holds: earlier.account.holds };
    }
  }

  #take(storage: KeyStorage, record: DueKey | undefined, nowMs: number, isLost: boolean): void {
    const stored = storage.claims.read(this.key);
    this.#claims = stored.length === 0 ? new Map() : convertedClaims(this.policy, stored);
    this.#ruleStates = this.#read(storage, record, nowMs, isLost);
    this.dueMs = record?.wholeAtMs ?? -Infinity;
    this.#comparison = undefined;
    this.#expired = [];
    this.#isWritten = !isLost;
    this.answers.clear();
  }

  /** Reads the rules from storage. @param isLost this memory knew more of the key, and has lost it */
  #read(storage: KeyStorage, record: DueKey | undefined, nowMs: number, isLost: boolean): Changing[] {
    const { policy, key } = this;
    const { rules = {} } = record ?? {};
    return policy.rules.map((rule) => {
      const found = Object.hasOwn(rules, rule.name) ? rules[rule.name] : undefined;
      const other = record && converted(policy, rule, record, nowMs);
      const segments = found === undefined ? [] : storage.segments(key, rule.name);
      const lead = storage.leads.of(policy, rule, nowMs, isLost);
      const restored = restore(rule, other ?? found, segments, nowMs, policy.reservation.mostMs, lead);
      return {
        rule,
        account: withClaims(rule.name, restored, this.#claims),
        stored: isReadable(rule, found) ? found : undefined,
        presumed: found?.ahead ?? 0,
        storedWholeMs: recordWholeAtMs(rule, restored.state),
        given: 0,
        isConverted: other !== undefined,
      };
    });
  }

  /** All that was stored of the key has been deleted. */
  noteDeleted(): void {
    for (const ruleState of this.#ruleStates) ruleState.stored = undefined;
    this.dueMs = -Infinity;
    this.#claims = new Map();
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
    const before = this.bytes;
    this.bytes = this.key.length + CLAIM_BYTES * this.#claims.size + HOLDER_BYTES * this.holders.size;
    for (const { rule, account } of this.#ruleStates)
      if (account.state !== undefined) this.bytes += rule.algorithm.bytes?.(account.state) ?? 0;
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
    this.#expired = [];
  }

  /** Holds and leases end; others begin, or are renewed. */
  noteClaims(end: readonly Claim[], put: readonly Claim[]): void {
    for (const { id } of end) this.#claims.delete(id);
    for (const claim of put) this.#claims.set(claim.id, claim);
  }

  /** Whether waiting calls, or a message to the pool, refer to this `KeyState`. */
  get isPinned(): boolean {
    return this.#pins > 0;
  }

  /** Keeps the key in memory. The returned function ends that; calling it again does nothing. */
  pin(): () => void {
    this.#pins += 1;
    let left = 1;
    return () => {
      this.#pins -= left;
      left = 0;
    };
  }
}

/** By how many units memory may be ahead of what is stored of a rule. */
function aheadOf({ rule, stored, storedWholeMs }: RuleState, nowMs: number): number {
  if (stored === undefined) return aheadUnits(rule);
  return storedWholeMs <= nowMs ? Math.max(stored.ahead, aheadUnits(rule)) : stored.ahead;
}

/** The account with a hold for each claim that has units of its rule. They are sorted once: there may be thousands. */
function withClaims(rule: string, restored: Account, claims: ReadonlyMap<string, Claim>): Account {
  if (claims.size === 0) return restored;
  const holds: Hold[] = [...restored.holds];
  const leasesOfProvisional = new Set<string>();
  for (const { lease, isProvisional } of claims.values())
    if (lease !== undefined && isProvisional === true) leasesOfProvisional.add(lease);
  for (const { id, units: byRule, expiresAtMs, isProvisional } of claims.values()) {
    const units = Object.hasOwn(byRule, rule) ? (byRule[rule] ?? 0) : 0;
    if (units === 0) continue;
    const mark = (isProvisional === true || leasesOfProvisional.has(id)) && { isProvisional: true };
    holds.push({ id, units, expiresAtMs, isStored: true, ...mark });
  }
  if (holds.length === restored.holds.length) return restored;
  return { state: restored.state, holds: holds.toSorted((a, b) => a.expiresAtMs - b.expiresAtMs) };
}
