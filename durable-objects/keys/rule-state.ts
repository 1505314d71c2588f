import { type Account, restoredOf, unstoredOf, UNTOUCHED, wholeAtMs } from "../../core/accounts/account.ts";
import type { Hold } from "../../core/accounts/hold.ts";
import { dualState, singleState } from "../../core/algorithms/dual-config.ts";
import { forPriority, type Policy, type Rule } from "../../core/policies/policy.ts";
import { callerIn } from "../../core/protocol/names.ts";
import { converted } from "../storage/conversions.ts";
import type { Claim, StoredAccount } from "../storage/records.ts";
import type { DueKey, KeyStorage } from "../storage/storage.ts";
import {
  aheadUnits,
  covers,
  isReadable,
  lastsLongEnough,
  recordWholeAtMs,
  restore,
  storedName,
} from "../storage/write-behind.ts";
import type { Comparison } from "./versions.ts";

/** One rule of a key: its account, and its part of the key's record (`undefined`: storage has none). */
export interface RuleState {
  readonly rule: Rule;
  readonly account: Account;
  readonly stored: StoredAccount | undefined;
  /** Of what that is ahead by, the units that were presumed when it was written, or found. */
  readonly presumed: number;
  /** From when on what that counts has come back: memory may be as far ahead of it then as of no record. */
  readonly storedWholeMs: number;
  /** At least so many units were given out since the key was loaded. */
  readonly given: number;
  /** What was found was written under other rules, and has to be written again before anything is decided. */
  readonly isConverted: boolean;
}

/**
 * Reads the rules of a key from storage, in the order of its policy.
 *
 * @param kept the key's record
 * @param isLost whether this memory knew more of the key, and has lost it
 */
export function readRuleStates(
  storage: KeyStorage,
  policy: Policy,
  key: string,
  kept: DueKey | undefined,
  claims: ReadonlyMap<string, Claim>,
  nowMs: number,
  isLost: boolean,
): RuleState[] {
  const { rules = {} } = kept ?? {};
  return policy.rules.map((rule) => {
    const found = Object.hasOwn(rules, rule.name) ? rules[rule.name] : undefined;
    const other = kept === undefined ? undefined : converted(policy, rule, kept, nowMs);
    const segments = found === undefined ? [] : storage.segments(key, rule.name);
    const lead = storage.leads.of(policy, rule, nowMs, isLost);
    const restored = restore(rule, other ?? found, segments, nowMs, policy.reservation.mostMs, lead);
    return {
      rule,
      account: withClaims(rule, restored, claims),
      stored: isReadable(rule, found) ? found : undefined,
      presumed: found?.ahead ?? 0,
      storedWholeMs: recordWholeAtMs(rule, restored.state),
      given: 0,
      isConverted: other !== undefined,
    };
  });
}

/** The account with a hold for each claim that has units of its rule. They are sorted once: there may be thousands. */
function withClaims(rule: Rule, restored: Account, claims: ReadonlyMap<string, Claim>): Account {
  const holds: Hold[] = [...restored.holds];
  const leasesOfProvisional = new Set<string>();
  for (const { lease, isProvisional } of claims.values())
    if (lease !== undefined && isProvisional === true) leasesOfProvisional.add(lease);
  for (const { id, units: byRule, expiresAtMs, isProvisional } of claims.values()) {
    const units = Object.hasOwn(byRule, rule.name) ? (byRule[rule.name] ?? 0) : 0;
    if (units === 0) continue;
    const mark = (isProvisional === true || leasesOfProvisional.has(id)) && { isProvisional: true };
    holds.push({ id, units, expiresAtMs, isStored: true, ...mark });
  }
  if (holds.length === restored.holds.length) return restored;
  return { state: restored.state, holds: holds.toSorted((a, b) => a.expiresAtMs - b.expiresAtMs) };
}

/** The states when rules are decided together with those of another version from now on; `undefined`: alone. */
export function comparedBy(
  policy: Policy,
  states: readonly RuleState[],
  comparison: Comparison | undefined,
): RuleState[] {
  return states.map((ruleState, index) => {
    const own = policy.rules[index] ?? ruleState.rule;
    const rule = comparison?.get(own);
    const { state, holds } = ruleState.account;
    const single = ruleState.rule === own ? state : singleState(state);
    const account = { state: rule === undefined ? single : dualState(single), holds };
    return { ...ruleState, rule: rule ?? own, account };
  });
}

/** The states with what was held before, of rules that count as before: what is stored only says how much it was. */
export function withHoldsOf(before: readonly RuleState[], states: readonly RuleState[]): RuleState[] {
  return states.map((state) => {
    const earlier = before.find(({ rule }) => rule.name === state.rule.name);
    if (earlier === undefined || storedName(earlier.rule) !== storedName(state.rule)) return state;
    return { ...state, account: { state: state.account.state, holds: earlier.account.holds } };
  });
}

/** The states with their rules as calls of this priority see them: see core/policies/parse-policy.ts. */
export function statesSeenBy(
  policy: Policy,
  states: readonly RuleState[],
  priority: string | undefined,
): readonly RuleState[] {
  const { rules } = forPriority(policy, priority);
  if (rules === policy.rules) return states;
  return states.map((state, index) => {
    const { apart = 0 } = rules[index] ?? {};
    // The rule may be compared with another version's (versions.ts).
    const capacity = Math.max(0, state.rule.capacity - apart);
    return apart === 0 ? state : { ...state, rule: { ...state.rule, apart, capacity } };
  });
}

/** The instant from which all of these accounts equal untouched ones, if nobody comes. */
export function wholeAtMsOf(
  states: readonly RuleState[],
  accounts: readonly Account[],
  nowMs: number,
): number {
  const of = ({ rule }: RuleState, index: number) => wholeAtMs(rule, accounts[index] ?? UNTOUCHED, nowMs);
  return Math.max(...states.map(of));
}

/** The bytes that these states take, as far as they may be large. */
export function bytesOf(states: readonly RuleState[]): number {
  let bytes = 0;
  for (const { rule, account } of states)
    if (account.state !== undefined) bytes += rule.algorithm.bytes?.(account.state) ?? 0;
  return bytes;
}

/** Whether what is stored covers these accounts, so that no write is needed. */
export function isCovered(
  states: readonly RuleState[],
  accounts: readonly Account[],
  nowMs: number,
): boolean {
  return states.every((state, index) => isCoveredBy(state, accounts[index] ?? UNTOUCHED, nowMs));
}

function isCoveredBy(state: RuleState, account: Account, nowMs: number): boolean {
  const { rule, stored, presumed } = state;
  // An object that starts with this record would presume again what has ended here.
  if (stored !== undefined && restoredOf(account) < presumed) return false;
  if (!lastsLongEnough(stored, account, nowMs)) return false;
  return covers(rule, stored, account, nowMs, aheadOf(state, nowMs));
}

/** Whether memory may be ahead of what is stored now. */
export function isLed(states: readonly RuleState[], nowMs: number): boolean {
  return states.some((state) => aheadOf(state, nowMs) > 0);
}

/**
 * Units that were given out since the record was written, if these accounts are the first that it does not cover. Of
 * units ahead of no record nobody knows how many were.
 */
export function givenSince({ stored, presumed }: RuleState, account = UNTOUCHED): number {
  const own = unstoredOf(account) - restoredOf(account);
  return 1 + Math.max(0, (stored?.ahead ?? 0) - presumed - own);
}

/** By how many units memory may be ahead of what is stored of a rule. */
function aheadOf({ rule, stored, storedWholeMs }: RuleState, nowMs: number): number {
  if (stored === undefined) return aheadUnits(rule);
  return storedWholeMs <= nowMs ? Math.max(stored.ahead, aheadUnits(rule)) : stored.ahead;
}

/** What a holder has said of one rule, and has of it. */
export interface HolderUnits {
  /** Units that it has reported as used since it began. */
  readonly used: number;
  /** Units that it wanted last. */
  readonly wanted: number;
  /** Units that were held for it after its last message. */
  readonly held: number;
}

/**
 * An isolate, or a client in its caller's process, that reserves units of a key. It is in memory only: a crash forgets it,
 * and the units that it has reserved are covered by the key's record (storage/write-behind.ts).
 */
export interface Holder {
  /** The number of the last message that was accepted. One that is not higher is late or repeated, and is ignored. */
  readonly turn: number;
  /** The id of its hold in every rule's account. */
  readonly hold: string;
  /** The hold that it had before it claimed units that are not in it. Until that ends, it is granted no other. */
  readonly replaced?: string | undefined;
  /** By the name of the rule: another version of the policy may have other rules, or the same in another order. */
  readonly rules: ReadonlyMap<string, HolderUnits>;
  /** Until this instant its wishes count when units are shared out, unless it asks again. */
  readonly untilMs: number;
}

/** The most holders of one key, at about 300 bytes each. Further isolates reserve nothing and ask each time. */
const MAX_HOLDERS = 1_000;
/** Of those, the most clients of one caller: it cannot keep isolates from reserving. */
const MAX_HOLDERS_OF_CALLER = 500;
/** What one caller's clients want counts as much as what so many holders want that want all they may have. */
const MAX_WISHES_OF_CALLER = 4;
/** A holder is remembered for this long after its end, in milliseconds: messages that it has sent may arrive later. */
const REMEMBERED_MS = 5_000;
/** About the bytes of memory that a holder takes, beside its hold. */
const HOLDER_BYTES = 300;

/** The holders of one key, by their ids. */
export class Holders {
  readonly #holders = new Map<string, Holder>();

  get size(): number {
    return this.#holders.size;
  }

  get bytes(): number {
    return HOLDER_BYTES * this.#holders.size;
  }

  get(id: string): Holder | undefined {
    return this.#holders.get(id);
  }

  /** Whether there is room to remember a holder. */
  hasRoomFor(id: string): boolean {
    const { size } = this.#holders;
    if (this.#holders.has(id)) return true;
    if (size < MAX_HOLDERS_OF_CALLER) return true;
    return size < MAX_HOLDERS && this.#ofCallerOf(id) < MAX_HOLDERS_OF_CALLER;
  }

  /** How many holders the caller of this one has; 0 for an isolate. */
  #ofCallerOf(id: string): number {
    const caller = callerIn(id);
    if (caller === undefined) return 0;
    let count = 0;
    for (const each of this.#holders.keys()) if (callerIn(each) === caller) count += 1;
    return count;
  }

  put(id: string, holder: Holder): void {
    this.#holders.set(id, holder);
  }

  /** Forgets the holders whose end was so long ago that no message of theirs can still arrive. */
  forgetEnded(nowMs: number): void {
    for (const [id, { untilMs }] of this.#holders)
      if (untilMs + REMEMBERED_MS <= nowMs) this.#holders.delete(id);
  }

  /**
   * What the others want and have of a rule.
   *
   * @param id the holder that asks; `undefined`: somebody who holds nothing
   * @param rule the name of the rule
   * @param max the most units of it that one holder may have. Clients may say what they like, so what those of one caller
   * want counts as a few holders at the most
   */
  others(id: string | undefined, rule: string, max: number, nowMs: number): OtherHolders {
    const own = id === undefined ? undefined : callerIn(id);
    const wishes = new Map<string, number>();
    let [wanted, heldByOwn] = [0, 0];
    let isContested = false;
    for (const [each, { rules, untilMs }] of this.#holders) {
      const units = rules.get(rule);
      if (each === id || units === undefined || untilMs <= nowMs) continue;
      const caller = callerIn(each);
      if (caller === undefined) wanted += units.wanted;
      else wishes.set(caller, (wishes.get(caller) ?? 0) + units.wanted);
      if (own !== undefined && caller === own) heldByOwn += units.held;
      else isContested ||= units.wanted > 0;
    }
    for (const wish of wishes.values()) wanted += Math.min(wish, MAX_WISHES_OF_CALLER * max);
    return { wanted, heldByOwn, isContested };
  }
}

/** The other holders of a key, as one of them meets them. */
export interface OtherHolders {
  /** Units that they want. */
  readonly wanted: number;
  /** Units that the other clients of the same caller have; 0 for an isolate. */
  readonly heldByOwn: number;
  /** Whether somebody wants units who is no client of the same caller. */
  readonly isContested: boolean;
}
