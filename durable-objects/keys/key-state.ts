import {
  advance,
  place,
  unstoredOf,
  UNTOUCHED,
  wholeAtMs,
  type Account,
} from "../../core/accounts/account.ts";
import type { Policy, Rule } from "../../core/policies/policy.ts";
import type { Claim, StoredAccount } from "../storage/records.ts";
import type { Storage } from "../storage/storage.ts";
import { covers, isRestored, restore } from "../storage/write-behind.ts";

/** One rule of a key: its account, and its part of the key's record (`undefined`: storage has none). */
export interface RuleState {
  readonly rule: Rule;
  readonly account: Account;
  readonly stored: StoredAccount | undefined;
}

/** A rule's state as `KeyState` itself sees it; nobody else may change it. */
type Changing = { -readonly [Field in keyof RuleState]: RuleState[Field] };

/**
 * An isolate that reserves units of a key. It is in memory only: a crash forgets it, and the units that it has reserved
 * are covered by the key's record (storage/write-behind.ts).
 */
export interface Holder {
  /** The number of the last message that was accepted. One that is not higher is late or repeated, and is ignored. */
  readonly turn: number;
  /** The id of its hold in every rule's account. */
  readonly hold: string;
  /** Of each rule: the units that it has reported as used since it began, and those that it wanted last. */
  readonly used: readonly number[];
  readonly wanted: readonly number[];
  /** Until this instant its wishes count when units are shared out, unless it asks again. */
  readonly untilMs: number;
}

/** About the bytes of memory that a holder takes, beside its hold. */
const HOLDER_BYTES = 300;

/** One key in memory. Only its own methods change it. Others read it, or tell it by a method what has happened. */
export class KeyState {
  readonly key: string;
  readonly policy: Policy;
  #ruleStates: readonly Changing[] = [];
  #claims = new Map<string, Claim>();
  #expired: readonly Claim[] = [];
  readonly #holders = new Map<string, Holder>();
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

  /** The state of each rule, in the policy's order. `reload` replaces the whole list. */
  get ruleStates(): readonly RuleState[] {
    return this.#ruleStates;
  }

  get accounts(): readonly Account[] {
    return this.#ruleStates.map(({ account }) => account);
  }

  /** The holds and leases of callers, by their ids. Storage has them too. */
  get claims(): ReadonlyMap<string, Claim> {
    return this.#claims;
  }

  /** Claims that have expired and whose rows are still in storage. */
  get expired(): readonly Claim[] {
    return this.#expired;
  }

  /** Isolates that hold units of the key, or asked for some lately, by their ids. */
  get holders(): ReadonlyMap<string, Holder> {
    return this.#holders;
  }

  /** When a call last changed the key, to tell a hot key from a quiet one. `-Infinity`: none since it was loaded. */
  get takenAtMs(): number {
    return this.#takenAtMs;
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

  /** The bytes that its states and holders took at the last `weigh`, beside about 1 KiB for the key itself. */
  get bytes(): number {
    return this.#bytes;
  }

  /** The most answers that storage can have of the key; `undefined`: they have not been counted yet. */
  get answers(): number | undefined {
    return this.#answers;
  }

  /** Whether the key equals an untouched one and is not pinned. */
  isWhole(nowMs: number): boolean {
    return (
      !this.isPinned &&
      this.#ruleStates.every(
        ({ rule, account }) => account.holds.length === 0 && wholeAtMs(rule, account, nowMs) <= nowMs,
      )
    );
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
    const stored = storage.read(this.key)?.rules ?? {};
    const claims = new Map(storage.claims(this.key).map((claim) => [claim.id, claim]));
    this.#ruleStates = this.policy.rules.map((rule) => {
      const found = Object.hasOwn(stored, rule.name) ? stored[rule.name] : undefined;
      const segments = found === undefined ? [] : storage.segments(this.key, rule.name);
      const restored = restore(rule, found, segments, nowMs, this.policy.reservation.mostMs);
      const account = withClaims(rule, restored, claims);
      return { rule, account, stored: restored === UNTOUCHED ? undefined : found };
    });
    this.#claims = claims;
    this.#expired = [];
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
    const expired = [...this.#claims.values()].filter(({ expiresAtMs }) => expiresAtMs <= nowMs);
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
    let bytes = HOLDER_BYTES * this.#holders.size;
    for (const { rule, account } of this.#ruleStates)
      if (account.state !== undefined) bytes += rule.algorithm.bytes?.(account.state) ?? 0;
    const more = bytes - this.#bytes;
    this.#bytes = bytes;
    return more;
  }

  noteAnswers(answers: number): void {
    this.#answers = answers;
  }

  /** A call has changed the key: it is hot now. */
  noteTaken(nowMs: number): void {
    this.#takenAtMs = nowMs;
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

  putHolder(id: string, holder: Holder): void {
    this.#holders.set(id, holder);
  }

  /** Forgets the holders whose `untilMs` is at or before this instant. */
  forgetHolders(untilMs: number): void {
    for (const [id, holder] of this.#holders) if (holder.untilMs <= untilMs) this.#holders.delete(id);
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

/** The account with a hold for each claim that has units of its rule. */
function withClaims(rule: Rule, restored: Account, claims: ReadonlyMap<string, Claim>): Account {
  let account = restored;
  for (const { id, units: byRule, expiresAtMs } of claims.values()) {
    const units = Object.hasOwn(byRule, rule.name) ? (byRule[rule.name] ?? 0) : 0;
    if (units > 0) account = place(account, { id, units, expiresAtMs, isStored: true });
  }
  return account;
}
