import { heldMs } from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { PoolLifetime, PoolSizing } from "./protocol.ts";

/**
 * The numbers of sizing.ts, one level up. There are few regions and many isolates, and a message to a pool takes longer, so a region
 * may have a larger part of the capacity: a quarter, which is also what one costs that vanishes.
 */
export const POOL_SIZING: PoolSizing = {
  mostShare: 1 / 4,
  spareShare: 1 / 32,
  mostHolders: 1_000,
  rememberedMs: 5_000,
  fencingTokens: 100_000,
};

/** A region has units for as long again as its isolates may have them, so that those need not wait for its messages. */
const AHEAD_OF_ISOLATES = 2;
/** Slots are held for half as long again as the leases in them, so that not each lease asks. */
const SLOT_SLACK = 1.5;
const LEAST_SLOT_SLACK_MS = 1_000;

/** A slot in which nobody came for so long goes back: sooner asks the pool more often, later keeps it from other regions. */
export const IDLE_SLOT_MS = 250;

/** How long slots are held for leases of so long. */
export function slotMs(leaseMs: number): number {
  return Math.ceil(Math.max(leaseMs * SLOT_SLACK, leaseMs + LEAST_SLOT_SLACK_MS));
}

/**
 * How long a region wants units.
 *
 * @param ttlMs as long as its demand says
 * @param leaseTtlMs how long a lease has to last that is waited for
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
