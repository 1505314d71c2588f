/**
 * Whether admitted calls keep the bound of a fixed window, at most `limit` units in each window, seen from
 * outside. There it is unknown when windows begin, only that each lasts at least `shortestMs`. The bound is
 * broken if no way to cut time into such windows keeps every window to `limit` units. A call surely lies in a
 * window if it was sent after its beginning and received before its end.
 */
import type { AdmittedCall } from "../../test/support/interval-bound.ts";

/** How many units above `limit` one window must have had, wherever windows began; 0: the bound is kept. */
export function windowExcess(calls: readonly AdmittedCall[], limit: number, shortestMs: number): number {
  if (fits(calls, limit, shortestMs)) return 0;
  let [least, most] = [limit, calls.reduce((sum, { units }) => sum + units, 0)];
  // Bisects for the least limit that fits: all larger ones fit too.
  while (least + 1 < most) {
    const middle = Math.floor((least + most) / 2);
    if (fits(calls, middle, shortestMs)) most = middle;
    else least = middle;
  }
  return most - limit;
}

/**
 * Walks over the instants at which a window may end: at least `shortestMs` after an earlier end with at most
 * `limit` units between. The latest such end is the best: it leaves the fewest units between.
 */
function fits(calls: readonly AdmittedCall[], limit: number, shortestMs: number): boolean {
  const firstMs = calls.reduce((first, { sentAtMs }) => Math.min(first, sentAtMs), Infinity);
  // A window may end while the last call is under way.
  const lastMs = calls.reduce((last, { receivedAtMs }) => Math.max(last, receivedAtMs), -Infinity);
  const full = new FullAt(calls, limit);
  const ends: number[] = [];
  let before = -1;
  for (let endMs = firstMs; endMs <= lastMs + 1; endMs += 1) {
    while ((ends[before + 1] ?? Infinity) <= endMs - shortestMs) before += 1;
    const beginMs = ends[before];
    const canEnd =
      endMs <= full.windowFrom(firstMs) || (beginMs !== undefined && endMs <= full.windowFrom(beginMs));
    if (!canEnd) continue;
    if (full.windowFrom(endMs) === Infinity) return true;
    ends.push(endMs);
  }
  return calls.length === 0;
}

/** The latest instants at which windows may end: then one unit too many comes. */
class FullAt {
  readonly #inOrder: readonly AdmittedCall[];
  readonly #limit: number;
  readonly #known = new Map<number, number>();

  constructor(calls: readonly AdmittedCall[], limit: number) {
    this.#inOrder = calls.toSorted((a, b) => a.receivedAtMs - b.receivedAtMs);
    this.#limit = limit;
  }

  windowFrom(fromMs: number): number {
    const known = this.#known.get(fromMs);
    if (known !== undefined) return known;
    const found = this.#find(fromMs);
    this.#known.set(fromMs, found);
    return found;
  }

  #find(fromMs: number): number {
    let units = 0;
    for (let index = this.#firstFrom(fromMs); index < this.#inOrder.length; index += 1) {
      const call = this.#inOrder[index];
      if (call === undefined || call.sentAtMs < fromMs) continue;
      units += call.units;
      if (units > this.#limit) return call.receivedAtMs;
    }
    return Infinity;
  }

  #firstFrom(fromMs: number): number {
    let [low, high] = [0, this.#inOrder.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.#inOrder[middle]?.receivedAtMs ?? Infinity) < fromMs) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
