import { advance, unstoredOf, UNTOUCHED, wholeAtMs, type Account } from "../../core/accounts/account.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { AnswerCount } from "../storage/answers.ts";
import { CLAIM_BYTES, type Claim, type StoredAccount } from "../storage/records.ts";
import type { Storage } from "../storage/storage.ts";
import { covers, isRestored } from "../storage/write-behind.ts";
import { Holders } from "./holders.ts";
import { readRuleStates, statesSeenBy, type RuleState } from "./rule-state.ts";

/** A rule's state as `KeyState` itself sees it; nobody else may change it. */
type Changing = { -readonly [Field in keyof RuleState]: RuleState[Field] };

/** One key in memory. Only its own methods change it. Others read it, or tell it by a method what has happened. */
export class KeyState {
  readonly key: string;
  readonly policy: Policy;
  /** Isolates that hold units of it, or asked for some lately. */
  readonly holders = new Holders();
  /** How many answers are remembered, by caller (`rangeOf`); absent: they have not been counted since it was loaded. */
  readonly answers = new Map<string, AnswerCount>();
  #ruleStates: readonly Changing[] = [];
  #claims = new Map<string, Claim>();
  #expired: readonly Claim[] = [];
  #pins = 0;
  #changedAtMs = -Infinity;
  #endsByMs: number;
  #isTouched = true;
  #bytes = 0;

  constructor(storage: Storage, policy: Policy, key: string, nowMs: number) {
    this.key = key;
    this.policy = policy;
    this.#endsByMs = policy.pool === undefined ? Infinity : -Infinity;
    this.reload(storage, nowMs);
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

  /** The holds and leases of callers, by their ids. Storage has them too. */
  get claims(): ReadonlyMap<string, Claim> {
    return this.#claims;
  }

  /** Claims that have expired and whose rows are still in storage. */
  get expired(): readonly Claim[] {
    return this.#expired;
  }

  /** When a call last changed the key, to tell a hot key from a quiet one. `-Infinity`: none since it was loaded. */
  get changedAtMs(): number {
    return this.#changedAtMs;
  }

  /**
   * Reservations and leases of the key must end by this instant: in a region, the pool keeps units for it until then.
   * `Infinity`: the key has no pool.
   */
  get endsByMs(): number {
    return this.#endsByMs;
  }

  /** Whether waiting calls, or a message to the pool, refer to this `KeyState`: then it stays in memory. */
  get isPinned(): boolean {
    return this.#pins > 0;
  }

  /** Whether the key was used since `passOver` was called last. */
  get isTouched(): boolean {
    return this.#isTouched;
  }

  /** The bytes that its name, states, claims and holders took at the last `weigh`, beside about 1 KiB for each key. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Whether the key equals an untouched one and is not pinned. */
  isWhole(nowMs: number): boolean {
    const isWholeRule = ({ rule, account }: RuleState) =>
      account.holds.length === 0 && wholeAtMs(rule, account, nowMs) <= nowMs;
    return !this.isPinned && this.#ruleStates.every(isWholeRule);
  }

  /** The instant from which all of these accounts equal untouched ones, if nobody comes. */
  wholeAtMs(accounts: readonly Account[], nowMs: number): number {
    return Math.max(
      ...this.#ruleStates.map(({ rule }, index) => wholeAtMs(rule, accounts[index] ?? UNTOUCHED, nowMs)),
    );
  }

  /** Whether the key's record covers these accounts, so that no write is needed. */
  isCovered(accounts: readonly Account[], nowMs: number): boolean {
    return this.#ruleStates.every(({ rule, stored }, index) =>
      covers(rule, stored, accounts[index] ?? UNTOUCHED, nowMs),
    );
  }

  /** Whether the record covers more units than these accounts have reserved: an exact one is still to be written. */
  isAhead(accounts: readonly Account[]): boolean {
    return this.#ruleStates.some(({ stored }, index) => {
      const account = accounts[index] ?? UNTOUCHED;
      return (stored?.ahead ?? 0) > unstoredOf(account) || isRestored(account);
    });
  }

  /** Reads the key again from storage. Its holders stay, since the record covers what they hold. */
  reload(storage: Storage, nowMs: number): void {
    const claims = new Map(storage.claims.read(this.key).map((claim) => [claim.id, claim]));
    this.#ruleStates = readRuleStates(storage, this.policy, this.key, claims, nowMs);
    this.#claims = claims;
    this.#expired = [];
    this.answers.clear();
  }

  /** Debits every hold that has expired, and returns whether there was one. */
  advance(nowMs: number): boolean {
    let hasExpired = false;
    for (const ruleState of this.#ruleStates) {
      const account = advance(ruleState.rule, ruleState.account, nowMs);
      hasExpired ||= account !== ruleState.account;
      ruleState.account = account;
    }
    if (!hasExpired) return false;
    const expired: Claim[] = [];
    for (const claim of this.#claims.values()) if (claim.expiresAtMs <= nowMs) expired.push(claim);
    for (const { id } of expired) this.#claims.delete(id);
    this.#expired = [...this.#expired, ...expired];
    return true;
  }

  /** Replaces the accounts of all rules. */
  replaceAccounts(accounts: readonly Account[]): void {
    for (const [index, ruleState] of this.#ruleStates.entries())
      ruleState.account = accounts[index] ?? UNTOUCHED;
  }

  /** Replaces the account of one rule. */
  replaceAccount(ruleState: RuleState, account: Account): void {
    (ruleState as Changing).account = account;
  }

  touch(): void {
    this.#isTouched = true;
  }

  /** A search for a key to drop spares this one; the next search drops it unless it is used before. */
  passOver(): void {
    this.#isTouched = false;
  }

  /** Weighs the key again, and returns by how many bytes it has grown since the last time. */
  weigh(): number {
    let bytes = this.key.length + CLAIM_BYTES * this.#claims.size + this.holders.bytes;
    for (const { rule, account } of this.#ruleStates)
      if (account.state !== undefined) bytes += rule.algorithm.bytes?.(account.state) ?? 0;
    const more = bytes - this.#bytes;
    this.#bytes = bytes;
    return more;
  }

  /** A call has changed the key: it is hot now. */
  noteChanged(nowMs: number): void {
    this.#changedAtMs = nowMs;
  }

  /** These records have been written, and the rows of expired claims deleted. */
  noteWritten(records: readonly (StoredAccount | undefined)[]): void {
    for (const [index, ruleState] of this.#ruleStates.entries()) ruleState.stored = records[index];
    this.#expired = [];
  }

  /** A hold or lease begins, or is renewed. */
  putClaim(claim: Claim): void {
    this.#claims.set(claim.id, claim);
  }

  /** A hold or lease ends. */
  endClaim({ id }: Claim): void {
    this.#claims.delete(id);
  }

  /** Keeps the key in memory. The returned function ends that; calling it again does nothing. */
  pin(): () => void {
    this.#pins += 1;
    let isPinned = true;
    return () => {
      if (isPinned) this.#pins -= 1;
      isPinned = false;
    };
  }

  /** The pool keeps units for this key until `endsByMs`. */
  boundBy(endsByMs: number): void {
    this.#endsByMs = endsByMs;
  }
}
