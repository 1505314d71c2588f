/** Claims: what the holds and the leases of callers have in common. */
import type { Account, Report } from "../../core/accounts/account.ts";
import type { Lease, Missing } from "../../core/protocol/answers.ts";
import { type Cost, costOf } from "../../core/protocol/cost.ts";
import type { LeaseReport, ReleaseParams } from "../../core/protocol/messages.ts";
import type { MaybePromise } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Claim } from "../storage/records.ts";
import type { Operations } from "./operations.ts";

/** The answer when there is no such hold or lease, or no longer. */
export const MISSING: Missing = { missing: true };

/** The lease with this id; `undefined`: the key has none. */
export function leaseIn(keyState: KeyState, id: string): Claim | undefined {
  const claim = keyState.claims.get(id);
  return claim?.kind === "lease" ? claim : undefined;
}

/** The link to the holder that keeps a lease, until another call takes the lease over. */
export function linkOf({ link, id }: Claim): string {
  return link ?? id;
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
 * @param accounts the accounts after the admission at `nowMs`, which have its fencing token
 * @returns `undefined` when the cost has no units of a rule that leases
 */
export function newLease(
  { ruleStates }: KeyState,
  accounts: readonly Account[],
  cost: Cost,
  lease: Pick<Claim, "id" | "ttlMs" | "expiresAtMs" | "isSocket" | "caller">,
  nowMs: number,
): Claim | undefined {
  const units: Record<string, number> = {};
  let fencingToken = 0;
  let learns = false;
  for (const [index, { rule }] of ruleStates.entries()) {
    const { leasing } = rule.algorithm;
    if (leasing === undefined || costOf(rule, cost) === 0) continue;
    units[rule.name] = costOf(rule, cost);
    learns ||= leasing.released !== undefined;
    fencingToken = Math.max(fencingToken, leasing.fencingToken(accounts[index]?.state));
  }
  if (Object.keys(units).length === 0) return undefined;
  return { ...lease, kind: "lease", units, fencingToken, ...(learns && { grantedAtMs: nowMs }) };
}

/** What is known of the call for which a lease was granted, when its holder ends it. */
export function reportOf({ grantedAtMs }: Claim, given: LeaseReport, nowMs: number): Report {
  const measuredMs = grantedAtMs === undefined ? undefined : nowMs - grantedAtMs;
  return { outcome: given.outcome ?? "ok", durationMs: given.durationMs ?? measuredMs };
}

/** Ends a lease where its key is: at once, or in `graceMs` when its link has ended and its holder may come back. */
export function endLease(
  operations: Operations,
  keyState: KeyState,
  { id, outcome, durationMs, link, graceMs }: ReleaseParams,
  nowMs: number,
): MaybePromise<boolean> {
  if (graceMs === undefined) return operations.release(keyState, id, nowMs, { outcome, durationMs, link });
  const left = operations.renew(keyState, id, graceMs, nowMs, { from: link });
  return left instanceof Promise ? left.then(isThere) : isThere(left);
}

function isThere(lease: Lease | Missing): boolean {
  return !("missing" in lease);
}
