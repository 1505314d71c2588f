import type { Policy } from "../policies/policy.ts";
import { costOf, type Cost } from "../protocol/cost.ts";
import { refillMs, spendableMs } from "./sizing.ts";

/** Units of every rule of a policy that may be spent for a while. */
export class ReservedUnits {
  readonly #policy: Policy;
  /** By rule: units that are left, those below which more are needed, and units spent since the holder began. */
  #units: readonly number[];
  #low: readonly number[];
  #used: readonly number[];
  #askedAtMs = -Infinity;
  #ttlMs = 0;

  constructor(policy: Policy) {
    this.#policy = policy;
    this.#units = policy.rules.map(() => 0);
    this.#low = this.#units;
    this.#used = this.#units;
  }

  /** By rule: units that may be spent. */
  at(nowMs: number): readonly number[] {
    return nowMs < this.endsAtMs ? this.#units : this.#units.map(() => 0);
  }

  get used(): readonly number[] {
    return this.#used;
  }

  /** The instant from which nothing may be spent any more. */
  get endsAtMs(): number {
    return this.#askedAtMs + spendableMs(this.#ttlMs);
  }

  /** Whether few units are left, or little time. */
  isLow(nowMs: number): boolean {
    const isOld = nowMs >= this.#askedAtMs + refillMs(this.#ttlMs);
    return isOld || this.#units.some((units, index) => units <= (this.#low[index] ?? 0));
  }

  /** Takes a cost; `false`: there is not so much. */
  spend(cost: Cost, nowMs: number): boolean {
    const costs = this.#policy.rules.map((rule) => costOf(rule, cost));
    if (nowMs >= this.endsAtMs || costs.some((units, index) => units > (this.#units[index] ?? 0)))
      return false;
    this.#units = this.#units.map((units, index) => units - (costs[index] ?? 0));
    this.#used = this.#used.map((units, index) => units + (costs[index] ?? 0));
    return true;
  }

  /** Keeps at most so many. Returns whether any were given up. */
  keep(most: readonly number[]): boolean {
    const before = this.#units;
    this.#units = before.map((units, index) => Math.min(units, most[index] ?? 0));
    return this.#units.some((units, index) => units < (before[index] ?? 0));
  }

  /**
   * Adds what was granted for `ttlMs` from when it was asked for. Below `low` more are needed, or when half are left.
   */
  add(granted: readonly number[], askedAtMs: number, ttlMs: number, low: readonly number[]): void {
    this.#units = this.#units.map((units, index) => units + (granted[index] ?? 0));
    this.#low = low.map((units, index) => Math.min(units, Math.floor((this.#units[index] ?? 0) / 2)));
    this.#askedAtMs = askedAtMs;
    this.#ttlMs = ttlMs;
  }

  /** None are left. */
  clear(): void {
    this.keep([]);
    this.#askedAtMs = -Infinity;
  }

  /** What was spent since is not counted. */
  recount(used: readonly number[]): void {
    this.#used = used;
  }
}
