import type { PolicyView } from "../policies/policy.ts";
import { type Cost, costOf } from "../protocol/cost.ts";
import type { ReserveCall } from "../protocol/messages.ts";
import { FEW_UNITS, isHot, isWarm, lifetimeMs, lowUnits, wantedUnits } from "./sizing.ts";

/** What a holder asks for. Arrays have one number for each rule, in the policy's order. */
export interface WantedUnits {
  /** The lifetime of the units, in milliseconds. */
  readonly ttlMs: number;
  /** Units that the holder wants to have, those that it has already included. */
  readonly units: readonly number[];
  /** When so many units are left, or fewer, it is time to ask again. */
  readonly low: readonly number[];
  /** Calls had to wait, because there were too few units. */
  readonly isShort: boolean;
}

/** Measures how many calls and units one isolate needs of one key. */
export class Demand {
  readonly #policy: PolicyView;
  /** Calls since the last pause that was longer than the longest lifetime. */
  #streak = 0;
  /** Since `#sinceMs`, when units were asked for last: calls, and units by rule. */
  #asks = 0;
  #units: number[];
  #isShort = false;
  #sinceMs: number;
  #lastMs: number;

  constructor(policy: PolicyView, nowMs: number) {
    this.#policy = policy;
    this.#units = policy.rules.map(() => 0);
    this.#sinceMs = nowMs;
    this.#lastMs = nowMs;
  }

  /** Whether the key has enough calls to reserve units for it. */
  get isHot(): boolean {
    return isHot(this.#streak);
  }

  /**
   * Whether a few units should be reserved already for a key that is not hot: where one message gives units of many keys
   * back, and calls have been of one unit each, so that a few are sure to serve the next.
   */
  get isWarm(): boolean {
    const { objects, pool, reservation } = this.#policy;
    const isCheap = objects !== "per-key" && pool === undefined && reservation.mostMs > reservation.leastMs;
    return isCheap && isWarm(this.#streak) && this.#units.every((units) => units === this.#asks);
  }

  /** Counts a call. */
  note(cost: Cost, nowMs: number): void {
    const { rules, reservation } = this.#policy;
    if (nowMs - this.#lastMs > reservation.mostMs) {
      this.#streak = 0;
      this.#begin(nowMs);
    }
    this.#lastMs = nowMs;
    this.#streak += 1;
    this.#asks += 1;
    for (let index = 0; index < rules.length; index += 1) {
      const rule = rules[index];
      if (rule !== undefined) this.#units[index] = (this.#units[index] ?? 0) + costOf(rule, cost);
    }
  }

  /** Notes that a call has to wait for units. */
  miss(): void {
    this.#isShort = true;
  }

  /** What to ask for now. The measurement starts again. */
  want(nowMs: number): WantedUnits {
    if (!this.isHot && this.isWarm) return this.#wantFew(nowMs);
    const measured = { asks: this.#asks, units: this.#units, sinceMs: this.#sinceMs };
    const ttlMs = lifetimeMs(measured, nowMs, this.#policy.reservation);
    const units = wantedUnits(measured, nowMs, ttlMs);
    const low = units.map((each, index) => lowUnits(each, this.#units[index] ?? 0, nowMs - this.#sinceMs));
    const isShort = this.#isShort;
    this.#begin(nowMs);
    return { ttlMs, units, low, isShort };
  }

  /** A few units for the longest lifetime. Where they cannot be spared for so long, the object grants none. */
  #wantFew(nowMs: number): WantedUnits {
    const { rules, reservation } = this.#policy;
    this.#begin(nowMs);
    const [units, low] = [rules.map(() => FEW_UNITS), rules.map(() => 0)];
    return { ttlMs: reservation.mostMs, units, low, isShort: false };
  }

  #begin(nowMs: number): void {
    this.#isShort = false;
    this.#asks = 0;
    this.#units = this.#units.map(() => 0);
    this.#sinceMs = nowMs;
  }
}

/** A message to the level beneath that has not been answered, and the units in it that waiting calls count on. */
export class PendingRequest<Call = ReserveCall> {
  readonly call: Call;
  readonly sentAtMs: number;
  readonly wanted: WantedUnits;
  /** By rule: units that are promised to calls. */
  readonly #promised: number[];

  constructor(call: Call, wanted: WantedUnits, sentAtMs: number) {
    this.call = call;
    this.wanted = wanted;
    this.sentAtMs = sentAtMs;
    this.#promised = wanted.units.map(() => 0);
  }

  /** Promises a call its units of those that the message wants; `false`: too few are left for this call. */
  promise({ rules }: PolicyView, cost: Cost): boolean {
    const after = rules.map((rule, index) => (this.#promised[index] ?? 0) + costOf(rule, cost));
    if (after.some((units, index) => units > (this.wanted.units[index] ?? 0))) return false;
    this.#promised.splice(0, after.length, ...after);
    return true;
  }
}
