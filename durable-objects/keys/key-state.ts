import {
  advance,
  presumableOf,
  restoredOf,
  settle,
  underRule,
  UNTOUCHED,
  untouchedAtMs,
} from "../../core/accounts/account.ts";
import { type Account, capacityOf, heldUnder, type RuleAccount } from "../../core/accounts/hold.ts";
import { noticedUntilMs, type Noticed } from "../../core/accounts/notices.ts";
import { tokenPassedMs } from "../../core/algorithms/concurrency.ts";
import { dualState, singleState } from "../../core/algorithms/dual-config.ts";
import { later, type Policy, type PolicyRevision } from "../../core/policies/policy.ts";
import type { SeenBy } from "../../core/protocol/calls.ts";
import { longestMs } from "../../core/reservations/sizing.ts";
import type { AnswerCount } from "../storage/answers.ts";
import { converted, convertedClaim } from "../storage/conversions.ts";
import {
  CLAIM_BYTES,
  type Claim,
  type DueKey,
  type StoredAccount,
  type StoredKey,
  isReadable,
  noticesIn,
  storedName,
  withClaims,
} from "../storage/records.ts";
import type { KeyStorage } from "../storage/storage.ts";
import {
  aheadOfRecord,
  aheadOf,
  covers,
  lastsLongEnough,
  recordWholeAtMs,
  restore,
} from "../storage/write-behind.ts";
import { HOLDER_BYTES, Holders } from "./holders.ts";
import { type Choose, type ChosenVersion, type Comparison, versionIn, seenRules } from "./versions.ts";

/** One rule of a key: its account, and its part of the key's record (`undefined`: storage has none). */
export interface RuleState extends RuleAccount {
  readonly stored: StoredAccount | undefined;
  /** Units that were presumed at the record's write or read, out of those it is ahead by. */
  readonly presumed: number;
  /** When the record's units have refilled: from then on the crash allowance applies, as without a record. */
  readonly storedWholeMs: number;
  /** A lower bound of the units granted since the key was loaded. */
  readonly given: number;
  /** Thresholds that use has reached, and notices that are to be sent (core/accounts/notices.ts). */
  readonly noticed: Noticed;
  /** The record was of other rules, and must be written again before any decision. */
  readonly isConverted: boolean;
}

type Changing = { -readonly [Field in keyof RuleState]: RuleState[Field] };

/** One key in memory. Only its own methods change it. */
export class KeyState {
  readonly key: string;
  /** The policy version in the record when it was read. */
  readonly found: PolicyRevision | undefined;
  /** Isolates that hold units of it, or lately requested some. */
  readonly holders = new Holders();
  /** When reservations and leases must end, as a region's pool units do. `Infinity`: there is no pool. */
  endsByMs: number;
  /** Whether the key was used since the last search for a key to drop. */
  isTouched = true;
  /** A holder is to come again, and finds what is known of it here. */
  isAwaited = false;
  /** When a sweep reads the key's rows; -Infinity: it has no record. */
  dueMs = -Infinity;
  /** The bytes of its name, states, claims and holders at the last `weigh`, beside about 1 KiB per key. */
  bytes = 0;
  /** By caller (`rangeOf`); absent: not counted since the key was loaded. */
  readonly answers = new Map<string, AnswerCount>();
  readonly #choose: Choose;
  #chosen: ChosenVersion;
  #ruleStates: readonly Changing[] = [];
  #claims = new Map<string, Claim>();
  #expired: readonly Claim[] = [];
  #isWritten = true;
  #comparison: Comparison | undefined;
  #pins = 0;
  #advancedToMs: number;

  constructor(storage: KeyStorage, choose: Choose, key: string, nowMs: number) {
    this.key = key;
    this.#advancedToMs = nowMs;
    this.#choose = choose;
    const record = storage.read(key);
    this.found = record && versionIn(record.rules);
    this.#chosen = choose(this.found, record !== undefined);
    this.endsByMs = this.policy.pool === undefined ? Infinity : -Infinity;
    this.#take(storage, record, nowMs, false);
  }

  get policy(): Policy {
    return this.#chosen.policy;
  }

  get chosen(): ChosenVersion {
    return this.#chosen;
  }

  /** The policy version; `undefined`: the one in the deployment's file. */
  get inForce(): PolicyRevision | undefined {
    return this.#chosen.inForce;
  }

  /** In the policy's order. `reload` replaces the list. */
  get ruleStates(): readonly RuleState[] {
    return this.#ruleStates;
  }

  get accounts(): readonly Account[] {
    return this.#ruleStates.map(({ account }) => account);
  }

  /** The accounts after these claims have ended unused. */
  accountsWithout(claims: readonly Claim[], nowMs: number): readonly Account[] {
    return this.#ruleStates.map(({ rule, account }) =>
      claims.reduce((current, { id }) => settle(rule, current, nowMs, id, 0), account),
    );
  }

  /** Whether the plan in force decides a call. */
  isInForce({ inForce }: SeenBy): boolean {
    return inForce?.plan === undefined || inForce.plan === this.inForce?.plan;
  }

  /** The rules with their accounts as calls of this plan, priority and group see them. */
  seenBy(call: SeenBy = {}): readonly RuleState[] {
    const isPlain = call.priority === undefined && call.group === undefined && this.isInForce(call);
    if (isPlain && this.policy.priorities.seen.size === 0) return this.#ruleStates;
    return seenRules(this.#ruleStates, this.#chosen, call, this.#advancedToMs);
  }

  /** Decides rules together with those of another version; `undefined`: alone. */
  compare(comparison: Comparison | undefined, nowMs: number): void {
    if (comparison === this.#comparison) return;
    this.advance(nowMs);
    this.#comparison = comparison;
    this.#ruleStates = this.#ruleStates.map((ruleState, index) => {
      const own = this.policy.rules[index] ?? ruleState.rule;
      const rule = comparison?.get(own);
      const { state, holds } = ruleState.account;
      const single = ruleState.rule === own ? state : singleState(state);
      const account = { state: rule === undefined ? single : dualState(single), holds };
      return { ...ruleState, rule: rule ?? own, account: underRule(rule ?? own, account, nowMs) };
    });
  }

  /** Other rules decide from now on, of the same names and in the same order: a region's parts of them. */
  decideBy(ruleAccounts: readonly RuleAccount[]): void {
    this.#ruleStates = this.#ruleStates.map((ruleState, index) => ({ ...ruleState, ...ruleAccounts[index] }));
  }

  /** Callers' holds and leases by id. Storage has them too. */
  get claims(): ReadonlyMap<string, Claim> {
    return this.#claims;
  }

  get expired(): readonly Claim[] {
    return this.#expired;
  }

  get isWritten(): boolean {
    return this.#isWritten;
  }

  get isUnrecorded(): boolean {
    return this.#ruleStates.every(({ stored }) => stored === undefined);
  }

  /** Whether no row, claim or pin of the key exists, and memory knows no more than storage. */
  get isEmpty(): boolean {
    if (!this.isUnrecorded || this.isAwaited) return false;
    for (const { account } of this.#isWritten ? [] : this.#ruleStates)
      if (account.state !== undefined || account.holds.length > 0) return false;
    const size = this.#claims.size + this.#expired.length + this.holders.size;
    return !this.isPinned && size === 0;
  }

  isWhole(nowMs: number): boolean {
    if (this.isPinned || this.#ruleStates.some(({ account }) => account.holds.length > 0)) return false;
    return this.wholeAtMs(this.accounts, nowMs) <= nowMs;
  }

  /** When all of these accounts are untouched without further calls. */
  wholeAtMs(accounts: readonly Account[], nowMs: number): number {
    const of = ({ rule, noticed }: RuleState, index: number) => {
      const account = accounts[index] ?? UNTOUCHED;
      const untouchedMs = untouchedAtMs(rule, account, nowMs);
      return Math.max(untouchedMs, tokenPassedMs(rule.algorithm, account.state), noticedUntilMs(noticed));
    };
    return Math.max(...this.#ruleStates.map(of));
  }

  /** Whether the record covers these accounts, so that no write is needed. */
  isCovered(accounts: readonly Account[], nowMs: number): boolean {
    return this.#ruleStates.every((state, index) => {
      const { rule, stored, presumed } = state;
      const account = accounts[index] ?? UNTOUCHED;
      // An object that starts with this record would presume again the units that have ended here.
      if (stored !== undefined && restoredOf(account) < presumed) return false;
      if (!lastsLongEnough(stored, account, nowMs)) return false;
      return covers(rule, stored, account, nowMs, aheadOf(state, nowMs));
    });
  }

  isAhead(nowMs: number): boolean {
    return this.#ruleStates.some((state) => aheadOf(state, nowMs) > 0);
  }

  /** By rule: how far memory may go ahead of a new record of these accounts. */
  noteGiven(accounts: readonly Account[], nowMs: number): number[] {
    return this.#ruleStates.map((ruleState, index) => {
      const { rule, stored, presumed } = ruleState;
      // Units since the last write of the record. Without a record their number is unknown.
      const account = accounts[index] ?? UNTOUCHED;
      const own = presumableOf(account, nowMs) - restoredOf(account);
      ruleState.given += 1 + Math.max(0, (stored?.ahead ?? 0) - presumed - own);
      return aheadOfRecord(rule, ruleState.given);
    });
  }

  /** By rule. The record is written next. */
  noteNotices(noticed: readonly Noticed[]): void {
    for (const [index, ruleState] of this.#ruleStates.entries())
      ruleState.noticed = noticed[index] ?? ruleState.noticed;
  }

  /** Reads the key again. Its holders stay. `isLost`: memory knew more than is stored. */
  reload(storage: KeyStorage, nowMs: number, isLost: boolean): void {
    const record = storage.read(this.key);
    const read = this.#choose(record && versionIn(record.rules), record !== undefined);
    if (later(this.inForce, read.inForce) !== this.inForce) this.#chosen = read;
    this.#take(storage, record, nowMs, isLost);
  }

  /**
   * With a pool: another version decides from now on, with the same units and slots of the pool. Returns false, and
   * changes nothing, if it has other rules: the region then begins anew, as after a crash.
   */
  keepsShare(to: ChosenVersion): boolean {
    const kinds = ({ rules }: Policy) =>
      rules.map(({ name, lease }) => `${lease === undefined}/${name}`).join();
    const isShare = this.policy.pool !== undefined && to.policy.pool !== undefined;
    if (!isShare || kinds(this.policy) !== kinds(to.policy)) return false;
    this.#chosen = to;
    for (const [index, ruleState] of this.#ruleStates.entries())
      ruleState.rule = to.policy.rules[index] ?? ruleState.rule;
    return true;
  }

  /** Another version decides from now on. Memory was just written under the previous one, so units stay. */
  adopt(storage: KeyStorage, to: ChosenVersion, nowMs: number): void {
    const before = this.#ruleStates;
    this.#chosen = to;
    this.#take(storage, storage.read(this.key), nowMs, false);
    for (const ruleState of this.#ruleStates) {
      const { rule, account } = ruleState;
      const earlier = before.find((each) => each.rule.name === rule.name);
      if (earlier === undefined || storedName(earlier.rule) !== storedName(rule)) continue;
      const holds = heldUnder(earlier.account.holds, capacityOf(rule));
      ruleState.account = underRule(rule, { state: account.state, holds }, nowMs);
    }
    for (const { id, expiresAtMs } of this.#ruleStates.flatMap(({ account }) => account.holds)) {
      const claim = this.#claims.get(id);
      if (claim !== undefined) this.#claims.set(id, { ...claim, expiresAtMs });
    }
  }

  #take(storage: KeyStorage, record: DueKey | undefined, nowMs: number, isLost: boolean): void {
    const stored = storage.claims.read(this.key);
    this.#claims = new Map(stored.map((claim) => [claim.id, convertedClaim(this.policy, claim)]));
    this.#ruleStates = this.#read(storage, record, nowMs, isLost);
    this.dueMs = record?.wholeAtMs ?? -Infinity;
    this.#comparison = undefined;
    this.#expired = [];
    this.#isWritten = !isLost;
    this.answers.clear();
  }

  /** @param isLost this memory knew more of the key, and has lost it */
  #read(storage: KeyStorage, record: DueKey | undefined, nowMs: number, isLost: boolean): Changing[] {
    const { policy, key } = this;
    const { rules = {} } = record ?? {};
    return policy.rules.map((rule) => {
      const found = Object.hasOwn(rules, rule.name) ? rules[rule.name] : undefined;
      const other = record && converted(policy, rule, record, nowMs);
      const segments = found === undefined ? [] : storage.segments(key, rule.name);
      const allowance = storage.allowances.of(policy, rule, nowMs, isLost);
      const restored = restore(
        rule,
        other ?? found,
        segments,
        nowMs,
        longestMs(policy.reservation),
        allowance,
      );
      return {
        rule,
        account: withClaims(rule.name, restored, this.#claims),
        noticed: noticesIn(rule, found, restored, nowMs),
        stored: isReadable(rule, found) ? found : undefined,
        presumed: found?.ahead ?? 0,
        storedWholeMs: recordWholeAtMs(rule, restored.state),
        given: 0,
        isConverted: other !== undefined,
      };
    });
  }

  noteDeleted(): void {
    for (const ruleState of this.#ruleStates) {
      ruleState.stored = undefined;
      ruleState.noticed = { reached: [], unsent: ruleState.noticed.unsent };
    }
    this.dueMs = -Infinity;
    this.#claims = new Map();
    this.#expired = [];
    this.answers.clear();
  }

  advance(nowMs: number): void {
    let hasExpired = false;
    this.#advancedToMs = nowMs;
    for (const ruleState of this.#ruleStates) {
      const account = advance(ruleState.rule, ruleState.account, nowMs);
      hasExpired ||= account.holds !== ruleState.account.holds;
      ruleState.account = account;
    }
    if (!hasExpired) return;
    const expired = [...this.#claims.values()].filter(({ expiresAtMs }) => expiresAtMs <= nowMs);
    for (const { id } of expired) this.#claims.delete(id);
    this.#expired = [...this.#expired, ...expired];
  }

  /** `isWritten`: exactly these were written, so memory may not be ahead of them. */
  replaceAccounts(accounts: readonly Account[], isWritten: boolean): void {
    this.#isWritten = isWritten;
    for (const [index, ruleState] of this.#ruleStates.entries())
      ruleState.account = accounts[index] ?? UNTOUCHED;
  }

  replaceAccount(ruleState: RuleState, account: Account): void {
    (ruleState as Changing).account = account;
    this.#isWritten = false;
  }

  weigh(): number {
    const before = this.bytes;
    this.bytes = this.key.length + CLAIM_BYTES * this.#claims.size + HOLDER_BYTES * this.holders.size;
    for (const { rule, account } of this.#ruleStates)
      if (account.state !== undefined) this.bytes += rule.algorithm.bytes?.(account.state) ?? 0;
    return this.bytes - before;
  }

  /** These records were written, due at `dueMs`, and the rows of expired claims deleted. */
  noteWritten(records: StoredKey["rules"], accounts: readonly Account[], dueMs: number): void {
    this.dueMs = dueMs;
    for (const [index, ruleState] of this.#ruleStates.entries()) {
      ruleState.stored = records[ruleState.rule.name];
      ruleState.presumed = restoredOf(accounts[index] ?? UNTOUCHED);
      ruleState.storedWholeMs = recordWholeAtMs(ruleState.rule, accounts[index]?.state);
    }
    this.#expired = [];
  }

  /** Rows of claims that have ended are not to be deleted: they are already, or the claims begin again under their ids. */
  leaveRows(claims: readonly Claim[]): void {
    for (const { id } of claims) this.#expired = this.#expired.filter((each) => each.id !== id);
  }

  noteClaims(end: readonly Claim[], put: readonly Claim[]): void {
    for (const { id } of end) this.#claims.delete(id);
    for (const claim of put) this.#claims.set(claim.id, claim);
  }

  /** Whether waiting calls, or a message to the pool, refer to this `KeyState`. */
  get isPinned(): boolean {
    return this.#pins > 0;
  }

  /** Keeps the key in memory until the returned function is called; calling that again does nothing. */
  pin(): () => void {
    this.#pins += 1;
    let left = 1;
    return () => {
      this.#pins -= left;
      left = 0;
    };
  }
}
