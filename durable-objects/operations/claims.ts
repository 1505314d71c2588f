/** What holds and leases have in common: units that a caller has of a key. */
import type { Account } from "../../core/accounts/account.ts";
import { costOf, type Cost } from "../../core/protocol/cost.ts";
import type { Lease, Missing } from "../../core/protocol/messages.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Claim } from "../storage/records.ts";

export const MISSING: Missing = { missing: true };

export function leaseIn(keyState: KeyState, id: string): Claim | undefined {
  const claim = keyState.claims.get(id);
  return claim?.kind === "lease" ? claim : undefined;
}

export function holdIn(keyState: KeyState, id: string): Claim | undefined {
  const claim = keyState.claims.get(id);
  return claim?.kind === "hold" ? claim : undefined;
}

export function leasedOf({ id, fencingToken = 0, expiresAtMs }: Claim, nowMs: number): Lease {
  return { id, fencingToken, expiresAfterMs: expiresAtMs - nowMs };
}

/** The lease that these accounts have been given room for; `undefined`: the cost leases nothing. */
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
