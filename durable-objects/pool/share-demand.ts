import { outstandingOf } from "../../core/accounts/account.ts";
import type { Cost } from "../../core/protocol/cost.ts";
import { Demand, type WantedUnits } from "../../core/reservations/demand.ts";
import { heldMs } from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { PoolLifetime, PoolSizing } from "./protocol.ts";
import { type LentShare, lentUnits } from "./share-algorithm.ts";

/** What a message asks for, beside the call that it goes with. */
export interface ShareRequest {
  /** Units for an isolate that asks. */
  readonly lending?: LentShare;
  /** How long the lease that a caller waits for has to last, in milliseconds. */
  readonly leaseTtlMs?: number;
  /** By rule: slots that callers wait for. */
  readonly slots?: readonly number[];
  /** How many callers wait in this region's queue. */
  readonly queueLength?: number;
  /** The region gives back everything that it can spare. */
  readonly isGivingBack?: boolean;
}

/** How many units of one key the region's callers and isolates ask for. */
export class ShareDemand {
  readonly #keyState: KeyState;
  readonly #ruleStates: KeyState["ruleStates"];
  readonly #direct: Demand;
  /** By rule: the most units that were leased at one time since the last message. */
  #peak: readonly number[];
  #leasedAtMs = -Infinity;

  constructor(keyState: KeyState, nowMs: number) {
    this.#keyState = keyState;
    this.#ruleStates = keyState.ruleStates;
    this.#direct = new Demand(keyState.policy, nowMs);
    this.#peak = keyState.ruleStates.map(() => 0);
  }

  /** Whether the key is asked for so often that the region should hold units, for its callers or for an isolate. */
  get isHot(): boolean {
    return this.#direct.isHot || this.#keyState.holders.size > 0;
  }

  /** The instant of the last grant of a lease. */
  get leasedAtMs(): number {
    return this.#leasedAtMs;
  }

  /** Notes that a caller asks for this much. */
  note(cost: Cost, nowMs: number): void {
    this.#direct.note(cost, nowMs);
  }

  /** Notes that a call waits for the message under way. */
  miss(): void {
    this.#direct.miss();
  }

  /** Notes how many units are leased, after a lease was granted. */
  noteLeases(nowMs: number): void {
    this.#leasedAtMs = nowMs;
    this.#peak = this.#ruleStates.map(({ account }, index) =>
      Math.max(this.#peak[index] ?? 0, outstandingOf(account)),
    );
  }

  /**
   * What to ask for now. Of rates: what callers ask for, and twice what isolates want, since isolates renew before
   * their units end. Of slots: as many as were in use lately. From here on demand is measured anew.
   */
  want({ lending, isGivingBack, slots }: ShareRequest, isContended: boolean, nowMs: number): WantedUnits {
    const measured = this.#direct.want(nowMs);
    const { admits } = this.#keyState.policy.localDecisions;
    const lent = lentUnits(this.#keyState, nowMs, lending);
    const units = this.#ruleStates.map(({ rule, account }, index) => {
      if (isGivingBack === true) return 0;
      if (admits) return Math.min(rule.capacity, (measured.units[index] ?? 0) + 2 * (lent[index] ?? 0));
      const leased = outstandingOf(account);
      if (rule.lease === undefined) return leased;
      return Math.max(leased + (slots?.[index] ?? 0), isContended ? 0 : (this.#peak[index] ?? 0));
    });
    this.#peak = this.#ruleStates.map(({ account }) => outstandingOf(account));
    const low = measured.low.map((each, index) => Math.max(each, Math.floor((lent[index] ?? 0) / 2)));
    return { ...measured, units, low };
  }
}

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
const MIN_SLOT_SLACK_MS = 1_000;

/**
 * A slot in which no lease began for so long goes back, in milliseconds. A shorter time would ask the pool more
 * often, a longer one would keep the slot from other regions.
 */
export const IDLE_SLOT_MS = 250;

/** How long a slot is held for a lease of `leaseMs`, in milliseconds. */
export function slotMs(leaseMs: number): number {
  return Math.ceil(Math.max(leaseMs * SLOT_SLACK, leaseMs + MIN_SLOT_SLACK_MS));
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
