/**
 * Runs: how many units were logged in which millisecond. There is one run for each distinct millisecond, in order.
 *
 * Logs share runs. A log has a position `end` and reads only runs before it, which never change. Runs are only added
 * at the end, so a log that grows shares all its runs with the log that it grew from. When an older log adds a run,
 * its `end` is not the newest: then its runs are copied, unless the same run is already there. (A call that another
 * rule denied leaves such a run behind, and the next attempt finds it.)
 *
 * Two typed arrays take 12 bytes a run, and at most a third of that is slack: so at most 16 bytes a run, and a few
 * dozen for the whole. When the arrays are full, or more than a quarter of them is not needed any more, the runs that
 * are needed are copied into new ones. That copies a handful of runs for each run that was added or forgotten,
 * whatever the size.
 */
export class Runs {
  /** The position of the first run in the arrays. Positions count from the beginning of the log. */
  readonly #start: number;
  readonly #atMs: Float64Array;
  /** All units logged up to and including a run, modulo 2^32: only differences have a meaning. */
  readonly #units: Uint32Array;
  #length = 0;

  private constructor(start: number, capacity: number) {
    this.#start = start;
    this.#atMs = new Float64Array(capacity);
    this.#units = new Uint32Array(capacity);
  }

  /** No runs. The first one will be added at `position`. */
  static empty(position: number): Runs {
    return new Runs(position, SPARE);
  }

  /**
   * The runs that `parts` list, two numbers for each: its millisecond, and all units up to and including it.
   *
   * @param first the position of the first of them
   */
  static from(first: number, parts: readonly ArrayLike<number>[]): Runs {
    const count = parts.reduce((sum, { length }) => sum + length / 2, 0);
    const runs = new Runs(first, roomFor(count));
    for (const part of parts)
      for (let index = 0; index < part.length; index += 2) runs.#add(part[index] ?? 0, part[index + 1] ?? 0);
    return runs;
  }

  /** The millisecond of a run. */
  atMs(position: number): number {
    return this.#atMs[position - this.#start] ?? Number.NaN;
  }

  /** Units logged up to and including this run, modulo 2^32. */
  unitsTo(position: number): number {
    return this.#units[position - this.#start] ?? Number.NaN;
  }

  /** Bytes of memory that the arrays take. */
  get bytes(): number {
    return this.#atMs.byteLength + this.#units.byteLength;
  }

  /**
   * These runs from `first` on, with one more at `end`. It may be this very object.
   *
   * @param end at most the next free position
   * @param unitsTo all units logged up to and including the new run; taken modulo 2^32
   */
  with(first: number, end: number, atMs: number, unitsTo: number): Runs {
    const index = end - this.#start;
    const isThere =
      index < this.#length && this.#atMs[index] === atMs && this.#units[index] === unitsTo >>> 0;
    if (isThere) return this;
    const capacity = this.#atMs.length;
    const isWasteful = (end - first) * 4 < (capacity - SPARE) * 3;
    if (index === this.#length && index < capacity && !isWasteful) {
      this.#add(atMs, unitsTo);
      return this;
    }
    const copy = this.#copy(first, end);
    copy.#add(atMs, unitsTo);
    return copy;
  }

  #add(atMs: number, unitsTo: number): void {
    this.#atMs[this.#length] = atMs;
    this.#units[this.#length] = unitsTo;
    this.#length += 1;
  }

  #copy(first: number, end: number): Runs {
    const count = end - first;
    const copy = new Runs(first, roomFor(count));
    const from = first - this.#start;
    copy.#atMs.set(this.#atMs.subarray(from, from + count));
    copy.#units.set(this.#units.subarray(from, from + count));
    copy.#length = count;
    return copy;
  }
}

/** Room for a few more runs than are needed, so that a small log is not copied at every call. */
const SPARE = 8;

function roomFor(count: number): number {
  return Math.floor(count * 1.25) + SPARE;
}

/**
 * The first position in [from, to) for which `isReached` is true; `to` if there is none. `isReached` must be false up
 * to some position and true from there on. The search begins at `from`, and takes as many steps as the logarithm of
 * the distance (a galloping search).
 */
export function search(from: number, to: number, isReached: (position: number) => boolean): number {
  let [low, step] = [from, 1];
  while (low + step - 1 < to && !isReached(low + step - 1)) {
    low += step;
    step *= 2;
  }
  let high = Math.min(low + step - 1, to);
  while (low < high) {
    const middle = Math.floor((low + high) / 2);
    if (isReached(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}
