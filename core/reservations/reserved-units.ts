import { type Cost, costOf, type PolicyView } from "../policies/policy.ts";
import { refillMs, spendableMs } from "./sizing.ts";

/** The units of a reservation, which may be spent for a while. Arrays have one number for each rule. */
export class ReservedUnits {
  readonly #policy: PolicyView;
  /** Units that are left; with so many left it is time to ask for more; units spent since the holder began. */
  #units: number[];
  #low: readonly number[];
  readonly #used: number[];
  #askedAtMs = -Infinity;
  #ttlMs = 0;

  constructor(policy: PolicyView) {
    this.#policy = policy;
    this.#units = policy.rules.map(() => 0);
    this.#low = this.#units.slice();
    this.#used = this.#units.slice();
  }

  /** Units that may be spent at `nowMs`, by rule. */
  at(nowMs: number): readonly number[] {
    return nowMs < this.endsAtMs ? this.#units : this.#units.map(() => 0);
  }

  /** Whether there are none, not even such as may not be spent any more. */
  get isEmpty(): boolean {
    return this.#units.every((units) => units === 0);
  }

  /** Units spent since the holder began, by rule. */
  get used(): readonly number[] {
    return this.#used;
  }

  /** The instant from which no unit may be spent any more. */
  get endsAtMs(): number {
    return this.#askedAtMs + spendableMs(this.#ttlMs);
  }

  /** The instant by which the units that were spent, and those that were not, have been settled with the object. */
  get settledAtMs(): number {
    return this.#askedAtMs + this.#ttlMs;
  }

  /** Whether few units or little time are left, so that more should be asked for. */
  isLow(nowMs: number): boolean {
    if (nowMs >= this.#askedAtMs + refillMs(this.#ttlMs)) return true;
    for (let index = 0; index < this.#units.length; index += 1)
      if ((this.#units[index] ?? 0) <= (this.#low[index] ?? 0)) return true;
    return false;
  }

  /** Takes a cost from the units; `false`: too few are left, and nothing is taken. */
  spend(cost: Cost, nowMs: number): boolean {
    const { rules } = this.#policy;
    if (nowMs >= this.endsAtMs) return false;
    if (!rules.every((rule, index) => costOf(rule, cost) <= (this.#units[index] ?? 0))) return false;
    // In place, and with no list of costs: this is what each call does.
    for (const [index, rule] of rules.entries()) {
      const units = costOf(rule, cost);
      this.#units[index] = (this.#units[index] ?? 0) - units;
      this.#used[index] = (this.#used[index] ?? 0) + units;
    }
    return true;
  }

  /** Keeps at most so many units. Returns whether any unit was given up. */
  keep(most: readonly number[]): boolean {
    const before = this.#units;
    this.#units = before.map((units, index) => Math.min(units, most[index] ?? 0));
    return this.#units.some((units, index) => units < (before[index] ?? 0));
  }

  /**
   * Adds granted units. All units may now be spent for a lifetime of `ttlMs`, which began at `askedAtMs`.
   *
   * @param low with so many units left, or with half of what there is now, it is time to ask for more
   */
  add(granted: readonly number[], askedAtMs: number, ttlMs: number, low: readonly number[]): void {
    this.#units = this.#units.map((units, index) => units + (granted[index] ?? 0));
    this.#low = low.map((units, index) => Math.min(units, Math.floor((this.#units[index] ?? 0) / 2)));
    this.#askedAtMs = askedAtMs;
    this.#ttlMs = ttlMs;
  }

  /** Gives up all units. */
  clear(): void {
    this.keep([]);
    this.#askedAtMs = -Infinity;
  }

  /** Sets the numbers of spent units. */
  recount(used: readonly number[]): void {
    this.#used.splice(0, Infinity, ...used);
  }
}
