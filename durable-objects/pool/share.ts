import { outstandingOf } from "../../core/accounts/account.ts";
import { randomId } from "../../core/clock.ts";
import type { Cost } from "../../core/policies/policy.ts";
import { Holder, type PendingRequest } from "../../core/reservations/holder.ts";
import { heldMs, type WantedUnits } from "../../core/reservations/sizing.ts";
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

/** After a failure no units are requested ahead of need for so long, in milliseconds. */
const PAUSE_MS = 250;

type ShareCall = PoolCall & { readonly holding: HolderMessage };

/** A call with the region's message. */
export type PoolMessage = PendingRequest<ShareCall>;

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

/**
 * A region's object as the holder of units of one key's pool. The units are in the key's accounts (share-algorithm.ts),
 * where isolates and leases hold units of them. The pool's side is redis/lua/holders.ts.
 */
export class Share extends Holder<ShareCall> {
  /** The object had slots before it left memory, and the pool has not answered it since. */
  isUnknown: boolean;
  /** Other regions want units too. */
  isContended = false;
  readonly #keyState: KeyState;
  readonly #ruleStates: KeyState["ruleStates"];
  /** By rule: the most units that were leased at one time since the last message. */
  #peak: readonly number[];
  #hasBegun = false;
  #isFresh = true;
  #seen: PoolMark | undefined;
  /** When slots were last requested or leased. */
  #busyAtMs = -Infinity;
  #failedAtMs = -Infinity;

  constructor(keyState: KeyState, nowMs: number) {
    const { policy, ruleStates } = keyState;
    const stored = ruleStates.map((each) => stateOf(each).holder).find((holder) => holder !== "");
    // Two objects must never be the same holder, also when two deployments use one region name: so an id is added.
    super(policy, stored ?? `${policy.region?.name ?? ""}.${randomId()}`, nowMs);
    this.#keyState = keyState;
    this.#ruleStates = ruleStates;
    this.#peak = ruleStates.map(() => 0);
    this.isUnknown = stored !== undefined;
  }

  /** Whether the key has so many calls that the region should hold units, for its callers or for an isolate. */
  override get isHot(): boolean {
    return super.isHot || this.#keyState.holders.size > 0;
  }

  /** Whether a lease is in every slot. Then there is nothing to do until one of them ends. */
  get isAtRest(): boolean {
    return this.#keyState.policy.lease !== undefined && idleSlots(this.#keyState) === 0;
  }

  /** From now on the key stays in memory, since the share remembers its demand and its denials. A peek is not noted. */
  override note(cost: Cost, nowMs: number): void {
    this.#identify();
    super.note(cost, nowMs);
  }

  /** Notes how many units are leased, after a lease was granted. */
  noteLeases(nowMs: number): void {
    this.#busyAtMs = nowMs;
    this.#peak = this.#leased().map((units, index) => Math.max(this.#peak[index] ?? 0, units));
  }

  override needsRefill(nowMs: number): boolean {
    return nowMs >= this.#failedAtMs + PAUSE_MS && super.needsRefill(nowMs);
  }

  /** Whether the region has units that may not be spent any more, or slots that have been idle for too long. */
  isOver(nowMs: number): boolean {
    const { lease } = this.#keyState.policy;
    const endsAtMs = lease === undefined ? this.spendableUntilMs : this.#busyAtMs + IDLE_SLOT_MS;
    return this.isHeld && nowMs >= endsAtMs && this.messageAt(nowMs) === undefined && !this.isAtRest;
  }

  /** Makes the message that goes with a call. From here on only units that the message keeps may be spent. */
  ask(call: Omit<PoolCall, "holding">, request: ShareRequest, nowMs: number): PoolMessage {
    this.#identify();
    const { policy, claims } = this.#keyState;
    const wanted = this.#want(request, nowMs);
    // A call with a cost gives all free units back, so that the pool decides on everything there is.
    const isFor = call.cost.some((units) => units > 0);
    const kept = this.#ruleStates.map((ruleState, index) =>
      keepUnits(this.#keyState, ruleState, isFor ? 0 : (wanted.units[index] ?? 0), nowMs),
    );
    // Higher than every turn from before a crash, unless the clock was put back. Then the pool answers which turn it
    // knows (`overtakenBy`), and the next message goes on from there.
    this.turn = Math.max(this.turn + 1, nowMs * 1_000);
    const holding = {
      holder: this.holder,
      turn: this.turn,
      isFresh: this.#isFresh,
      ...(this.#seen !== undefined && { seen: this.#seen }),
      used: this.#ruleStates.map((ruleState) => stateOf(ruleState).used),
      kept,
      wanted: wanted.units,
      isShort: wanted.isShort,
      ...lifetimesOf(this.#keyState, wanted.ttlMs, request.leaseTtlMs ?? 0, nowMs),
      mostHeldMs: slotMs(policy.lease?.maxTtlMs ?? 0),
      leases: [...claims.values()].filter(({ kind }) => kind === "lease").length,
      queueLength: request.queueLength ?? 0,
    };
    return this.send({ ...call, holding }, wanted, nowMs);
  }

  /**
   * Adds what was granted and, where units are leased, a cost that was admitted. Only the answer to the last message
   * counts.
   *
   * @returns whether this answer counted
   */
  answered(message: PoolMessage, { rules = [], granted, next }: PoolAnswer, nowMs: number): boolean {
    if (!this.ended(message) || granted === undefined) return false;
    this.isContended = granted.isContended;
    if (granted.overtakenBy !== undefined) {
      this.turn = granted.overtakenBy;
      return false;
    }
    const { call, sentAtMs } = message;
    const { holding } = call;
    this.#isFresh = false;
    this.isUnknown = false;
    this.#seen = granted.mark;
    const isLeased = this.#keyState.policy.lease !== undefined && call.op === "limit";
    const isAdded = isLeased && call.request === undefined && rules.every(({ success }) => success);
    for (const [index, ruleState] of this.#ruleStates.entries()) {
      const units = (granted.units[index] ?? 0) + (isAdded ? (call.cost[index] ?? 0) : 0);
      addUnits(this.#keyState, ruleState, units, granted, holding.used[index] ?? 0, sentAtMs);
      const { retryAfterMs = 0, resetAfterMs = 0 } = next?.[index] ?? rules[index] ?? {};
      // The pool has decided, and then it has granted.
      const left = Math.max(0, (rules[index]?.remaining ?? 0) - (granted.units[index] ?? 0));
      const [retryAtMs, wholeAtMs] = [nowMs + (retryAfterMs ?? 0), nowMs + resetAfterMs];
      updateShare(this.#keyState, ruleState, { left, retryAtMs, wholeAtMs });
    }
    this.begin(message, granted.ttlMs);
    this.#busyAtMs = Math.max(this.#busyAtMs, sentAtMs);
    const isLonger = granted.ttlMs > holding.shortest.ttlMs;
    const endsByMs = sentAtMs + (isLonger ? holding.lifetime : holding.shortest).heldMs;
    // Kept units stay apart for as long as any earlier answer promised.
    const isKept = !granted.isNew && holding.kept.some((units) => units > 0);
    this.#keyState.endsByMs = isKept ? Math.max(endsByMs, this.#keyState.endsByMs) : endsByMs;
    this.isHeld = this.#ruleStates.some((ruleState) => stateOf(ruleState).units > 0);
    if (granted.units.some((units) => units > 0)) this.denials.forget();
    // With `next` nothing is left. Calls that waited for this answer are denied without asking the pool.
    if (next !== undefined) this.denials.learn(this.policy, 1, next, nowMs);
    return true;
  }

  /** No answer came. What was kept may be spent until its lifetime ends; granted units are lost until they expire. */
  failed(message: PoolMessage, nowMs: number): void {
    if (this.ended(message)) this.#failedAtMs = nowMs;
  }

  /** Gives up all units: the pool has counted them as used, or freed them. */
  lose(): void {
    this.isHeld = false;
    for (const ruleState of this.#ruleStates) updateShare(this.#keyState, ruleState, { units: 0 });
  }

  /** Slots are requested when callers want them, never ahead. */
  protected unitsLeft(index: number): number {
    const ruleState = this.#ruleStates[index];
    return ruleState === undefined || ruleState.rule.lease !== undefined ? Infinity : freeUnits(ruleState);
  }

  #leased(): number[] {
    return this.#ruleStates.map(({ account }) => outstandingOf(account));
  }

  /**
   * What to ask for now. Of rates: the demand of callers, and twice what isolates want, since isolates renew before
   * their units end. Of slots: as many as were in use lately. From here on demand is measured anew.
   */
  #want({ lending, isGivingBack, slots }: ShareRequest, nowMs: number): WantedUnits {
    const measured = this.want(nowMs);
    const { admits } = this.#keyState.policy.localDecisions;
    const lent = lentUnits(this.#keyState, nowMs, lending);
    const leased = this.#leased();
    const units = this.#ruleStates.map(({ rule }, index) => {
      const inUse = leased[index] ?? 0;
      if (isGivingBack === true) return 0;
      if (admits) return Math.min(rule.capacity, (measured.units[index] ?? 0) + 2 * (lent[index] ?? 0));
      if (rule.lease === undefined) return inUse;
      return Math.max(inUse + (slots?.[index] ?? 0), this.isContended ? 0 : (this.#peak[index] ?? 0));
    });
    this.#peak = leased;
    const low = measured.low.map((each, index) => Math.max(each, Math.floor((lent[index] ?? 0) / 2)));
    return { ...measured, units, low };
  }

  /** Writes the holder's id into the key's accounts: they differ from those of a key without a share from now on. */
  #identify(): void {
    if (this.#hasBegun) return;
    this.#hasBegun = true;
    for (const ruleState of this.#ruleStates) updateShare(this.#keyState, ruleState, { holder: this.holder });
  }
}

/**
 * The numbers of core/reservations/sizing.ts, one level up. Regions are few, and a message to a pool takes longer. So a
 * region may have a quarter of the capacity. That is also what one vanished region costs.
 */
export const POOL_SIZING: PoolSizing = {
  mostShare: 1 / 4,
  spareShare: 1 / 32,
  mostHolders: 1_000,
  rememberedMs: 5_000,
  fencingTokens: 100_000,
};

/** A region has units for so many times as long as its isolates, so that isolates need not wait for its messages. */
const AHEAD_OF_ISOLATES = 2;
/** Slots are held for so much longer than the leases in them, so that not every lease asks the pool. */
const SLOT_SLACK = 1.5;
const MIN_SLOT_SLACK_MS = 1_000;

/**
 * A slot in which no lease began for so long goes back. A shorter time would ask the pool more often, a longer one would
 * keep the slot from other regions.
 */
const IDLE_SLOT_MS = 250;

/** How long a slot is held for a lease of `leaseMs`, in milliseconds. */
function slotMs(leaseMs: number): number {
  return Math.ceil(Math.max(leaseMs * SLOT_SLACK, leaseMs + MIN_SLOT_SLACK_MS));
}

/**
 * How long a region wants units, in milliseconds.
 *
 * @param ttlMs the lifetime that the measured demand asks for
 * @param leaseTtlMs how long the lease that a caller waits for has to last; 0: no caller waits
 */
function lifetimesOf(
  { policy, claims }: KeyState,
  ttlMs: number,
  leaseTtlMs: number,
  nowMs: number,
): { readonly lifetime: PoolLifetime; readonly shortest: PoolLifetime } {
  const { lease, reservation } = policy;
  const ofRates = (ms: number) => ({ ttlMs: ms, heldMs: heldMs(ms) });
  if (lease === undefined)
    return {
      lifetime: ofRates(ttlMs + reservation.leastMs),
      shortest: ofRates(AHEAD_OF_ISOLATES * reservation.leastMs),
    };
  const lastMs = [...claims.values()].map(({ expiresAtMs }) => expiresAtMs - nowMs);
  const longestMs = slotMs(Math.max(leaseTtlMs, lease.ttlMs, ...lastMs));
  const slots = { ttlMs: longestMs, heldMs: longestMs };
  return { lifetime: slots, shortest: slots };
}
