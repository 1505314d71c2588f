/**
 * Holes in a log: units that were given back by name, and that do not count any more. The units of a log are numbered
 * as they were logged, from 0. A hole is a pair of numbers `from, to`: the units from number `from` up to `to`, `to`
 * not included. A list has its pairs in order, and no two of them touch. Units only ever join holes, so a log whose
 * record is older than its latest hole counts too much and never too little.
 */
export type Holes = readonly number[];

export const NO_HOLES: Holes = [];

/** How many units with this number or a higher one are in holes. */
export function unitsInHoles(holes: Holes, from: number): number {
  let units = 0;
  for (let at = 0; at < holes.length; at += 2)
    units += Math.max(0, endOf(holes, at) - startOf(holes, at, from));
  return units;
}

/** The number after the first `units` units that are in no hole, counted from the number `from` on. */
export function after(holes: Holes, from: number, units: number): number {
  let to = from + units;
  for (let at = 0; at < holes.length && startOf(holes, at, from) < to; at += 2)
    to += Math.max(0, endOf(holes, at) - startOf(holes, at, from));
  return to;
}

/** The list with one hole more, which may touch others or lie over them. */
export function withHole(holes: Holes, start: number, end: number): Holes {
  const [before, behind]: [number[], number[]] = [[], []];
  let [from, to] = [start, end];
  for (let at = 0; at < holes.length; at += 2) {
    const [first, last] = [startOf(holes, at), endOf(holes, at)];
    if (last < start) before.push(first, last);
    else if (first > end) behind.push(first, last);
    else [from, to] = [Math.min(from, first), Math.max(to, last)];
  }
  return [...before, from, to, ...behind];
}

/** The holes that have a unit with this number or a higher one. */
export function holesFrom(holes: Holes, from: number): Holes {
  let at = 0;
  while (at < holes.length && endOf(holes, at) <= from) at += 2;
  return at === 0 ? holes : holes.slice(at);
}

/** Where the hole at this place of the list begins, or its part from the number `from` on. */
function startOf(holes: Holes, at: number, from = 0): number {
  return Math.max(from, holes[at] ?? 0);
}

function endOf(holes: Holes, at: number): number {
  return holes[at + 1] ?? 0;
}
