/** The oracle of the sliding log: every unit is an entry in a list. Slow, and too simple to be wrong. */
import type { SlidingLogConfig } from "../../core/algorithms/log/sliding-log.ts";

export interface NaiveDecision {
  readonly allowed: boolean;
  readonly reason: string;
  readonly remaining: number;
  /** `undefined`: calls may come at any distance. */
  readonly quotaRemaining: number | undefined;
  readonly retryAfterMs: number | null;
}

export class NaiveLog {
  readonly #config: SlidingLogConfig;
  /** When each unit was taken, oldest first. */
  #units: number[] = [];
  #lastMs = -Infinity;

  constructor(config: SlidingLogConfig) {
    this.#config = config;
  }

  decide(nowMs: number, cost: number): NaiveDecision {
    const { limit, countDenied, minIntervalMs } = this.#config;
    const allowed = cost === 0 || this.#passes(nowMs, cost);
    const reason = allowed ? "ok" : this.#reason(nowMs, cost);
    if (cost > 0 && (allowed || (countDenied && cost <= limit))) {
      this.debit(nowMs, cost);
      this.#lastMs = nowMs;
      if (!allowed) this.#units = this.#units.slice(-limit);
    }
    const isTooSoon = minIntervalMs > 0 && nowMs < this.#lastMs + minIntervalMs;
    const left = Math.max(0, limit - this.#countedAt(nowMs));
    return {
      allowed,
      reason,
      remaining: isTooSoon ? 0 : left,
      quotaRemaining: minIntervalMs > 0 ? left : undefined,
      retryAfterMs: allowed ? 0 : this.#waitMs(nowMs, cost),
    };
  }

  debit(nowMs: number, units: number): void {
    for (let count = 0; count < units; count += 1) this.#units.push(nowMs);
  }

  credit(nowMs: number, units: number): void {
    this.#units = this.#units.filter((takenAtMs) => nowMs < takenAtMs + this.#config.windowMs).slice(units);
  }

  uncharge(nowMs: number, units: number, atMs: number): void {
    let left = nowMs < atMs + this.#config.windowMs ? units : 0;
    this.#units = this.#units.filter((takenAtMs) => takenAtMs !== atMs || (left -= 1) < 0);
  }

  #countedAt(nowMs: number): number {
    return this.#units.filter((takenAtMs) => nowMs < takenAtMs + this.#config.windowMs).length;
  }

  #passes(nowMs: number, cost: number): boolean {
    const { limit, minIntervalMs } = this.#config;
    return this.#countedAt(nowMs) + cost <= limit && nowMs >= this.#lastMs + minIntervalMs;
  }

  /** Why a cost is denied: what it waits for last, before this denial is counted. */
  #reason(nowMs: number, cost: number): string {
    if (cost > this.#config.limit) return "cost-over-limit";
    const atMs = nowMs + (this.#waitMs(nowMs, cost) ?? 0);
    const hasRoomBefore = this.#countedAt(atMs - 1) + cost <= this.#config.limit;
    return hasRoomBefore ? "min-interval" : "quota";
  }

  /** Found by trying every instant at which something changes. */
  #waitMs(nowMs: number, cost: number): number | null {
    const { limit, windowMs, minIntervalMs } = this.#config;
    if (cost > limit) return null;
    const instants = [this.#lastMs + minIntervalMs, ...this.#units.map((takenAtMs) => takenAtMs + windowMs)];
    const passes = instants.filter((atMs) => atMs > nowMs && this.#passes(atMs, cost));
    return Math.min(...passes) - nowMs;
  }
}
