import { type Cost, costOf, isCuttable, type PolicyView, type RuleView } from "../policies/policy.ts";
import { Denials } from "./knowledge.ts";
import {
  FEW_UNITS,
  HOT_CALLS,
  lifetimeMs,
  lowUnits,
  RecentDemand,
  REQUEST_WAIT_MS,
  refillMs,
  spendableMs,
  WARM_CALLS,
  type WantedUnits,
  wantedUnits,
} from "./sizing.ts";

/** From this round trip on a holder is far: nearer ones are served as fast with units alone. */
const FAR_MS = 20;
const TRIP_GROWTH = 9 / 8;
/** A holder gets a bucket after answers for so many of the shortest lifetimes: if it dies soon, the bucket is lost. */
const KNOWN_AFTER_LIFETIMES = 2;

/**
 * Holds units of the level beneath and spends them without a message: an isolate or process those of an object
 * (reservation.ts), a region those of a pool (durable-objects/pool/share.ts). An isolate keeps its units as numbers, a
 * region in accounts, from which isolates and leases hold units in turn.
 *
 * Why no unit is spent twice, whatever happens to messages: the level beneath keeps all units of the holder apart
 * until the holder reports otherwise or their lifetime ends. The holder's lifetime begins before it sends its message,
 * and ends earlier. Every message has the units used since the holder began, and the units it keeps, so the next
 * message makes up for a lost one. From then on the holder spends only what it keeps. Only the answer to the last
 * message counts: the holder never spends what an earlier answer granted.
 *
 * Plain state, no I/O: client/local-limiter.ts and durable-objects/pool/session.ts send the messages.
 */
export abstract class Holder<Call> {
  policy: PolicyView;
  readonly holder: string;
  readonly denials = new Denials();
  /** The level beneath may keep units apart for this holder. */
  isHeld = false;
  protected turn = 0;
  protected message: UnansweredMessage<Call> | undefined;
  /** From this instant on no unit may be spent; all are settled by then. */
  protected spendableUntilMs = -Infinity;
  protected settledAtMs = -Infinity;
  #refillAtMs = -Infinity;
  /** Messages in a row that have had no answer in time, and since when. */
  missedAnswers = 0;
  silentSinceMs = Infinity;
  /** The smoothed round trip of its messages. */
  protected tripMs = 0;
  /** Also the shortest of its round trips is long: on a busy machine, or where an object starts cold, only some are. */
  protected isFar = false;
  #firstAnswerMs = Infinity;
  /** Of its last round trips the shortest. Each longer one makes it an eighth longer at most. */
  #shortestTripMs = 0;
  #lastAnswerMs = -Infinity;
  /** By rule: the remaining units at which to request more. */
  #low: readonly number[];
  /** Calls since the last pause that was longer than the longest lifetime. */
  #streak = 0;
  #calls = 0;
  #demand: number[];
  #isShort = false;
  #sinceMs: number;
  #lastMs: number;
  protected readonly recentDemand = new RecentDemand();

  constructor(policy: PolicyView, holder: string, nowMs: number) {
    this.policy = policy;
    this.holder = holder;
    this.#low = policy.rules.map(() => 0);
    this.#demand = this.#low.slice();
    this.#sinceMs = nowMs;
    this.#lastMs = nowMs;
  }

  /** Units of a rule that are held and neither spent nor lent, also after their lifetime. */
  protected abstract unitsLeft(index: number): number;

  /** Whether the key has enough calls to reserve units for it. */
  get isHot(): boolean {
    return this.#streak >= HOT_CALLS;
  }

  /** Whether a few units serve a key that is not hot: calls are of one unit, and returns share messages. */
  protected get isWarm(): boolean {
    const { objects, pool, reservation } = this.policy;
    const isCheap = objects !== "per-key" && pool === undefined && reservation.mostMs > reservation.leastMs;
    return isCheap && this.#streak >= WARM_CALLS && this.#demand.every((units) => units === this.#calls);
  }

  /** Whether the object can cut its rules into buckets of holders. */
  get canHaveBuckets(): boolean {
    const { pool, rules, localDecisions } = this.policy;
    return localDecisions.admits && pool === undefined && rules.every(isCuttable);
  }

  /** Counts a call, once, before it is decided. */
  note(cost: Cost, nowMs: number): void {
    const { rules, reservation } = this.policy;
    if (nowMs - this.#lastMs > reservation.mostMs) {
      this.#streak = 0;
      this.#measureFrom(nowMs);
    }
    this.#lastMs = nowMs;
    this.#streak += 1;
    this.#calls += 1;
    for (let index = 0; index < rules.length; index += 1)
      this.#demand[index] = (this.#demand[index] ?? 0) + costOf(rules[index] as RuleView, cost);
  }

  miss(): void {
    this.#isShort = true;
  }

  /** @param isWorthUnits otherwise it says only what its calls need */
  protected want(nowMs: number, isWorthUnits = true): WantedUnits {
    const { rules, reservation } = this.policy;
    const measured = { calls: this.#calls, units: this.#demand, sinceMs: this.#sinceMs };
    const isShort = this.#isShort;
    const areFew = this.#streak < HOT_CALLS && this.isWarm;
    this.#measureFrom(nowMs);
    // Without this many spare units for this lifetime, the object grants none.
    if (areFew || !isWorthUnits) {
      const units = rules.map(() => (areFew ? FEW_UNITS : 0));
      return { ttlMs: reservation.mostMs, units, low: rules.map(() => 0), isShort: false };
    }
    const ttlMs = lifetimeMs(measured, nowMs, reservation, this.tripMs);
    const units = wantedUnits(measured, nowMs, ttlMs);
    const elapsedMs = nowMs - measured.sinceMs;
    const low = units.map((each, index) =>
      lowUnits(each, measured.units[index] ?? 0, elapsedMs, this.tripMs),
    );
    return { ttlMs, units, low, isShort };
  }

  #measureFrom(nowMs: number): void {
    this.recentDemand.add(this.#calls, this.#demand, Math.max(0, nowMs - this.#sinceMs));
    this.#isShort = false;
    this.#calls = 0;
    this.#demand = this.#demand.map(() => 0);
    this.#sinceMs = nowMs;
  }

  /** How long an answer to its message is waited for. */
  get messageMs(): number {
    return this.policy.deadlineMs;
  }

  /** How long calls wait for units that are late: as long as messages take, or at first as the deadline allows. */
  get lateMs(): number {
    const { deadlineMs } = this.policy;
    return this.isAnswered ? Math.min(deadlineMs, 2 * this.tripMs + REQUEST_WAIT_MS) : deadlineMs;
  }

  /** The unanswered message that is waited for. */
  messageAt(nowMs: number): UnansweredMessage<Call> | undefined {
    const { message } = this;
    return message !== undefined && nowMs < message.sentAtMs + this.messageMs ? message : undefined;
  }

  /** Whether to request more units now, before a call has to wait. */
  needsRefill(nowMs: number): boolean {
    if (!this.isHeld || this.messageAt(nowMs) !== undefined) return false;
    if (nowMs >= this.#refillAtMs) return true;
    return this.#low.some((units, index) => this.unitsLeft(index) <= units);
  }

  /** A message whose units live from `sentAtMs` on. From now on only the answer to it counts. */
  protected send(call: Call, wanted: WantedUnits, sentAtMs: number): UnansweredMessage<Call> {
    this.isHeld = true;
    return (this.message = new UnansweredMessage(call, wanted, sentAtMs));
  }

  protected ended(message: UnansweredMessage<Call> | undefined): boolean {
    if (message !== this.message) return false;
    this.message = undefined;
    return true;
  }

  get isAnswered(): boolean {
    return this.#lastAnswerMs > -Infinity;
  }

  protected isKnownAt(nowMs: number): boolean {
    return nowMs >= this.#firstAnswerMs + KNOWN_AFTER_LIFETIMES * this.policy.reservation.leastMs;
  }

  /** The level beneath answers. */
  protected heard(): void {
    this.missedAnswers = 0;
    this.silentSinceMs = Infinity;
  }

  /** Another one is asked, which has not answered yet. */
  protected restart(): void {
    this.heard();
    this.#lastAnswerMs = -Infinity;
  }

  /** Each answered message is measured. @param isNearby an isolate has answered it: that says nothing of the object */
  measureTrip(sentAtMs: number, nowMs: number, isNearby = false): void {
    this.#firstAnswerMs = Math.min(this.#firstAnswerMs, nowMs);
    if (isNearby) return;
    const tookMs = Math.max(0, nowMs - sentAtMs);
    this.tripMs = this.tripMs === 0 ? tookMs : this.tripMs + (tookMs - this.tripMs) / 4;
    // What was under way together may have waited for the same.
    if (sentAtMs < this.#lastAnswerMs) return;
    const before = this.#shortestTripMs;
    this.#shortestTripMs = this.isAnswered ? Math.min(tookMs, 1 + before * TRIP_GROWTH) : tookMs;
    this.isFar = this.isAnswered && this.#shortestTripMs >= (this.policy.farMs ?? FAR_MS);
    this.#lastAnswerMs = nowMs;
  }

  /**
   * All remaining units may be spent for a lifetime of `ttlMs` since the message was sent.
   * @param renewAtMs when the next message is sent at the latest
   */
  protected begin(
    { sentAtMs, wanted }: UnansweredMessage<Call>,
    ttlMs: number,
    renewAtMs = sentAtMs + refillMs(ttlMs),
    hasRate = false,
  ): void {
    this.spendableUntilMs = sentAtMs + spendableMs(ttlMs);
    this.settledAtMs = sentAtMs + ttlMs;
    this.#refillAtMs = renewAtMs;
    // Who gets units at a rate is not short of them when they are few.
    this.#low = wanted.low.map((units, index) =>
      hasRate ? -1 : Math.min(units, Math.floor(this.unitsLeft(index) / 2)),
    );
  }
}

/** An unanswered message, and its units that are promised to waiting calls. */
export class UnansweredMessage<Call> {
  readonly call: Call;
  readonly sentAtMs: number;
  readonly wanted: WantedUnits;
  #promised: readonly number[] = [];
  /** How many calls have asked by themselves meanwhile. */
  alone = 0;

  constructor(call: Call, wanted: WantedUnits, sentAtMs: number) {
    this.call = call;
    this.wanted = wanted;
    this.sentAtMs = sentAtMs;
  }

  /** Promises a call its units of the requested ones; `false`: too few remain. */
  promise({ rules }: PolicyView, cost: Cost): boolean {
    const after = rules.map((rule, index) => (this.#promised[index] ?? 0) + costOf(rule, cost));
    if (after.some((units, index) => units > (this.wanted.units[index] ?? 0))) return false;
    this.#promised = after;
    return true;
  }
}
