import { advance, unstoredOf, UNTOUCHED, wholeAtMs, type Account } from "../../core/accounts/account.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Claim, StoredAccount } from "../storage/records.ts";
import type { Storage } from "../storage/storage.ts";
import { covers, isRestored } from "../storage/write-behind.ts";
import { Holders } from "./holders.ts";
import { readRuleStates, type RuleState } from "./rule-state.ts";

/** Only a key state changes them. */
type Changing = { -readonly [Field in keyof RuleState]: RuleState[Field] };

/**
 * One key in memory. All that changes of it changes here: others read it, and say by a method what has happened.
 */
export class KeyState {
  readonly key: string;
  readonly policy: Policy;
  /** Isolates that hold units of it, or asked for some lately. */
  readonly holders = new Holders();
  #ruleStates: readonly Changing[] = [];
  #claims = new Map<string, Claim>();
  #expired: readonly Claim[] = [];
  #pins = 0;
  #takenAtMs = -Infinity;
  #endsByMs: number;
  #isTouched = true;
  #bytes = 0;
  #answers: number | undefined;

  constructor(storage: Storage, policy: Policy, key: string, nowMs: number) {
    this.key = key;
    this.policy = policy;
    this.#endsByMs = policy.pool === undefined ? Infinity : -Infinity;
    this.reload(storage, nowMs);
  }

  /** One for each rule, in the policy's order. The list is another one when the key has been read anew from storage. */
  get ruleStates(): readonly RuleState[] {
    return this.#ruleStates;
  }

  get accounts(): readonly Account[] {
    return this.#ruleStates.map(({ account }) => account);
  }

  /** Holds and leases that callers have, by their ids, as storage has them too. */
  get claims(): ReadonlyMap<string, Claim> {
    return this.#claims;
  }

  /** Claims that expired and whose rows are still there. */
  get expired(): readonly Claim[] {
    return this.#expired;
  }

  /** When units were last taken, to tell a hot key from a quiet one. */
  get takenAtMs(): number {
    return this.#takenAtMs;
  }

  /**
   * Whatever is passed on of it has to end by this instant: of a region's share, as long as the pool keeps units apart.
   */
  get endsByMs(): number {
    return this.#endsByMs;
  }

  /** Whether somebody needs this very object: then it is not dropped from memory. */
  get isPinned(): boolean {
    return this.#pins > 0;
  }

  /** Whether it was used since `passOver` was called last. */
  get isTouched(): boolean {
    return this.#isTouched;
  }

  /** Bytes that its states and holders took when it was weighed last, beside about 1 KiB for the key itself. */
  get bytes(): number {
    return this.#bytes;
  }

  /** How many answers storage remembers of it, at most; `undefined`: they have not been counted yet. */
  get answers(): number | undefined {
    return this.#answers;
  }

  /** Whether the key is as good as new, and nobody waits for it. */
  isWhole(nowMs: number): boolean {
    const isWholeRule = ({ rule, account }: RuleState) =>
      account.holds.length === 0 && wholeAtMs(rule, account, nowMs) <= nowMs;
    return !this.isPinned && this.#ruleStates.every(isWholeRule);
  }

  /** When all of these accounts of it are whole. */
  wholeAtMs(accounts: readonly Account[], nowMs: number): number {
    return Math.max(
      ...this.#ruleStates.map(({ rule }, index) => wholeAtMs(rule, accounts[index] ?? UNTOUCHED, nowMs)),
    );
  }

  /** Whether what is stored covers these accounts, so that they need no write. */
  isCovered(accounts: readonly Account[], nowMs: number): boolean {
    return this.#ruleStates.every(({ rule, stored }, index) =>
      covers(rule, stored, accounts[index] ?? UNTOUCHED, nowMs),
    );
  }

  /** Whether its record covers more than the units that these accounts have reserved: an exact one is still to be written. */
  isAhead(accounts: readonly Account[]): boolean {
    return this.#ruleStates.some(({ stored }, index) => {
      const account = accounts[index] ?? UNTOUCHED;
      return (stored?.ahead ?? 0) > unstoredOf(account) || isRestored(account);
    });
  }

  /** Reads all of it anew from storage. Holders go on: what they hold is covered by the record. */
  reload(storage: Storage, nowMs: number): void {
    const claims = new Map(storage.claims(this.key).map((claim) => [claim.id, claim]));
    this.#ruleStates = readRuleStates(storage, this.policy, this.key, claims, nowMs);
    this.#claims = claims;
    this.#expired = [];
  }

  /** Debits every hold that has expired. Returns whether there was any. */
  advance(nowMs: number): boolean {
    let hasExpired = false;
    for (const ruleState of this.#ruleStates) {
      const account = advance(ruleState.rule, ruleState.account, nowMs);
      hasExpired ||= account !== ruleState.account;
      ruleState.account = account;
    }
    if (!hasExpired) return false;
    const expired = [...this.#claims.values()].filter(({ expiresAtMs }) => expiresAtMs <= nowMs);
    for (const { id } of expired) this.#claims.delete(id);
    this.#expired = [...this.#expired, ...expired];
    return true;
  }

  /** Goes on with these accounts. */
  replaceAccounts(accounts: readonly Account[]): void {
    for (const [index, ruleState] of this.#ruleStates.entries())
      ruleState.account = accounts[index] ?? UNTOUCHED;
  }

  /** Goes on with another account of one rule. */
  replaceAccount(ruleState: RuleState, account: Account): void {
    (ruleState as Changing).account = account;
  }

  touch(): void {
    this.#isTouched = true;
  }

  /** A search for something to drop leaves it for this time. */
  passOver(): void {
    this.#isTouched = false;
  }

  /** Weighs it, and returns how many bytes it takes more than when it was weighed last. */
  weigh(): number {
    let { bytes } = this.holders;
    for (const { rule, account } of this.#ruleStates)
      if (account.state !== undefined) bytes += rule.algorithm.bytes?.(account.state) ?? 0;
    const more = bytes - this.#bytes;
    this.#bytes = bytes;
    return more;
  }

  noteAnswers(answers: number): void {
    this.#answers = answers;
  }

  /** Somebody took units: for a while the key is hot. */
  noteTaken(nowMs: number): void {
    this.#takenAtMs = nowMs;
  }

  /** Storage has these records now, and what had expired is gone from it. */
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

  /** Keeps the key in memory until what is returned is called, once or more often. */
  pin(): () => void {
    this.#pins += 1;
    let isPinned = true;
    return () => {
      if (isPinned) this.#pins -= 1;
      isPinned = false;
    };
  }

  /** The level beneath keeps units apart for this key until then. */
  boundBy(endsByMs: number): void {
    this.#endsByMs = endsByMs;
  }
}
