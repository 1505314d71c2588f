import type { Rate } from "../algorithms/algorithm.ts";
import type { Bucket } from "../protocol/answers.ts";
import { MAX_MARGIN_MS } from "./sizing.ts";

/** A rate that is so much smaller than the one before is confirmed soon. */
const MUCH_SLOWER = 0.75;

/**
 * The buckets of one holder, one for each rule: parts of the object's (durable-objects/operations/own-buckets.ts). Units come
 * by themselves until the holder's lifetime ends, so a holder that is far away, or one of many, decides without a message
 * for seconds, and knows its exact wait.
 */
export class OwnBuckets {
  readonly rates: readonly (Rate | undefined)[];
  /** The most units in each. */
  most: readonly number[];
  /** What it keeps of them with the next message. */
  readonly #fair: readonly number[];
  /** Parts of a unit that have come, or are owed: units per window times milliseconds. */
  readonly #parts: number[];
  #atMs: number;

  /** @param kept of the buckets before, the most units in each: the object counts them until it hears more */
  constructor(
    named: Readonly<Record<string, Bucket>>,
    names: readonly string[],
    kept: readonly number[],
    nowMs: number,
    before?: OwnBuckets,
  ) {
    const buckets = names.map((name) => (Object.hasOwn(named, name) ? named[name] : undefined));
    this.rates = buckets.map((bucket) => bucket?.rate);
    this.#fair = buckets.map((bucket) => bucket?.most ?? 0);
    this.most = this.#fair.map((units, index) => Math.max(units, kept[index] ?? 0));
    // Its clock may be set forward by so much: what comes early then is what has not come yet.
    this.#parts = buckets.map((bucket, index) => {
      const [units, beforeUnits] = [bucket?.rate.units ?? 0, before?.rates[index]?.units ?? 0];
      // Of a window the burst is held twice for that.
      const earlyMs = bucket?.rate.isHeld === true ? 0 : MAX_MARGIN_MS;
      return (before?.partsOf(index) ?? 0) - Math.max(0, units - beforeUnits) * earlyMs;
    });
    this.#atMs = nowMs;
  }

  partsOf(index: number): number {
    return this.#parts[index] ?? 0;
  }

  /** Adds the units that have come. */
  refill(units: number[], nowMs: number): void {
    if (nowMs <= this.#atMs) return;
    for (const [index, rate] of this.rates.entries()) {
      if (rate === undefined) continue;
      const [before, most] = [units[index] ?? 0, this.most[index] ?? 0];
      const parts = (this.#parts[index] ?? 0) + rate.units * (nowMs - this.#atMs);
      const came = Math.max(0, Math.floor(parts / rate.windowMs));
      const after = Math.min(most, before + came);
      this.#parts[index] = after === most ? Math.min(parts, 0) : parts - came * rate.windowMs;
      units[index] = Math.max(before, after);
    }
    this.#atMs = nowMs;
  }

  isMuchSlowerThan({ rates }: OwnBuckets): boolean {
    return this.rates.some((rate, index) => (rate?.units ?? 0) < MUCH_SLOWER * (rates[index]?.units ?? 0));
  }

  /** Gives up what is not fair. */
  shrink(): void {
    this.most = this.most.map((units, index) => Math.min(units, this.#fair[index] ?? 0));
  }

  /** The time until so many more units have come. */
  waitMs(index: number, missing: number): number {
    const rate = this.rates[index];
    if (rate === undefined || rate.units === 0) return Infinity;
    return Math.max(1, Math.ceil((missing * rate.windowMs - (this.#parts[index] ?? 0)) / rate.units));
  }
}
