/** The units of a region's share, rule by rule, as the accounts have them. */
import { outstandingOf } from "../../core/accounts/account.ts";
import { costOf, type Cost } from "../../core/protocol/cost.ts";
import { spendableMs } from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { RuleState } from "../keys/rule-state.ts";
import type { Granted } from "./protocol.ts";
import { NO_SHARE, type ShareState } from "./share-algorithm.ts";

/** An isolate that asks for units while the pool is asked for some. */
export interface Lending {
  readonly holder: string;
  readonly units: readonly number[];
}

export function stateOf({ account }: RuleState): ShareState {
  return (account.state ?? NO_SHARE) as ShareState;
}

/** Changes what is known of a rule's share. */
export function updateShare(keyState: KeyState, ruleState: RuleState, change: Partial<ShareState>): void {
  const { account } = ruleState;
  keyState.replaceAccount(ruleState, { ...account, state: { ...stateOf(ruleState), ...change } });
}

/** Units that nobody holds. */
export function freeUnits(ruleState: RuleState): number {
  return stateOf(ruleState).units - outstandingOf(ruleState.account);
}

/** How long until leases of this region that expire make room for so many units; `undefined`: they do not. */
export function leaseWaitMs(ruleState: RuleState, units: number, nowMs: number): number | undefined {
  let missing = units - freeUnits(ruleState);
  for (const hold of ruleState.account.holds) {
    missing -= hold.units;
    if (missing <= 0) return Math.max(1, hold.expiresAtMs - nowMs);
  }
  return undefined;
}

/** Slots that no lease is in. */
export function idleSlots({ ruleStates }: KeyState): number {
  const leased = ruleStates.filter(({ rule }) => rule.lease !== undefined);
  return Math.max(0, ...leased.map(freeUnits));
}

/** What isolates want of each rule. */
export function lentUnits({ ruleStates, holders }: KeyState, nowMs: number, lending?: Lending): number[] {
  return ruleStates.map((_, index) => {
    const units = lending?.units[index] ?? 0;
    return units + holders.wantedByOthers(lending?.holder, index, nowMs);
  });
}

/**
 * Gives up what is not wanted of a rule, and returns what is left: never less than others have of it. What the pool does not
 * keep any more (`endsByMs`, of slots) is given up in any case.
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
  // Leases that were found in storage have their slots, whatever is known of the share.
  const least = isLeased ? outstanding : Math.min(units, outstanding);
  const kept = Math.max(0, least, Math.min(units, wanted));
  updateShare(keyState, ruleState, { units: kept });
  return kept;
}

/**
 * Takes over what the pool granted of a rule.
 *
 * @param units with the cost that was admitted
 * @param reported units that the message had reported as used
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
  // What was here has been counted as used, or will be: none of it is reported, and isolates' units of it are forgotten.
  keyState.replaceAccount(ruleState, { state, holds: [] });
  updateShare(keyState, ruleState, { units, used: reported, endsAtMs });
}

/** A cost, rule by rule. */
export function costsOf({ ruleStates }: Pick<KeyState, "ruleStates">, cost: Cost): number[] {
  return ruleStates.map(({ rule }) => costOf(rule, cost));
}
