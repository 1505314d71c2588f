import type { Rate } from "../algorithms/algorithm.ts";
import type { Bucket } from "../protocol/answers.ts";
import { ownValue } from "./knowledge.ts";
import { MAX_MARGIN_MS } from "./sizing.ts";

/** A rate that is so much smaller than the one before is confirmed soon. */
const MUCH_SLOWER = 0.75;
/** A bucket has at most 1.5 times the rate that calls need: one that is so much faster is not needed. */
const MUCH_FASTER = 2;
/**
 * Of a log or window the burst is held twice, since a clock that is set forward may fill it at once. So a bucket may have this
 * part of a unit more, if as much less comes between two calls. With a burst of one, and calls that come for 10 and 20 times
 * the rate, it admits 99.6 and 100 % of that, instead of 91 and 95: what comes until the next call is not lost.
 */
const MORE_THAN_FULL = 0.3;

interface OwnBucket {
  rate: Rate;
  /** The most units in it. */
  most: number;
  /** What it keeps of them with the next message. */
  readonly fair: number;
  /** Parts of a unit that have come, or are owed: units per window times milliseconds. */
  parts: number;
}

/**
 * The buckets of one holder, one for each rule: parts of the object's (durable-objects/operations/own-buckets.ts). Units come
 * by themselves until the holder's lifetime ends, so a holder that is far away, or one of many, decides without a message
 * for seconds, and knows its exact wait.
 */
export class OwnBuckets {
  /** By rule. */
  readonly all: readonly OwnBucket[];
  #atMs: number;

  /** @param kept of the buckets before, the most units in each: the object counts them until it hears more */
  constructor(
    named: Readonly<Record<string, Bucket>>,
    names: readonly string[],
    kept: readonly number[],
    nowMs: number,
    before?: OwnBuckets,
  ) {
    this.all = names.map((name, index) => {
      const { rate, most: fair } = ownValue(named, name) ?? { rate: { units: 0, windowMs: 1 }, most: 0 };
      const { parts = 0, rate: had } = before?.all[index] ?? {};
      // Its clock may be set forward by so much: what comes early then is what has not come yet.
      // Of a window the burst is held twice for that.
      const earlyMs = rate.isHeld === true ? 0 : MAX_MARGIN_MS;
      const owed = Math.max(0, rate.units - (had?.units ?? 0)) * earlyMs;
      return { rate, fair, most: Math.max(fair, kept[index] ?? 0), parts: parts - owed };
    });
    this.#atMs = nowMs;
  }

  /** Adds the units that have come. */
  refill(units: number[], nowMs: number): void {
    if (nowMs <= this.#atMs) return;
    for (const [index, bucket] of this.all.entries()) {
      const { rate, most } = bucket;
      const before = units[index] ?? 0;
      const elapsed = rate.units * (nowMs - this.#atMs);
      const more = rate.isHeld === true ? MORE_THAN_FULL : 0;
      const mostAtOnce = more === 0 ? Infinity : Math.max(0, most - more) * rate.windowMs;
      const parts = bucket.parts + Math.min(elapsed, mostAtOnce);
      const came = Math.max(0, Math.min(most - before, Math.floor(parts / rate.windowMs)));
      const left = parts - came * rate.windowMs;
      bucket.parts = before + came < most ? left : Math.min(left, more * rate.windowMs);
      units[index] = before + came;
    }
    this.#atMs = nowMs;
  }

  isSlowerThan({ all }: OwnBuckets): boolean {
    return this.all.some(({ rate }, index) => rate.units < MUCH_SLOWER * (all[index]?.rate.units ?? 0));
  }

  /**
   * Gives up what is not fair, and a rate that calls do not need any more: otherwise the object would count that until the
   * message after its next answer. @param perSecond what calls need
   */
  shrink(perSecond: readonly number[]): void {
    for (const [index, bucket] of this.all.entries()) {
      const { rate, most, fair } = bucket;
      const perMs = (MUCH_FASTER * (perSecond[index] ?? 0)) / 1_000;
      bucket.most = Math.min(most, fair);
      bucket.rate = { ...rate, units: Math.min(rate.units, Math.ceil(1 + perMs * rate.windowMs)) };
    }
  }

  /** The time until so many more units have come. */
  waitMs(index: number, missing: number): number {
    const { rate, parts } = this.all[index] as OwnBucket;
    return rate.units === 0
      ? Infinity
      : Math.max(1, Math.ceil((missing * rate.windowMs - parts) / rate.units));
  }
}
