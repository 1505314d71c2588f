import { heldMs } from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { PoolLifetime, PoolSizing } from "./protocol.ts";

/**
 * The numbers of core/reservations/sizing.ts, one level up. There are few regions and many isolates, and a message to
 * a pool takes longer. So a region may have a larger part of the capacity: a quarter. That is also what one vanished
 * region costs.
 */
export const POOL_SIZING: PoolSizing = {
  mostShare: 1 / 4,
  spareShare: 1 / 32,
  mostHolders: 1_000,
  rememberedMs: 5_000,
  fencingTokens: 100_000,
};

/**
 * A region has units for twice as long as its isolates may have them, so that isolates need not wait for the region's
 * messages.
 */
const AHEAD_OF_ISOLATES = 2;
/**
 * Slots are held for 1.5 times as long as the leases in them, and at least a second longer, so that not every lease
 * asks the pool.
 */
const SLOT_SLACK = 1.5;
const LEAST_SLOT_SLACK_MS = 1_000;

/**
 * A slot in which no lease began for so long goes back, in milliseconds. A shorter time would ask the pool more
 * often, a longer one would keep the slot from other regions.
 */
export const IDLE_SLOT_MS = 250;

/** How long a slot is held for a lease of `leaseMs`, in milliseconds. */
export function slotMs(leaseMs: number): number {
  return Math.ceil(Math.max(leaseMs * SLOT_SLACK, leaseMs + LEAST_SLOT_SLACK_MS));
}

/**
 * How long a region wants units, in milliseconds.
 *
 * @param ttlMs the lifetime that the measured demand asks for
 * @param leaseTtlMs how long the lease that a caller waits for has to last; 0: nobody waits
 */
export function lifetimesOf(
  { policy, claims }: Pick<KeyState, "policy" | "claims">,
  ttlMs: number,
  leaseTtlMs: number,
  nowMs: number,
): { readonly lifetime: PoolLifetime; readonly shortest: PoolLifetime } {
  const { lease, reservation } = policy;
  if (lease !== undefined) {
    const lastMs = [...claims.values()].map(({ expiresAtMs }) => expiresAtMs - nowMs);
    const longestMs = slotMs(Math.max(leaseTtlMs, lease.ttlMs, ...lastMs));
    const slots = { ttlMs: longestMs, heldMs: longestMs };
    return { lifetime: slots, shortest: slots };
  }
  const longMs = ttlMs + reservation.leastMs;
  const shortMs = AHEAD_OF_ISOLATES * reservation.leastMs;
  return {
    lifetime: { ttlMs: longMs, heldMs: heldMs(longMs) },
    shortest: { ttlMs: shortMs, heldMs: heldMs(shortMs) },
  };
}
