/**
 * Write-behind: the object's memory holds units of its own storage, so not every decision writes.
 *
 * A record in storage has a state and `ahead`: units that memory may give out before it must write the record again.
 * When the object starts, it takes the stored state as it is. It does not know how many units of `ahead` were given
 * out, and isolates may still be spending them. So `ahead` becomes a hold. The hold lasts as long as a reservation can
 * live, and then its units count as used. A crash therefore never admits a unit twice, and loses at most `ahead`
 * units, once. Holds and leases of callers are rows of their own and come back as they were.
 *
 * These functions are pure: time is an argument.
 */
import { place, unstoredOf, UNTOUCHED, type Account } from "../../core/accounts/account.ts";
import { heldUnits } from "../../core/accounts/hold.ts";
import type { Packed, Segment } from "../../core/algorithms/packed.ts";
import { withoutBlock } from "../../core/algorithms/penalty.ts";
import type { Rule } from "../../core/policies/policy.ts";
import type { StoredAccount } from "./records.ts";

/**
 * The part of the capacity by which memory may be ahead of storage. One crash can cost that many units, and one row is
 * written for that many. With a limit of 100,000/s, 2 % is 2,000 decisions for each write. With a limit below 50 it is
 * less than one unit: such a limit writes every decision and loses none.
 */
const AHEAD_SHARE = 0.02;

/**
 * By how many units the memory of a hot key may be ahead of its storage. 0 for leases and for units that no time gives
 * back: each of these is written.
 */
export function aheadUnits({ algorithm, capacity, lease }: Rule): number {
  return lease === undefined && algorithm.isLasting !== true ? Math.floor(capacity * AHEAD_SHARE) : 0;
}

/**
 * The record of an account.
 *
 * @param ahead units that memory may give out before the next write, beside those that holders have now
 * @param ttlMs the longest that a holder may still spend them, in milliseconds
 * @param before the record that was written last
 */
export function record(
  rule: Rule,
  account: Account,
  ahead: number,
  nowMs: number,
  ttlMs: number,
  before: StoredAccount | undefined,
): { readonly stored: StoredAccount; readonly segment?: Packed["segment"] } {
  const { state } = account;
  const { isShare = false } = rule.algorithm;
  const units = isShare ? 0 : ahead + unstoredOf(account);
  const header = { algorithm: storedName(rule), ahead: units, ...(units > 0 && { ttlMs }) };
  if (state === undefined) return { stored: header };
  const earlier = before?.algorithm === header.algorithm ? readable(rule, before.state) : undefined;
  const { record: packed, segment } = rule.algorithm.pack(rule.config, state, nowMs, earlier);
  return { stored: { ...header, state: packed }, segment };
}

/** Whether storage may stay as it is: an object that starts with this record would offer no more than the account. */
export function covers(
  rule: Rule,
  stored: StoredAccount | undefined,
  account: Account,
  nowMs: number,
): boolean {
  const { state, ahead } = stored ?? { state: undefined, ahead: 0 };
  const known = readable(rule, state);
  return rule.algorithm.covers(rule.config, known, ahead, account.state, unstoredOf(account), nowMs);
}

/**
 * The account that an object starts with when it finds a record. A record of another algorithm cannot be read, so the
 * account is untouched then.
 *
 * @param ttlMs the longest that a holder may spend reserved units under today's policy, in milliseconds
 */
export function restore(
  rule: Rule,
  stored: StoredAccount | undefined,
  segments: readonly Segment[],
  nowMs: number,
  ttlMs: number,
): Account {
  if (stored === undefined || stored.algorithm !== storedName(rule)) return UNTOUCHED;
  const { algorithm, config } = rule;
  const known = readable(rule, stored.state);
  const state = known === undefined ? undefined : algorithm.unpack(config, known, segments);
  const account: Account = { state, holds: [] };
  if (stored.ahead === 0) return account;
  // The limit may be lower than when this was written, and no more than the whole capacity can be given out.
  const units = Math.min(stored.ahead, rule.capacity);
  // Isolates of the deployment that wrote this keep units for as long as its own policy allowed.
  const expiresAtMs = nowMs + Math.max(ttlMs, stored.ttlMs ?? 0);
  return place(account, { id: RESTORED, units, expiresAtMs, isRestored: true });
}

function storedName({ algorithm }: Rule): string {
  return algorithm.storedAs ?? algorithm.name;
}

/** The state of a record as the rule reads it: a rule without penalties reads nothing of a block. */
function readable({ algorithm }: Rule, state: unknown): unknown {
  return algorithm.isPenal === true ? state : withoutBlock(state);
}

/** The id of that hold. It is in memory only, and must differ from all ids of claims and holders. */
const RESTORED = "write-ahead";

/** Whether the hold of `restore` still lasts. Until it ends, nobody knows the exact state, so none is written. */
export function isRestored({ holds }: Account): boolean {
  return heldUnits(holds).restored > 0;
}
