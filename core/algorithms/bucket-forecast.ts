import type { Forecast, Uses } from "./algorithm.ts";

/** A double represents every integer up to here exactly. */
export const MAX_PARTS = 2 ** 53;

interface Config {
  readonly limit: number;
  readonly windowMs: number;
  readonly burst: number;
}

/** A token bucket that is played forward: its state is two numbers. */
export class TokenBucketForecast implements Forecast {
  readonly #config: Config;
  #spentParts: number;
  #atMs: number;

  /** @param spentParts parts spent at `atMs` */
  constructor(config: Config, spentParts: number, atMs: number) {
    this.#config = config;
    this.#spentParts = spentParts;
    this.#atMs = atMs;
  }

  debit({ endsMs, units }: Uses, from = 0, to = endsMs.length): void {
    const { limit, windowMs } = this.#config;
    let [spentParts, sinceMs] = [this.#spentParts, this.#atMs];
    for (let index = from; index < to; index += 1) {
      const atMs = Math.max(endsMs[index] ?? 0, sinceMs);
      const left = Math.max(0, spentParts - limit * (atMs - sinceMs));
      spentParts = Math.min(left + (units[index] ?? 0) * windowMs, MAX_PARTS);
      sinceMs = atMs;
    }
    this.#spentParts = spentParts;
    this.#atMs = sinceMs;
  }

  take(atMs: number, units: number): void {
    this.debit({ endsMs: [atMs], units: [units] });
  }

  passesAtMs(atMs: number, cost: number, outstanding: number): number {
    if (cost === 0) return atMs;
    const { limit, windowMs, burst } = this.#config;
    const room = (burst - outstanding) * windowMs - cost * windowMs;
    return room < 0 ? Infinity : atMs + Math.ceil(Math.max(0, this.#spentAt(atMs) - room) / limit);
  }

  isCertain(atMs: number, outstanding: number): boolean {
    // Up to half of the most parts, the division above is exact too.
    const parts = this.#spentParts + outstanding * this.#config.windowMs;
    return atMs >= this.#atMs && parts <= MAX_PARTS / 2;
  }

  /** The instant from which nothing is spent. */
  wholeAtMs(): number {
    return this.#atMs + Math.ceil(this.#spentParts / this.#config.limit);
  }

  #spentAt(atMs: number): number {
    return Math.max(0, this.#spentParts - this.#config.limit * Math.max(0, atMs - this.#atMs));
  }
}

/** The units that a record of a bucket has spent, rounded up. */
export function unitsIn(record: BucketRecord | null): number {
  return record === null ? 0 : Math.ceil((record.totalParts ?? record.spentParts) / record.windowMs);
}

interface BucketRecord {
  readonly spentParts: number;
  readonly totalParts?: number;
  readonly windowMs: number;
}
