/**
 * The keys that come most often, in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi 2005).
 *
 * There are k counters. A key that has one is counted. A key that has none takes the place of the key with the least
 * count, goes on from that count, and remembers it as its error. So a count is never too low, and at most its error too
 * high; and after n keys no count is above its truth by more than n/k. A key that came more often than n/k is always
 * there. With 64 counters, each key that makes up 2 % of all calls is.
 *
 * Summaries of several streams merge into one with the same bounds (Agarwal and others 2012; Cafaro and others 2016): a
 * key that is not in one of them may have come there as often as its least.
 */

/** The counters of a summary. */
export const TOP_KEYS = 64;

/** A key, how often it came at most, and by how much that may be too high. Sent and stored: never change the order. */
export type CountedKey = readonly [key: string, count: number, error: number];

/** What one stream had. Sent and stored: never rename a field. */
export interface Summary {
  /** The highest counts first. */
  readonly keys: readonly CountedKey[];
  /** A key that is not in the summary came so often at most. */
  readonly least: number;
}

interface Counter {
  key: string;
  count: number;
  error: number;
}

export const NO_KEYS: Summary = { keys: [], least: 0 };

/** Counts the keys of one stream. */
export class TopKeys {
  readonly #counters = new Map<string, Counter>();
  readonly #most: number;
  /** The same counters, for whoever looks for the least of them: at `#next` first. */
  readonly #places: Counter[] = [];
  #next = 0;
  /** No counter has less. */
  #floor = 0;
  /** The one that was counted last: a hot key is found without looking. */
  #last: Counter | undefined;

  constructor(most = TOP_KEYS) {
    this.#most = most;
  }

  /** Counts a key once. */
  count(key: string): void {
    const last = this.#last;
    if (last !== undefined && last.key === key) {
      last.count += 1;
      return;
    }
    const counter = this.#counters.get(key) ?? this.#begin(key);
    counter.count += 1;
    this.#last = counter;
  }

  /** What has been counted. */
  get summary(): Summary {
    const counters = [...this.#counters.values()].toSorted(byCount);
    const least = counters.length < this.#most ? 0 : (counters.at(-1)?.count ?? 0);
    return { keys: counters.map(({ key, count, error }) => [key, count, error]), least };
  }

  /** A counter for a key that has none. */
  #begin(key: string): Counter {
    if (this.#counters.size < this.#most) {
      const counter = { key, count: 0, error: 0 };
      this.#counters.set(key, counter);
      this.#places.push(counter);
      return counter;
    }
    const counter = this.#least();
    this.#counters.delete(counter.key);
    counter.key = key;
    counter.error = counter.count;
    this.#counters.set(key, counter);
    return counter;
  }

  /**
   * A counter with the least count. Where many keys come once, each search begins where the last one ended, and mostly
   * looks at one counter.
   */
  #least(): Counter {
    const places = this.#places;
    for (let step = 0; step < places.length; step += 1) {
      const counter = places[this.#next];
      this.#next = (this.#next + 1) % places.length;
      if (counter !== undefined && counter.count <= this.#floor) return counter;
    }
    const least = places.reduce((found, each) => (each.count < found.count ? each : found));
    this.#floor = least.count;
    return least;
  }
}

/** One summary of two streams. */
export function mergedKeys(one: Summary, other: Summary, most = TOP_KEYS): Summary {
  const both = new Map<string, Counter>();
  for (const [key, count, error] of one.keys)
    both.set(key, { key, count: count + other.least, error: error + other.least });
  for (const [key, count, error] of other.keys) {
    const known = both.get(key);
    // The least of the other was presumed of it, and now it is known.
    if (known === undefined) both.set(key, { key, count: count + one.least, error: error + one.least });
    else
      both.set(key, {
        key,
        count: known.count - other.least + count,
        error: known.error - other.least + error,
      });
  }
  const counters = [...both.values()].toSorted(byCount);
  const least = Math.max(one.least + other.least, counters[most]?.count ?? 0);
  return { keys: counters.slice(0, most).map(({ key, count, error }) => [key, count, error]), least };
}

/** The same order for equal counts, whatever came first. */
function byCount(one: Counter, other: Counter): number {
  return other.count - one.count || (one.key < other.key ? -1 : 1);
}
