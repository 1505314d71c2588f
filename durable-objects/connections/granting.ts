/** How callers are granted leases that last as long as they keep what comes back (lease-handle.ts). */
import type { Answer } from "../../core/protocol/answers.ts";
import { unsupportedOf, type AcquireCall } from "../../core/protocol/messages.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { leaseIn, linkOf } from "../operations/claims.ts";
import { attached, type LeaseHost } from "./lease-handle.ts";
import { takenOver } from "./socket-leases.ts";

/**
 * Leases units without waiting, or takes over a lease whose link may have broken. A link has the id of the call that made
 * it.
 */
export async function acquireAttached(host: LeaseHost, call: AcquireCall): Promise<Attached> {
  const { policy, key, resume, graceMs, id } = call;
  const answer =
    unsupportedOf(call) ??
    (resume === undefined ? await acquired(host, call) : await takenOver(host, { policy, key }, resume, id));
  const lease = "lease" in answer ? answer.lease : undefined;
  if (lease === undefined) return attached(host, policy, key, answer, undefined);
  // Without a grace the same call may have been answered before, and then both answers are of one link.
  const isAnew = resume !== undefined || graceMs !== undefined || lease.id === id;
  const link = isAnew ? id : await linkNow(host, policy, key, lease.id);
  return attached(host, policy, key, answer, { id: lease.id, link, graceMs });
}

/** Leases units. If the call was answered before, and has a grace, the link of that answer may have broken. */
async function acquired(host: LeaseHost, { policy, key, ...call }: AcquireCall): Promise<Answer> {
  const asked = { ...call, waitMs: 0 };
  const answer = await host.ask(policy, key, (operations, keyState, nowMs) =>
    operations.acquire(keyState, asked, nowMs),
  );
  const lease = "lease" in answer ? answer.lease : undefined;
  if (lease === undefined || lease.id === call.id || call.graceMs === undefined) return answer;
  const taken = await takenOver(host, { policy, key }, lease.id, call.id);
  return "missing" in taken ? taken : { ...answer, ...(taken.lease && { lease: taken.lease }) };
}

/** The link that has a lease. */
async function linkNow({ ask }: LeaseHost, policy: string, key: string, id: string): Promise<string> {
  return await ask(policy, key, (_, keyState) => {
    const claim = leaseIn(keyState, id);
    return claim === undefined ? id : linkOf(claim);
  });
}

/** A lease that its caller has confirmed. */
export interface Confirmed {
  readonly policy: string;
  readonly key: string;
  readonly id: string;
  readonly ttlMs: number;
  /** It also ends with what comes back. */
  readonly isAttached: boolean;
}

/** Makes a lease last that was granted to a caller who might have gone. */
export async function confirmLease(
  host: LeaseHost,
  { policy, key, id, ttlMs, isAttached }: Confirmed,
): Promise<Attached> {
  const renewed = await host.ask(policy, key, (operations, keyState, nowMs) =>
    operations.renew(keyState, id, ttlMs, nowMs),
  );
  if (!isAttached || "missing" in renewed) return attached(host, policy, key, renewed, undefined);
  return attached(host, policy, key, renewed, { id, link: await linkNow(host, policy, key, id) });
}
