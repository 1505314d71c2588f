import { randomId } from "../../core/clock.ts";
import { Denials } from "../../core/reservations/denials.ts";
import { PendingRequest } from "../../core/reservations/pending-request.ts";
import { refillMs, spendableMs } from "../../core/reservations/sizing.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Holding, Mark, PoolAnswer, PoolCall } from "./protocol.ts";
import { ShareDemand, type Asking } from "./share-demand.ts";
import { IDLE_SLOT_MS, lifetimesOf, slotMs } from "./share-sizing.ts";
import { addUnits, freeUnits, idleSlots, keepUnits, stateOf, updateShare } from "./share-units.ts";

/** After a failure nothing is asked for ahead of need for so long. */
const PAUSE_MS = 250;

export type PoolMessage = PendingRequest<PoolCall & { readonly holding: Holding }>;

/**
 * What the object of one region knows of one key's pool: how much of it is here, what it has been denied, and how much it
 * is asked for. The units themselves are in the entry's accounts (shares.ts). The other side is the script's `holding`;
 * why no unit is spent twice is what reservation.ts says of isolates, one level up.
 *
 * Plain state, no I/O: regional.ts sends the messages.
 */
export class Share {
  readonly demand: ShareDemand;
  readonly denials = new Denials();
  /** The pool may have units apart for this region. */
  isHeld = false;
  /** It had slots before it left memory, and has not spoken to the pool since. */
  isUnknown: boolean;
  /** Other regions want units too. */
  isContended = false;
  readonly #keyState: KeyState;
  readonly #ruleStates: KeyState["ruleStates"];
  readonly #holder: string;
  #turn = 0;
  #isFresh = true;
  #seen: Mark | undefined;
  #message: PoolMessage | undefined;
  /** By rule: units below which it is time to ask for more. */
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
    // Two objects must never be the same holder, wherever they run and whatever they call their region.
    this.#holder = stored ?? `${keyState.policy.region?.name ?? ""}.${randomId()}`;
    for (const ruleState of this.#ruleStates) updateShare(keyState, ruleState, { holder: this.#holder });
    this.isUnknown = stored !== undefined;
  }

  /** The message that has not been answered yet, if there is one and an answer may still come. */
  messageAt(nowMs: number): PoolMessage | undefined {
    const message = this.#message;
    const isDue = message !== undefined && nowMs < message.sentAtMs + this.#keyState.policy.deadlineMs;
    return isDue ? message : undefined;
  }

  /** Whether it is time to ask for more, so that nobody has to wait. */
  needsRefill(nowMs: number): boolean {
    if (!this.isHeld || this.messageAt(nowMs) !== undefined) return false;
    if (nowMs < this.#failedAtMs + PAUSE_MS) return false;
    const isLow = this.#ruleStates.some(
      (ruleState, index) =>
        ruleState.rule.lease === undefined && freeUnits(ruleState) <= (this.#low[index] ?? 0),
    );
    return isLow || nowMs >= this.#askedAtMs + refillMs(this.#ttlMs);
  }

  /** Whether units are here that nobody spends, or may spend, any more. */
  isOver(nowMs: number): boolean {
    const { lease } = this.#keyState.policy;
    const endsAtMs =
      lease === undefined
        ? this.#askedAtMs + spendableMs(this.#ttlMs)
        : Math.max(this.#askedAtMs, this.demand.leasedAtMs) + IDLE_SLOT_MS;
    return this.isHeld && nowMs >= endsAtMs && this.messageAt(nowMs) === undefined && !this.isAtRest;
  }

  /** Whether leases are in all its slots, so that there is nothing to do until one of them ends. */
  get isAtRest(): boolean {
    return this.#keyState.policy.lease !== undefined && idleSlots(this.#keyState) === 0;
  }

  /** Makes the message that goes with a call. What is not kept may not be spent from here on. */
  ask(call: Omit<PoolCall, "holding">, asking: Asking, nowMs: number): PoolMessage {
    const { policy, claims } = this.#keyState;
    const ruleStates = this.#ruleStates;
    const wanted = this.demand.want(asking, this.isContended, nowMs);
    // With a cost all that is free goes home, so that the pool decides on everything there is.
    const isFor = call.cost.some((units) => units > 0);
    const kept = ruleStates.map((ruleState, index) =>
      keepUnits(this.#keyState, ruleState, isFor ? 0 : (wanted.units[index] ?? 0), nowMs),
    );
    // Higher than any turn of before a crash, unless the clock was put back: then the pool says how far it was.
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
   * Takes over what was granted, and, where units are leased, a cost that was admitted. Only the answer to the last message
   * counts.
   *
   * @returns whether it did
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
      updateShare(this.#keyState, ruleState, {
        retryAtMs: nowMs + (retryAfterMs ?? 0),
        wholeAtMs: nowMs + resetAfterMs,
      });
    }
    this.#low = ruleStates.map((ruleState, index) =>
      Math.min(wanted.low[index] ?? 0, Math.floor(freeUnits(ruleState) / 2)),
    );
    this.#askedAtMs = sentAtMs;
    this.#ttlMs = granted.ttlMs;
    const { lifetime, shortest } = call.holding;
    const endsByMs = sentAtMs + (granted.ttlMs > shortest.ttlMs ? lifetime : shortest).heldMs;
    // When nothing was kept, nothing is left of what the pool had promised before.
    const isKept = !granted.isNew && call.holding.kept.some((units) => units > 0);
    this.#keyState.boundBy(isKept ? Math.max(endsByMs, this.#keyState.endsByMs) : endsByMs);
    this.isHeld = ruleStates.some((ruleState) => stateOf(ruleState).units > 0);
    if (granted.units.some((units) => units > 0)) this.denials.forget();
    // Nothing is left for those who waited for this answer: they need not ask.
    if (next !== undefined) this.denials.learn(this.#keyState.policy, 1, next, nowMs);
    return true;
  }

  /** No answer came. What was kept may be spent until its lifetime ends; what was granted is lost to this side. */
  failed(message: PoolMessage, nowMs: number): void {
    if (message !== this.#message) return;
    this.#message = undefined;
    this.#failedAtMs = nowMs;
  }

  /** The pool has counted everything as used, or freed it. */
  lose(): void {
    this.isHeld = false;
    for (const ruleState of this.#ruleStates) updateShare(this.#keyState, ruleState, { units: 0 });
  }
}
