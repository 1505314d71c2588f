/**
 * Runs: how many units were logged at which millisecond, in order, one run per distinct millisecond.
 *
 * A value that is shared: whoever holds a position `end` sees the runs before it, and they never change. Runs
 * are only added at the end, so a log that grows shares all of them with the log it grew from. Adding behind an
 * end that is not the newest copies, unless what comes there is the same anyway (an attempt that another rule
 * denied leaves such a run behind, and the next attempt finds it).
 *
 * Two typed arrays, 12 bytes a run, a third of slack at most: so at most 16 bytes a run (and a few dozen for the
 * whole). When an array is full, or more than a quarter of it is no longer wanted, what is wanted is copied into
 * a new one: a handful of runs copied for each that was added or forgotten, whatever the size.
 */
export class Runs {
  /** The position of the first run that is here; positions count from the beginning of the log. */
  readonly #start: number;
  readonly #atMs: Float64Array;
  /** All units logged up to and with a run, modulo 2^32: only differences mean anything. */
  readonly #units: Uint32Array;
  #length = 0;

  private constructor(start: number, capacity: number) {
    this.#start = start;
    this.#atMs = new Float64Array(capacity);
    this.#units = new Uint32Array(capacity);
  }

  /** No runs, the next one at `position`. */
  static empty(position: number): Runs {
    return new Runs(position, SPARE);
  }

  atMs(position: number): number {
    return this.#atMs[position - this.#start] ?? Number.NaN;
  }

  /** Units logged up to and with this run, modulo 2^32. */
  unitsTo(position: number): number {
    return this.#units[position - this.#start] ?? Number.NaN;
  }

  /** Bytes of memory that the arrays take. */
  get bytes(): number {
    return this.#atMs.byteLength + this.#units.byteLength;
  }

  /** These runs from `first` on with one more at `end`, which must not be later than the next free position. */
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
    const copy = new Runs(first, Math.floor(count * 1.25) + SPARE);
    const from = first - this.#start;
    copy.#atMs.set(this.#atMs.subarray(from, from + count));
    copy.#units.set(this.#units.subarray(from, from + count));
    copy.#length = count;
    return copy;
  }
}

/** Room for a few runs more than are wanted, so that a small log is not copied at every call. */
const SPARE = 8;

/**
 * The first position in [from, to) of which `isReached` is true, `to` if there is none; it must be false up to
 * some position and true from there on. Looks near `from` first: the steps grow with the logarithm of the distance.
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
