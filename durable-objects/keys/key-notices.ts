/** What is noticed of a key when it changes, for each of its rules. */
import { outstandingOf, UNTOUCHED } from "../../core/accounts/account.ts";
import type { Account } from "../../core/accounts/hold.ts";
import {
  MAX_UNSENT,
  mayReachAtMs,
  noticedAfter,
  type Noticed,
  NOTHING_NOTICED,
} from "../../core/accounts/notices.ts";
import { randomId } from "../../core/clock.ts";
import { isCandidate, publicName, type Rule } from "../../core/policies/policy.ts";
import { planIn } from "../../core/policies/seen-policy.ts";
import type { RuleDecision } from "../../core/protocol/answers.ts";
import type { Claim } from "../storage/records.ts";
import { aheadOfRecord } from "../storage/write-behind.ts";
import type { KeyState } from "./key-state.ts";

/** Keys with notices that are to be sent. */
export interface NoticeBox {
  hasRoom(keyState: KeyState): boolean;
  /** The key was stored with them. */
  add(keyState: KeyState, nowMs: number): void;
  /** Without a further call the key may reach a threshold then: it is to be opened. */
  watch(keyState: KeyState, dueMs: number, nowMs: number): void;
  /** So many were given up. */
  drop(policy: string, count: number): void;
}

export interface KeyChange {
  readonly accounts: readonly Account[];
  readonly put?: readonly Claim[];
  readonly sooner?: readonly Claim[];
  /** The rules that denied a call since units are missing. */
  readonly denied?: readonly string[];
}

export function hasUnsent({ ruleStates }: KeyState): boolean {
  return ruleStates.some(({ noticed }) => noticed.unsent.length > 0);
}

/** The rules that denied a call since units are missing, in an object's answer to it. */
export function deniedIn(answer: unknown): readonly string[] {
  const { rules = [] } = (answer ?? {}) as { readonly rules?: readonly RuleDecision[] };
  return rules.filter(({ success, reason }) => !success && reason === "quota").map(({ name }) => name);
}

/** By rule: how far memory may go ahead of a record that is written although the last one covers the accounts. */
export function aheadAgain({ ruleStates }: KeyState): number[] {
  return ruleStates.map(({ rule, given }) => aheadOfRecord(rule, given));
}

/** What is noticed of each rule; `undefined`: nothing that must be written. */
export function noticedOf(
  keyState: KeyState,
  change: KeyChange,
  box: NoticeBox,
  nowMs: number,
): readonly Noticed[] | undefined {
  const { policy } = keyState;
  if (policy.notify === undefined || policy.pool !== undefined || isCandidate(policy)) return undefined;
  const thresholds = policy.notify;
  const { accounts, put = [], sooner = [], denied = [] } = change;
  const changed = new Map([...put, ...sooner].map((claim) => [claim.id, claim]));
  const claimsAfter = (id: string) => changed.get(id) ?? keyState.claims.get(id);
  const make = () => ({ id: `msg_${randomId()}`, ...planIn(policy) });
  let mustWrite = false;
  const all = keyState.ruleStates.map(({ rule, account: before, noticed }, index) => {
    const after = accounts[index] ?? UNTOUCHED;
    const leased = [
      leasedIn(rule, before, (id) => keyState.claims.get(id)),
      leasedIn(rule, after, claimsAfter),
    ] as const;
    const isDenied = denied.includes(rule.name);
    const found = noticedAfter(rule, noticed, thresholds, { before, after, leased, isDenied }, nowMs, make);
    if (found === noticed) return noticed;
    // A lease's end may be stored without its record. A rate is read again as it was (KeyState).
    mustWrite ||= found.unsent.length > noticed.unsent.length || rule.lease !== undefined;
    return within(found, noticed, policy.name, box, keyState);
  });
  const dueMs = Math.min(
    ...keyState.ruleStates.map(({ rule }, index) =>
      mayReachAtMs(rule, all[index] ?? NOTHING_NOTICED, thresholds, accounts[index] ?? UNTOUCHED, nowMs),
    ),
  );
  if (dueMs < Infinity) box.watch(keyState, dueMs, nowMs);
  // What is only in memory is written with the next record.
  if (!mustWrite) keyState.noteNotices(all);
  return mustWrite ? all : undefined;
}

/** The same, with as many unsent notices as there may be. */
function within(
  found: Noticed,
  before: Noticed,
  policy: string,
  box: NoticeBox,
  keyState: KeyState,
): Noticed {
  const isMore = found.unsent.length > before.unsent.length;
  const unsent = isMore && !box.hasRoom(keyState) ? before.unsent : found.unsent.slice(-MAX_UNSENT);
  const dropped = found.unsent.length - unsent.length;
  if (dropped > 0) box.drop(publicName(policy), dropped);
  return { reached: found.reached, unsent };
}

/** Units in leases. Of the slots of an isolate those that it had leased when it last said so. */
function leasedIn({ lease }: Rule, account: Account, claimOf: (id: string) => Claim | undefined): number {
  if (lease === undefined) return 0;
  let leased = outstandingOf(account);
  for (const { id, units } of account.holds) {
    const claim = claimOf(id);
    // What is owed to an isolate is nobody's yet (operations/slots.ts).
    if (claim === undefined) leased -= units;
    else if (claim.isSlots === true) leased -= Math.max(0, units - (claim.leased ?? units));
  }
  return leased;
}
