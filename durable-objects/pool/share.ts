import { outstandingOf } from "../../core/accounts/account.ts";
import { randomId } from "../../core/clock.ts";
import type { Cost } from "../../core/policies/policy.ts";
import { Denials } from "../../core/reservations/denials.ts";
import {
  Demand,
  heldMs,
  PendingRequest,
  refillMs,
  spendableMs,
  type WantedUnits,
} from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { HolderMessage, PoolAnswer, PoolCall, PoolLifetime, PoolMark, PoolSizing } from "./protocol.ts";
import {
  addUnits,
  freeUnits,
  idleSlots,
  keepUnits,
  type LentShare,
  lentUnits,
  stateOf,
  updateShare,
} from "./share-algorithm.ts";

/** For so long after a failure nothing is asked for ahead of need, in milliseconds. */
const PAUSE_MS = 250;

/** A call with the region's message. */
export type PoolMessage = PendingRequest<PoolCall & { readonly holding: HolderMessage }>;

/**
 * What the object of one region knows of one key's pool: how many units the region has, which denials the pool gave,
 * and how much the region is asked for. The units themselves are in the key's accounts (share-algorithm.ts). The
 * pool's side is redis/lua/holders.ts. No unit is spent twice, for the reason that core/reservations/reservation.ts
 * gives for isolates, one level up.
 *
 * Plain state, no I/O: session.ts sends the messages.
 */
export class Share {
  readonly demand: ShareDemand;
  readonly denials = new Denials();
  /** The pool may be keeping units apart for this region. */
  isHeld = false;
  /** The object had slots before it left memory, and the pool has not answered it since. */
  isUnknown: boolean;
  /** Other regions want units too. */
  isContended = false;
  readonly #keyState: KeyState;
  readonly #ruleStates: KeyState["ruleStates"];
  readonly #holder: string;
  #hasBegun = false;
  #turn = 0;
  #isFresh = true;
  #seen: PoolMark | undefined;
  #message: PoolMessage | undefined;
  /** By rule: with so many free units, or fewer, it is time to ask for more. */
  #low: readonly number[];
  #askedAtMs = -Infinity;
  #ttlMs = 0;
  #failedAtMs = -Infinity;

  constructor(keyState: KeyState, nowMs: number) {
    this.#keyState = keyState;
    this.#ruleStates = keyState.ruleStates;
    this.demand = new ShareDemand(keyState, nowMs);
    this.#low = keyState.ruleStates.map(() => 0);
    const stored = this.#ruleStates
      .map((ruleState) => stateOf(ruleState).holder)
      .find((holder) => holder !== "");
    // Two objects must never be the same holder, also when two deployments use one region name: so an id is added.
    this.#holder = stored ?? `${keyState.policy.region?.name ?? ""}.${randomId()}`;
    this.isUnknown = stored !== undefined;
  }

  /**
   * Notes that a caller asks for this much. From now on the key stays in memory, since the share remembers what is
   * asked for and what was denied. A look begins nothing, so its key may leave again.
   */
  note(cost: Cost, nowMs: number): void {
    this.#begin();
    this.demand.note(cost, nowMs);
  }

  /** The message that has not been answered yet, if there is one and an answer may still come. */
  messageAt(nowMs: number): PoolMessage | undefined {
    const message = this.#message;
    const isDue = message !== undefined && nowMs < message.sentAtMs + this.#keyState.policy.deadlineMs;
    return isDue ? message : undefined;
  }

  /** Whether it is time to ask for more units of rates, so that no call has to wait. */
  needsRefill(nowMs: number): boolean {
    if (!this.isHeld || this.messageAt(nowMs) !== undefined) return false;
    if (nowMs < this.#failedAtMs + PAUSE_MS) return false;
    const isLow = this.#ruleStates.some(
      (ruleState, index) =>
        ruleState.rule.lease === undefined && freeUnits(ruleState) <= (this.#low[index] ?? 0),
    );
    return isLow || nowMs >= this.#askedAtMs + refillMs(this.#ttlMs);
  }

  /** Whether the region has units that may not be spent any more, or slots that have been idle for too long. */
  isOver(nowMs: number): boolean {
    const { lease } = this.#keyState.policy;
    const endsAtMs =
      lease === undefined
        ? this.#askedAtMs + spendableMs(this.#ttlMs)
        : Math.max(this.#askedAtMs, this.demand.leasedAtMs) + IDLE_SLOT_MS;
    return this.isHeld && nowMs >= endsAtMs && this.messageAt(nowMs) === undefined && !this.isAtRest;
  }

  /** Whether a lease is in every slot. Then there is nothing to do until one of them ends. */
  get isAtRest(): boolean {
    return this.#keyState.policy.lease !== undefined && idleSlots(this.#keyState) === 0;
  }

  /** Makes the message that goes with a call. From here on only units that the message keeps may be spent. */
  ask(call: Omit<PoolCall, "holding">, asking: ShareRequest, nowMs: number): PoolMessage {
    this.#begin();
    const { policy, claims } = this.#keyState;
    const ruleStates = this.#ruleStates;
    const wanted = this.demand.want(asking, this.isContended, nowMs);
    // A call with a cost gives all free units back, so that the pool decides on everything there is.
    const isFor = call.cost.some((units) => units > 0);
    const kept = ruleStates.map((ruleState, index) =>
      keepUnits(this.#keyState, ruleState, isFor ? 0 : (wanted.units[index] ?? 0), nowMs),
    );
    // The turn is higher than every turn from before a crash, unless the clock was put back. Then the pool answers
    // which turn it knows (`overtakenBy`), and the next message goes on from there.
    this.#turn = Math.max(this.#turn + 1, nowMs * 1_000);
    this.isHeld = true;
    const holding = {
      holder: this.#holder,
      turn: this.#turn,
      isFresh: this.#isFresh,
      ...(this.#seen !== undefined && { seen: this.#seen }),
      used: ruleStates.map((ruleState) => stateOf(ruleState).used),
      kept,
      wanted: wanted.units,
      isShort: wanted.isShort,
      ...lifetimesOf(this.#keyState, wanted.ttlMs, asking.leaseTtlMs ?? 0, nowMs),
      mostHeldMs: slotMs(policy.lease?.maxTtlMs ?? 0),
      leases: [...claims.values()].filter(({ kind }) => kind === "lease").length,
      queueLength: asking.queueLength ?? 0,
    };
    this.#message = new PendingRequest({ ...call, holding }, wanted, nowMs);
    return this.#message;
  }

  /**
   * Adds what was granted and, where units are leased, a cost that was admitted. Only the answer to the last message
   * counts.
   *
   * @returns whether this answer counted
   */
  answered(message: PoolMessage, { rules = [], granted, next }: PoolAnswer, nowMs: number): boolean {
    if (message !== this.#message) return false;
    this.#message = undefined;
    if (granted === undefined) return false;
    this.isContended = granted.isContended;
    if (granted.overtakenBy !== undefined) {
      this.#turn = granted.overtakenBy;
      return false;
    }
    const { call, sentAtMs, wanted } = message;
    const ruleStates = this.#ruleStates;
    this.#isFresh = false;
    this.isUnknown = false;
    this.#seen = granted.mark;
    const isLeased = this.#keyState.policy.lease !== undefined && call.op === "limit";
    const isAdded = isLeased && call.request === undefined && rules.every(({ success }) => success);
    for (const [index, ruleState] of ruleStates.entries()) {
      const units = (granted.units[index] ?? 0) + (isAdded ? (call.cost[index] ?? 0) : 0);
      addUnits(this.#keyState, ruleState, units, granted, call.holding.used[index] ?? 0, sentAtMs);
      const { retryAfterMs = 0, resetAfterMs = 0 } = next?.[index] ?? rules[index] ?? {};
      // The pool has decided, and then it has granted.
      const left = Math.max(0, (rules[index]?.remaining ?? 0) - (granted.units[index] ?? 0));
      const [retryAtMs, wholeAtMs] = [nowMs + (retryAfterMs ?? 0), nowMs + resetAfterMs];
      updateShare(this.#keyState, ruleState, { left, retryAtMs, wholeAtMs });
    }
    this.#low = ruleStates.map((ruleState, index) =>
      Math.min(wanted.low[index] ?? 0, Math.floor(freeUnits(ruleState) / 2)),
    );
    this.#askedAtMs = sentAtMs;
    this.#ttlMs = granted.ttlMs;
    const { lifetime, shortest } = call.holding;
    const endsByMs = sentAtMs + (granted.ttlMs > shortest.ttlMs ? lifetime : shortest).heldMs;
    // Kept units stay apart for as long as any earlier answer promised. When nothing was kept, only this answer
    // counts.
    const isKept = !granted.isNew && call.holding.kept.some((units) => units > 0);
    this.#keyState.endsByMs = isKept ? Math.max(endsByMs, this.#keyState.endsByMs) : endsByMs;
    this.isHeld = ruleStates.some((ruleState) => stateOf(ruleState).units > 0);
    if (granted.units.some((units) => units > 0)) this.denials.forget();
    // With `next` nothing is left. Calls that waited for this answer are denied without asking the pool.
    if (next !== undefined) this.denials.learn(this.#keyState.policy, 1, next, nowMs);
    return true;
  }

  /**
   * Notes that no answer came. What was kept may be spent until its lifetime ends. Units that the pool may have
   * granted are lost to this region until they expire.
   */
  failed(message: PoolMessage, nowMs: number): void {
    if (message !== this.#message) return;
    this.#message = undefined;
    this.#failedAtMs = nowMs;
  }

  /** Gives up all units: the pool has counted them as used, or freed them. */
  lose(): void {
    this.isHeld = false;
    for (const ruleState of this.#ruleStates) updateShare(this.#keyState, ruleState, { units: 0 });
  }

  /** Writes the holder's id into the key's accounts: they differ from those of a key without a share from now on. */
  #begin(): void {
    if (this.#hasBegun) return;
    this.#hasBegun = true;
    for (const ruleState of this.#ruleStates)
      updateShare(this.#keyState, ruleState, { holder: this.#holder });
  }
}

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
