/** Claims: what the holds and the leases of callers have in common. */
import type { Account } from "../../core/accounts/account.ts";
import { costOf, type Cost } from "../../core/protocol/cost.ts";
import type { Lease, Missing } from "../../core/protocol/messages.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Claim } from "../storage/records.ts";

/** The answer when there is no such hold or lease, or no longer. */
export const MISSING: Missing = { missing: true };

/** The lease with this id; `undefined`: the key has none. */
export function leaseIn(keyState: KeyState, id: string): Claim | undefined {
  const claim = keyState.claims.get(id);
  return claim?.kind === "lease" ? claim : undefined;
}

/** The hold with this id; `undefined`: the key has none. */
export function holdIn(keyState: KeyState, id: string): Claim | undefined {
  const claim = keyState.claims.get(id);
  return claim?.kind === "hold" ? claim : undefined;
}

/** A lease as callers are told of it, without the claim's other fields. */
export function leasedOf({ id, fencingToken = 0, expiresAtMs }: Claim, nowMs: number): Lease {
  return { id, fencingToken, expiresAfterMs: expiresAtMs - nowMs };
}

/**
 * The claim of a lease that was just admitted.
 *
 * @param accounts the accounts after the admission, which have its fencing token
 * @returns `undefined` when the cost has no units of a rule that leases
 */
export function newLease(
  { ruleStates }: KeyState,
  accounts: readonly Account[],
  cost: Cost,
  lease: Pick<Claim, "id" | "ttlMs" | "expiresAtMs" | "isSocket">,
): Claim | undefined {
  const units: Record<string, number> = {};
  let fencingToken = 0;
  for (const [index, { rule }] of ruleStates.entries()) {
    const { leasing } = rule.algorithm;
    if (leasing === undefined || costOf(rule, cost) === 0) continue;
    units[rule.name] = costOf(rule, cost);
    fencingToken = Math.max(fencingToken, leasing.fencingToken(accounts[index]?.state));
  }
  if (Object.keys(units).length === 0) return undefined;
  return { ...lease, kind: "lease", units, fencingToken };
}
