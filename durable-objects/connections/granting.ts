/** How callers are granted leases that last as long as they keep what comes back (lease-handle.ts). */
import { unsupportedOf, type AcquireCall } from "../../core/protocol/messages.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { attached, type LeaseHost } from "./lease-handle.ts";

/** Leases units without waiting. */
export async function acquireAttached(
  host: LeaseHost,
  { policy, key, ...call }: AcquireCall,
): Promise<Attached> {
  const asked = { ...call, waitMs: 0 };
  const answer =
    unsupportedOf(call) ??
    (await host.ask(policy, key, (operations, keyState, nowMs) =>
      operations.acquire(keyState, asked, nowMs),
    ));
  const lease = "lease" in answer ? answer.lease : undefined;
  return attached(host, policy, key, answer, lease?.id);
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
  return attached(host, policy, key, renewed, isAttached && !("missing" in renewed) ? id : undefined);
}
