import type { Policy } from "../policies/policy.ts";
import { costOf, type Cost } from "../protocol/cost.ts";
import { isHot, lifetimeMs, lowUnits, wantedUnits } from "./sizing.ts";

/** What to ask for. */
export interface Wanted {
  readonly ttlMs: number;
  /** By rule: units to have then, and the mark below which it is time to ask again. */
  readonly units: readonly number[];
  readonly low: readonly number[];
  /** Calls had to wait: there was less than was needed. */
  readonly isShort: boolean;
}

/** How much one key is asked for in one isolate. */
export class Demand {
  readonly #policy: Policy;
  /** Calls without a long pause, and, since the last time units were asked for, calls and by rule units. */
  #streak = 0;
  #asks = 0;
  #units: number[];
  #isShort = false;
  #sinceMs: number;
  #lastMs: number;

  constructor(policy: Policy, nowMs: number) {
    this.#policy = policy;
    this.#units = policy.rules.map(() => 0);
    this.#sinceMs = nowMs;
    this.#lastMs = nowMs;
  }

  get isHot(): boolean {
    return isHot(this.#streak);
  }

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

  /** What to ask for now; from here on it is measured anew. */
  want(nowMs: number): Wanted {
    const measured = { asks: this.#asks, units: this.#units, sinceMs: this.#sinceMs };
    const ttlMs = lifetimeMs(measured, nowMs, this.#policy.reservation);
    const units = wantedUnits(measured, nowMs, ttlMs);
    const low = units.map((each, index) => lowUnits(each, this.#units[index] ?? 0, nowMs - this.#sinceMs));
    const isShort = this.#isShort;
    this.#begin(nowMs);
    return { ttlMs, units, low, isShort };
  }

  #begin(nowMs: number): void {
    this.#isShort = false;
    this.#asks = 0;
    this.#units = this.#units.map(() => 0);
    this.#sinceMs = nowMs;
  }
}
