/**
 * The most frequent keys, in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi 2005).
 *
 * There are k counters. A key without one replaces the key with the least count, continues from that count, and keeps
 * it as its error. So a count is never too low, and at most its error too high; after n keys the error is at most n/k.
 * A key that came more often than n/k always has a counter: with 64 counters, each key with 2 % of all calls.
 *
 * Summaries of several streams merge into one with the same bounds (Agarwal and others 2012; Cafaro and others 2016):
 * a key missing in one of them may have come there as often as its least.
 */
import type { CountedKey, Summary } from "./messages.ts";

const TOP_KEYS = 64;

interface KeyCounter {
  key: string;
  count: number;
  error: number;
  plan: string | undefined;
}

export const NO_KEYS: Summary = { keys: [], least: 0 };

export class TopKeys {
  readonly #counters = new Map<string, KeyCounter>();
  readonly #maxKeys: number;
  /** The same counters, to search for the least of them from `#next` on. */
  readonly #counterList: KeyCounter[] = [];
  #next = 0;
  /** No counter has less. */
  #floor = 0;
  /** The last one counted: a hot key needs no search. */
  #last: KeyCounter | undefined;

  constructor(maxKeys = TOP_KEYS) {
    this.#maxKeys = maxKeys;
  }

  /** @param plan of the decision that is counted */
  count(key: string, plan?: string): void {
    const last = this.#last;
    if (last !== undefined && last.key === key) {
      last.count += 1;
      last.plan = plan;
      return;
    }
    const counter = this.#counters.get(key) ?? this.#begin(key);
    counter.count += 1;
    counter.plan = plan;
    this.#last = counter;
  }

  get summary(): Summary {
    const counters = [...this.#counters.values()].toSorted(byCount);
    const least = counters.length < this.#maxKeys ? 0 : (counters.at(-1)?.count ?? 0);
    return { keys: counters.map(toCountedKey), least };
  }

  #begin(key: string): KeyCounter {
    if (this.#counters.size < this.#maxKeys) {
      const counter = { key, count: 0, error: 0, plan: undefined };
      this.#counters.set(key, counter);
      this.#counterList.push(counter);
      return counter;
    }
    const counter = this.#least();
    this.#counters.delete(counter.key);
    counter.key = key;
    counter.error = counter.count;
    this.#counters.set(key, counter);
    return counter;
  }

  /** A counter with the least count. Each search begins at the end of the last one, and mostly reads one. */
  #least(): KeyCounter {
    const counters = this.#counterList;
    for (let step = 0; step < counters.length; step += 1) {
      const counter = counters[this.#next];
      this.#next = (this.#next + 1) % counters.length;
      if (counter !== undefined && counter.count <= this.#floor) return counter;
    }
    const least = counters.reduce((found, each) => (each.count < found.count ? each : found));
    this.#floor = least.count;
    return least;
  }
}

/** @param other the later one, whose plans count */
export function mergedKeys(one: Summary, other: Summary, maxKeys = TOP_KEYS): Summary {
  const both = new Map<string, KeyCounter>();
  for (const [key, count, error, plan] of one.keys)
    both.set(key, { key, count: count + other.least, error: error + other.least, plan });
  for (const [key, count, error, plan] of other.keys) {
    const inOne = both.get(key);
    // In `one` it was counted with the least of `other` in place of its count there.
    both.set(key, {
      key,
      count: count + (inOne === undefined ? one.least : inOne.count - other.least),
      error: error + (inOne === undefined ? one.least : inOne.error - other.least),
      plan,
    });
  }
  const counters = [...both.values()].toSorted(byCount);
  const least = Math.max(one.least + other.least, counters[maxKeys]?.count ?? 0);
  return { keys: counters.slice(0, maxKeys).map(toCountedKey), least };
}

function toCountedKey({ key, count, error, plan }: KeyCounter): CountedKey {
  return plan === undefined ? [key, count, error] : [key, count, error, plan];
}

/** Deterministic for equal counts. */
function byCount(one: KeyCounter, other: KeyCounter): number {
  return other.count - one.count || (one.key < other.key ? -1 : 1);
}
