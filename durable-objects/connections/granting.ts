/** How callers are granted leases that last as long as they keep what comes back (lease-handle.ts). */
import { unsupportedOf, type AcquireCall } from "../../core/protocol/messages.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import type { AskKey } from "../operations/operations.ts";
import { attached } from "./lease-handle.ts";

/** Leases units without waiting. */
export async function acquireAttached(ask: AskKey, { policy, key, ...call }: AcquireCall): Promise<Attached> {
  const asked = { ...call, waitMs: 0 };
  const answer =
    unsupportedOf(call) ??
    (await ask(policy, key, (operations, keyState, nowMs) => operations.acquire(keyState, asked, nowMs)));
  const lease = "lease" in answer ? answer.lease : undefined;
  return attached(ask, policy, key, answer, lease?.id);
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
  ask: AskKey,
  { policy, key, id, ttlMs, isAttached }: Confirmed,
): Promise<Attached> {
  const renewed = await ask(policy, key, (operations, keyState, nowMs) =>
    operations.renew(keyState, id, ttlMs, nowMs),
  );
  return attached(ask, policy, key, renewed, isAttached && !("missing" in renewed) ? id : undefined);
}
