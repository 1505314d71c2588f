/** The units of a region's share, rule by rule. They are kept in the key's accounts. */
import { outstandingOf } from "../../core/accounts/account.ts";
import { costOf, type Cost } from "../../core/protocol/cost.ts";
import { mostUnits, spendableMs } from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { RuleState } from "../keys/rule-state.ts";
import type { Granted } from "./protocol.ts";
import { NO_SHARE, type ShareState } from "./share-algorithm.ts";

/** An isolate that asks its region for units, while the region asks the pool. */
export interface Lending {
  readonly holder: string;
  readonly units: readonly number[];
}

/** The share of one rule. */
export function stateOf({ account }: RuleState): ShareState {
  return (account.state ?? NO_SHARE) as ShareState;
}

/** Changes some fields of a rule's share. */
export function updateShare(keyState: KeyState, ruleState: RuleState, change: Partial<ShareState>): void {
  const { account } = ruleState;
  keyState.replaceAccount(ruleState, { ...account, state: { ...stateOf(ruleState), ...change } });
}

/** Units of the share that no isolate holds and no caller leases. */
export function freeUnits(ruleState: RuleState): number {
  return stateOf(ruleState).units - outstandingOf(ruleState.account);
}

/** How long until enough leases of this region expire to free `units`, in milliseconds; `undefined`: they never do. */
export function leaseWaitMs(ruleState: RuleState, units: number, nowMs: number): number | undefined {
  let missing = units - freeUnits(ruleState);
  for (const hold of ruleState.account.holds) {
    missing -= hold.units;
    if (missing <= 0) return Math.max(1, hold.expiresAtMs - nowMs);
  }
  return undefined;
}

/** Slots without a lease, of the rule that has most of them. */
export function idleSlots({ ruleStates }: KeyState): number {
  const leased = ruleStates.filter(({ rule }) => rule.lease !== undefined);
  return Math.max(0, ...leased.map(freeUnits));
}

/** By rule: units that isolates want. */
export function lentUnits({ ruleStates, holders }: KeyState, nowMs: number, lending?: Lending): number[] {
  return ruleStates.map(({ rule }, index) => {
    const units = lending?.units[index] ?? 0;
    return units + holders.others(lending?.holder, rule.name, mostUnits(rule), nowMs).wanted;
  });
}

/**
 * Gives up units of a rule's share that are not wanted, and returns how many are left. Outstanding units are never
 * given up. When the time of the share is over (of slots: `endsByMs`), all others are.
 */
export function keepUnits(keyState: KeyState, ruleState: RuleState, wanted: number, nowMs: number): number {
  const { account, rule } = ruleState;
  const state = stateOf(ruleState);
  const outstanding = outstandingOf(account);
  const isLeased = rule.lease !== undefined;
  const units =
    nowMs < (isLeased ? keyState.endsByMs : state.endsAtMs)
      ? state.units
      : Math.min(state.units, outstanding);
  // Leases that were read from storage have their slots, even when nothing is known of the share.
  const least = isLeased ? outstanding : Math.min(units, outstanding);
  const kept = Math.max(0, least, Math.min(units, wanted));
  updateShare(keyState, ruleState, { units: kept });
  return kept;
}

/**
 * Adds what the pool granted of a rule.
 *
 * @param units granted units; where units are leased, with the cost that was admitted
 * @param reported units that the message reported as used
 * @param sentAtMs when the message was sent: the lifetime counts from then
 */
export function addUnits(
  keyState: KeyState,
  ruleState: RuleState,
  units: number,
  granted: Granted,
  reported: number,
  sentAtMs: number,
): void {
  const state = stateOf(ruleState);
  if (ruleState.rule.lease !== undefined) {
    const fencingToken = Math.max(state.fencingToken, Number(granted.fencingToken ?? 0) - 1);
    return updateShare(keyState, ruleState, { units: state.units + units, fencingToken });
  }
  const endsAtMs = sentAtMs + spendableMs(granted.ttlMs);
  if (!granted.isNew) return updateShare(keyState, ruleState, { units: state.units + units, endsAtMs });
  // The pool has counted the old units as used, or will. So the region reports none of them, and forgets what
  // isolates hold of them.
  keyState.replaceAccount(ruleState, { state, holds: [] });
  updateShare(keyState, ruleState, { units, used: reported, endsAtMs });
}

/** A cost as units of each rule. */
export function costsOf({ ruleStates }: Pick<KeyState, "ruleStates">, cost: Cost): number[] {
  return ruleStates.map(({ rule }) => costOf(rule, cost));
}
