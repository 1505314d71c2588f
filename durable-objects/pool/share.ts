import { outstandingOf } from "../../core/accounts/account.ts";
import { randomId } from "../../core/clock.ts";
import type { Cost, PolicyView } from "../../core/policies/policy.ts";
import { Holder, type UnansweredMessage } from "../../core/reservations/holder.ts";
import { FLOOD_MS, heldMs, type WantedUnits } from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { HolderMessage, PoolAnswer, PoolCall, PoolMark, PoolSizing, PoolWrites } from "./protocol.ts";
import {
  addUnits,
  freeUnits,
  idleSlots,
  isLogged,
  keepUnits,
  type LentShare,
  lentUnits,
  stateOf,
  updateShare,
} from "./share-algorithm.ts";

/** How long after a failure no units are requested ahead of need, in milliseconds. */
const PAUSE_MS = 250;

type ShareCall = PoolCall & { readonly holding: HolderMessage };

/** A call with the region's message. */
export type PoolMessage = UnansweredMessage<ShareCall>;

/** The region's requests in a message, beside its call. */
export interface ShareRequest {
  /** Units for a calling isolate. */
  readonly lending?: LentShare;
  /** How long the lease of a waiting caller has to last, in milliseconds. */
  readonly leaseTtlMs?: number;
  /** By rule: slots for waiting callers. */
  readonly slots?: readonly number[];
  readonly queueLength?: number;
  /** The region returns all spare units. */
  readonly isGivingBack?: boolean;
}

/** A region's object as the holder of a pool's units of one key. The pool's side is redis/lua/holders.ts. */
export class Share extends Holder<ShareCall> {
  /** The object had slots before it left memory, and has no answer of the pool since. */
  isUnknown: boolean;
  /** Other regions want units too. */
  isContended = false;
  readonly #keyState: KeyState;
  readonly #ruleStates: KeyState["ruleStates"];
  /** By rule: the most units leased at one time since the last message. */
  #peak: readonly number[];
  #hasBegun = false;
  #isFresh = true;
  #seen: PoolMark | undefined;
  #writes: PoolWrites = { atMs: 0, wholeMs: 0 };
  /** When slots were last requested or leased. */
  #busyAtMs = -Infinity;
  #failedAtMs = -Infinity;
  /** The pool reserves units for it by an earlier version of the policy: its next message returns them. */
  #isOutdated = false;
  #askedUnder: PolicyView | undefined;
  /** By rule: the used units that the last message reported. */
  #reported: readonly number[] = [];

  constructor(keyState: KeyState, nowMs: number) {
    const { policy, ruleStates } = keyState;
    const stored = ruleStates.map((each) => stateOf(each).holder).find((holder) => holder !== "");
    // Two objects must never be the same holder, even if deployments use one region name: so an id is added.
    super(policy, stored ?? `${policy.region?.name ?? ""}.${randomId()}`, nowMs);
    this.#keyState = keyState;
    this.#ruleStates = ruleStates;
    this.#peak = ruleStates.map(() => 0);
    this.isUnknown = stored !== undefined;
  }

  /** Whether the key has enough calls for the region to hold units, for callers or an isolate. */
  override get isHot(): boolean {
    return super.isHot || this.#keyState.holders.size > 0;
  }

  /** Whether every slot has a lease, so that there is nothing to do until one ends. */
  get isAtRest(): boolean {
    return !this.#isOutdated && this.#keyState.policy.lease !== undefined && idleSlots(this.#keyState) === 0;
  }

  /** Another version of the policy is in force, with rules of the same names. Spare units are not spent any more. */
  follow(policy: PolicyView): void {
    if (policy !== this.policy) {
      this.policy = policy;
      this.#isOutdated = true;
      this.denials.forget();
    }
    if (this.#isOutdated) this.#dropSpare();
  }

  #dropSpare(): void {
    for (const ruleState of this.#ruleStates) keepUnits(this.#keyState, ruleState, 0, Infinity);
  }

  /** The share's demand and denials keep the key in memory from now on. A peek is not noted. */
  override note(cost: Cost, nowMs: number): void {
    this.#identify();
    super.note(cost, nowMs);
  }

  /** The last known writes of the pool, for its next call: a pool without them has lost some. */
  get seenWrites(): NonNullable<PoolCall["seen"]> {
    return { ...this.#writes, mostHeldMs: slotMs(this.#keyState.policy.lease?.maxTtlMs ?? 0) };
  }

  /** Notes an answer's mark. The key stays in memory for it, unless the call was a peek. */
  noteWrites(mark: PoolAnswer["mark"], isPeek: boolean): void {
    if (mark === undefined || mark.atMs === 0) return;
    this.#writes = mark;
    if (!isPeek) this.#identify();
  }

  /** Notes the leased units after a grant. */
  noteLeases(nowMs: number): void {
    this.#busyAtMs = nowMs;
    this.#peak = this.#leased().map((units, index) => Math.max(this.#peak[index] ?? 0, units));
  }

  override needsRefill(nowMs: number): boolean {
    return nowMs >= this.#failedAtMs + PAUSE_MS && super.needsRefill(nowMs);
  }

  /**
   * Whether the pool should hear of used units now, since nothing is left and no call asks until later: a log counts
   * units from when it hears of them. Each such message reports at least half of the units that the region has.
   */
  hasNews(nowMs: number): boolean {
    if (this.messageAt(nowMs) !== undefined) return false;
    return this.#ruleStates.some((ruleState, index) => {
      const { used, retryAtMs } = stateOf(ruleState);
      const news = used - (this.#reported[index] ?? 0);
      const isLate = isLogged(ruleState.rule) && retryAtMs > nowMs + FLOOD_MS;
      return isLate && news > 0 && news >= outstandingOf(ruleState.account);
    });
  }

  /** Whether units may not be spent any more, or slots have been idle for too long. */
  isOver(nowMs: number): boolean {
    const { lease } = this.#keyState.policy;
    const endsAtMs = lease === undefined ? this.spendableUntilMs : this.#busyAtMs + IDLE_SLOT_MS;
    const isDue = this.#isOutdated || nowMs >= endsAtMs;
    return this.isHeld && isDue && this.messageAt(nowMs) === undefined && !this.isAtRest;
  }

  /** Makes a call's message. From now on only units that the message keeps may be spent. */
  ask(call: Omit<PoolCall, "holding">, request: ShareRequest, nowMs: number): PoolMessage {
    this.#identify();
    const { policy, claims } = this.#keyState;
    this.#askedUnder = policy;
    const wanted = this.#want(this.#isOutdated ? { ...request, isGivingBack: true } : request, nowMs);
    // A call with a cost returns all free units, so the pool decides with all units.
    const isFor = call.cost.some((units) => units > 0);
    const kept = this.#ruleStates.map((ruleState, index) =>
      keepUnits(this.#keyState, ruleState, isFor ? 0 : (wanted.units[index] ?? 0), nowMs),
    );
    // Higher than every turn before a crash, unless the clock was set back. Then the pool answers with the
    // turn it knows (`overtakenBy`), and the next message continues from there.
    this.turn = Math.max(this.turn + 1, nowMs * 1_000);
    this.#reported = this.#ruleStates.map((ruleState) => stateOf(ruleState).used);
    const holding = {
      holder: this.holder,
      turn: this.turn,
      isFresh: this.#isFresh,
      ...(this.#seen !== undefined && { seen: this.#seen }),
      used: this.#reported,
      kept,
      wanted: wanted.units,
      isShort: wanted.isShort,
      ...lifetimesOf(this.#keyState, wanted.ttlMs, request.leaseTtlMs ?? 0, nowMs),
      mostHeldMs: this.seenWrites.mostHeldMs,
      leases: [...claims.values()].filter(({ kind }) => kind === "lease").length,
      queueLength: request.queueLength ?? 0,
    };
    return this.send({ ...call, holding }, wanted, nowMs);
  }

  /** Adds the grant and an admitted cost of slots. Returns false for any but the last message's answer. */
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
    this.#isOutdated &&= this.#askedUnder !== this.policy;
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
      const surplus = granted.surplus?.[index] ?? 0;
      updateShare(this.#keyState, ruleState, { left, retryAtMs, wholeAtMs, surplus });
    }
    this.begin(message, granted.ttlMs);
    this.#busyAtMs = Math.max(this.#busyAtMs, sentAtMs);
    const isLonger = granted.ttlMs > holding.shortest.ttlMs;
    const endsByMs = sentAtMs + (isLonger ? holding.lifetime : holding.shortest).heldMs;
    // Kept units stay held for as long as any earlier answer promised.
    const isKept = !granted.isNew && holding.kept.some((units) => units > 0);
    this.#keyState.endsByMs = isKept ? Math.max(endsByMs, this.#keyState.endsByMs) : endsByMs;
    this.isHeld = this.#ruleStates.some((ruleState) => stateOf(ruleState).units > 0);
    if (this.#isOutdated) this.#dropSpare();
    if (granted.units.some((units) => units > 0)) this.denials.forget();
    // With `next` nothing is left: calls that waited for this answer are denied without the pool.
    if (next !== undefined) this.denials.learn(this.policy, 1, next, nowMs);
    return true;
  }

  /** No answer: kept units last until their lifetime ends; granted ones are lost until they expire. */
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

  /** Of rates: callers' demand, and twice what isolates want, since they renew early. Of slots: recent use. */
  #want({ lending, isGivingBack, slots }: ShareRequest, nowMs: number): WantedUnits {
    const measured = this.want(nowMs);
    const { admits } = this.#keyState.policy.localDecisions;
    const lent = lentUnits(this.#keyState, nowMs, lending);
    const leased = this.#leased();
    const units = this.#ruleStates.map((ruleState, index) => {
      const { rule } = ruleState;
      const inUse = leased[index] ?? 0;
      if (isGivingBack === true) return 0;
      if (admits) return Math.min(rule.capacity, (measured.units[index] ?? 0) + 2 * (lent[index] ?? 0));
      if (rule.lease === undefined) return inUse;
      const isReturning = this.isContended || stateOf(ruleState).surplus > 0;
      return Math.max(inUse + (slots?.[index] ?? 0), isReturning ? 0 : (this.#peak[index] ?? 0));
    });
    this.#peak = leased;
    const low = measured.low.map((each, index) => Math.max(each, Math.floor((lent[index] ?? 0) / 2)));
    return { ...measured, units, low };
  }

  /** Writes the holder's id into the accounts: the key differs from one without a share from now on. */
  #identify(): void {
    if (this.#hasBegun) return;
    this.#hasBegun = true;
    for (const ruleState of this.#ruleStates) updateShare(this.#keyState, ruleState, { holder: this.holder });
  }
}

/** As core/reservations/sizing.ts, for few regions with slow messages. If one vanishes, its share is lost. */
export const POOL_SIZING: PoolSizing = {
  mostShare: 1 / 4,
  spareShare: 1 / 32,
  mostHolders: 1_000,
  rememberedMs: 5_000,
  fencingTokens: 100_000,
};

/** A region has units for this many times as long as its isolates: they need not wait for its messages. */
const AHEAD_OF_ISOLATES = 2;
/** Slots are held for this many times as long as their leases, so that not every lease calls the pool. */
const SLOT_SLACK = 1.5;
const MIN_SLOT_SLACK_MS = 1_000;

/** A slot without a new lease for this long is returned. Less calls the pool more, more delays others. */
const IDLE_SLOT_MS = 250;

/** How long a slot is held for a lease of `leaseMs`, in milliseconds. */
function slotMs(leaseMs: number): number {
  return Math.ceil(Math.max(leaseMs * SLOT_SLACK, leaseMs + MIN_SLOT_SLACK_MS));
}

/** How long a region wants units, for the measured demand. `leaseTtlMs`: of a waiting caller; 0: none. */
function lifetimesOf({ policy, claims }: KeyState, ttlMs: number, leaseTtlMs: number, nowMs: number) {
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
