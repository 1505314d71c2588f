/**
 * Whether admitted calls keep a token bucket's bound in *every* interval, seen from outside. A client only
 * knows that a decision lies between sending and receiving (one machine, one clock, whole milliseconds). A
 * call surely lies in [s, e] when it was sent at s or later and received at e or earlier; if even those
 * exceed `burst + limit * (e - s) / window`, the bound is broken.
 */
export interface AdmittedCall {
  readonly sentAtMs: number;
  readonly receivedAtMs: number;
  readonly units: number;
}

export interface Bucket {
  readonly limit: number;
  readonly windowMs: number;
  readonly burst: number;
}

/**
 * The largest excess over the bound in any interval, in units; 0 or less: the bound is kept. For each start
 * s, from the last to the first, a segment tree over the ends e keeps `windowMs * units within [s, e] - limit
 * * e`; its maximum, plus `limit * s`, is the worst end. O(n log n), and in integers below 2^53.
 */
export function worstExcess(calls: readonly AdmittedCall[], { limit, windowMs, burst }: Bucket): number {
  const first = calls.reduce((least, { sentAtMs }) => Math.min(least, sentAtMs), Infinity);
  const ends = [...new Set(calls.map(({ receivedAtMs }) => receivedAtMs - first))].toSorted((a, b) => a - b);
  const indexOf = new Map(ends.map((end, index) => [end, index]));
  const tree = new MaxTree(ends.map((end) => -limit * end - NOT_YET));
  const begun = new Set<number>();
  let worst = -Infinity;
  for (const { sentAtMs, receivedAtMs, units } of calls.toSorted((a, b) => b.sentAtMs - a.sentAtMs)) {
    const end = indexOf.get(receivedAtMs - first) ?? 0;
    tree.addFrom(end, units * windowMs);
    if (!begun.has(end)) {
      begun.add(end);
      tree.addFrom(end, NOT_YET);
      if (end + 1 < ends.length) tree.addFrom(end + 1, -NOT_YET);
    }
    worst = Math.max(worst, tree.max + limit * (sentAtMs - first) - burst * windowMs);
  }
  return worst / windowMs;
}

/** The most units surely admitted within one window: sent at its start or later, received before its end. */
export function mostInWindow(calls: readonly AdmittedCall[], windowMs: number): number {
  const inOrder = calls.toSorted((a, b) => a.sentAtMs - b.sentAtMs);
  let most = 0;
  for (const [index, { sentAtMs: startMs }] of inOrder.entries()) {
    let units = 0;
    for (let other = index; (inOrder[other]?.sentAtMs ?? Infinity) < startMs + windowMs; other += 1) {
      const call = inOrder[other];
      if (call !== undefined && call.receivedAtMs < startMs + windowMs) units += call.units;
    }
    most = Math.max(most, units);
  }
  return most;
}

/** Keeps an end e out of the maximum until some call lies within [s, e]. Before that, e may lie before s. */
const NOT_YET = 2 ** 50;

/** The maximum of a list of numbers, with addition to all of them from some index on. */
class MaxTree {
  readonly #size: number;
  readonly #max: Float64Array;
  readonly #added: Float64Array;

  constructor(values: readonly number[]) {
    this.#size = 2 ** Math.ceil(Math.log2(Math.max(1, values.length)));
    this.#max = new Float64Array(2 * this.#size).fill(-Infinity);
    this.#added = new Float64Array(2 * this.#size);
    this.#max.set(values, this.#size);
    for (let node = this.#size - 1; node >= 1; node -= 1) this.#pull(node);
  }

  get max(): number {
    return this.#max[1] ?? -Infinity;
  }

  addFrom(index: number, value: number): void {
    let node = index + this.#size;
    this.#add(node, value);
    for (; node > 1; node >>= 1) {
      if (node % 2 === 0) this.#add(node + 1, value);
      this.#pull(node >> 1);
    }
  }

  #add(node: number, value: number): void {
    this.#max[node] = (this.#max[node] ?? 0) + value;
    this.#added[node] = (this.#added[node] ?? 0) + value;
  }

  #pull(node: number): void {
    const left = this.#max[2 * node] ?? -Infinity;
    const right = this.#max[2 * node + 1] ?? -Infinity;
    this.#max[node] = Math.max(left, right) + (this.#added[node] ?? 0);
  }
}
