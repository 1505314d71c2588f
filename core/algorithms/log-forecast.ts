import type { Forecast, Uses } from "./forecast.ts";
import { search } from "./runs.ts";
import { countedAt, leavesAtMs, MOST_COUNTED, type UnitLog } from "./unit-log.ts";

/**
 * A sliding log that is played forward. Units that are used on the way come after all units of the log, so they are
 * kept beside it: the log is not copied.
 */
export class SlidingLogForecast implements Forecast {
  readonly #limit: number;
  readonly #windowMs: number;
  readonly #minIntervalMs: number;
  readonly #log: UnitLog | undefined;
  /** When the last call passed; -Infinity: the log is absent. */
  #lastMs: number;
  /** At least as many units as count now. */
  #most: number;
  /** Of each use: its instant, and all units used up to and including it. */
  readonly #usedAtMs: number[] = [];
  readonly #usedTo: number[] = [];
  /** The first use that still counts. */
  #first = 0;

  constructor(
    config: { readonly limit: number; readonly windowMs: number; readonly minIntervalMs: number },
    state: (UnitLog & { readonly lastMs: number }) | undefined,
  ) {
    this.#limit = config.limit;
    this.#windowMs = config.windowMs;
    this.#minIntervalMs = config.minIntervalMs;
    this.#log = state;
    this.#lastMs = state?.lastMs ?? -Infinity;
    this.#most = countedAt(state, config.windowMs, -Infinity);
  }

  debit({ endsMs, units }: Uses, from: number, to: number): void {
    for (let index = from; index < to; index += 1) this.#use(endsMs[index] ?? 0, units[index] ?? 0);
  }

  take(atMs: number, units: number): void {
    this.#use(atMs, units);
    this.#lastMs = Math.max(this.#lastMs, atMs);
  }

  passesAtMs(atMs: number, cost: number, outstanding: number): number {
    if (cost === 0) return atMs;
    if (cost + outstanding > this.#limit) return Infinity;
    const intervalMs = this.#minIntervalMs === 0 ? atMs : this.#lastMs + this.#minIntervalMs;
    const excess = this.#countedAt(atMs) + outstanding + cost - this.#limit;
    return Math.max(atMs, intervalMs, excess > 0 ? this.#leavesAtMs(atMs, excess) : atMs);
  }

  isCertain(_: number, outstanding: number): boolean {
    return this.#most + outstanding <= MOST_COUNTED;
  }

  #use(atMs: number, units: number): void {
    // A log counts no more than `MOST_COUNTED`; what is over that is cut off.
    const isNearMost = this.#most + units > MOST_COUNTED;
    const counted = isNearMost ? Math.min(units, MOST_COUNTED - this.#countedAt(atMs)) : units;
    this.#most += counted;
    this.#usedAtMs.push(Math.max(atMs, this.#log?.openMs ?? -Infinity));
    this.#usedTo.push(this.#usedBefore(this.#usedTo.length) + counted);
  }

  /** Units that count at `atMs`: units of the log, and units used on the way. */
  #countedAt(atMs: number): number {
    const used = this.#usedTo.length;
    this.#first = search(this.#first, used, (at) => (this.#usedAtMs[at] ?? 0) > atMs - this.#windowMs);
    return (
      countedAt(this.#log, this.#windowMs, atMs) + this.#usedBefore(used) - this.#usedBefore(this.#first)
    );
  }

  /** The instant at which the oldest `units` of those that count at `atMs` have left the window. */
  #leavesAtMs(atMs: number, units: number): number {
    const ofLog = countedAt(this.#log, this.#windowMs, atMs);
    if (this.#log !== undefined && units <= ofLog) return leavesAtMs(this.#log, this.#windowMs, atMs, units);
    const goneTo = this.#usedBefore(this.#first) + units - ofLog;
    const use = search(this.#first, this.#usedTo.length, (at) => (this.#usedTo[at] ?? 0) >= goneTo);
    return (this.#usedAtMs[use] ?? Infinity) + this.#windowMs;
  }

  /** Units of all uses before this one. */
  #usedBefore(index: number): number {
    return index === 0 ? 0 : (this.#usedTo[index - 1] ?? 0);
  }
}
