/**
 * Write-behind: the object's memory holds units of its own storage, so that not every decision writes.
 *
 * A record in storage is a state and `ahead`, units that memory may give out before it must write again.
 * When the object starts, what is stored is all there is: the state is taken as it is, and `ahead` becomes
 * a hold that lasts as long as a reservation can live (somebody may still be spending it), then counts as
 * used. So a crash never admits a unit twice, and loses at most `ahead` units, once. Holds and leases of callers
 * are rows of their own and come back as they were.
 *
 * Pure, like holds.ts.
 */
import { place, unstoredOf, UNTOUCHED, type Account } from "../../core/accounts/account.ts";
import type { Packed, Segment } from "../../core/algorithms/algorithm.ts";
import type { Rule } from "../../core/policies/policy.ts";
import type { StoredAccount } from "./records.ts";

/**
 * The share of the capacity that memory may be ahead of storage, in units: what one crash can cost, against
 * one row written per so many units. 2 % is 2,000 decisions per write at 100,000/s. Below 50 it comes to
 * nothing: small limits write every decision and lose none.
 */
const AHEAD_SHARE = 0.02;

/** How many units the memory of a hot key may be ahead of its storage. Leases are written one by one. */
export function aheadUnits(rule: Rule): number {
  return rule.lease === undefined ? Math.floor(rule.capacity * AHEAD_SHARE) : 0;
}

/** What to store of an account as it is now, with `ahead` more units to give out before the next time. */
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
  const header = { algorithm: rule.algorithm.name, ahead: units, ...(units > 0 && { ttlMs }) };
  if (state === undefined) return { stored: header };
  const earlier = before?.algorithm === header.algorithm ? before.state : undefined;
  const { record: packed, segment } = rule.algorithm.pack(rule.config, state, nowMs, earlier);
  return { stored: { ...header, state: packed }, segment };
}

/** Whether a record, if it were all that is left, would offer no more than the account. */
export function covers(
  rule: Rule,
  stored: StoredAccount | undefined,
  account: Account,
  nowMs: number,
): boolean {
  const { state, ahead } = stored ?? { state: undefined, ahead: 0 };
  return rule.algorithm.covers(rule.config, state, ahead, account.state, unstoredOf(account), nowMs);
}

/** The account of a record found at start-up. Another algorithm's state means nothing to this one. */
export function restore(
  rule: Rule,
  stored: StoredAccount | undefined,
  segments: readonly Segment[],
  nowMs: number,
  ttlMs: number,
): Account {
  if (stored === undefined || stored.algorithm !== rule.algorithm.name) return UNTOUCHED;
  const { algorithm, config } = rule;
  const state = stored.state === undefined ? undefined : algorithm.unpack(config, stored.state, segments);
  const account: Account = { state, holds: [] };
  if (stored.ahead === 0) return account;
  // A policy may have shrunk since; more than all it has cannot be missing.
  const units = Math.min(stored.ahead, rule.capacity);
  // Holders of the deployment that wrote this keep units for as long as its policy allowed.
  const expiresAtMs = nowMs + Math.max(ttlMs, stored.ttlMs ?? 0);
  return place(account, { id: RESTORED, units, expiresAtMs });
}

const RESTORED = "write-ahead";

/** Whether units are held that were ahead when the object started: until they count as used there is nothing exact to write. */
export function isRestored({ holds }: Account): boolean {
  return holds.some(({ id }) => id === RESTORED);
}
