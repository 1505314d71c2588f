import type { GivenUp, NewSegment, Segment } from "../algorithm.ts";

/**
 * A log of units: how many were taken in which millisecond. A unit taken at `t` counts while now < t + window. A log
 * is an immutable value that shares its runs with its predecessor. Positions and numbers of units count from
 * `sinceMs`.
 */
export interface UnitLog {
  readonly sinceMs: number;
  readonly runs: Runs;
  /** The position of the first closed run that may still count. */
  readonly first: number;
  /** The position after the last closed run. */
  readonly end: number;
  /** How many of the oldest units no longer count: they have left the window, or were returned. */
  readonly goneUnits: number;
  /** Younger units that were returned while older ones count. */
  readonly holes: Holes;
  readonly closedUnits: number;
  /** The latest run, which is open: more units may join it. */
  readonly openMs: number;
  readonly openUnits: number;
  /** When the last call passed or, with `countDenied`, came: `minInterval` begins here. */
  readonly lastMs: number;
}

type Gone = Pick<UnitLog, "first" | "goneUnits">;

/** Stored: never rename a field. `tail`: the closed runs in no segment, as pairs of millisecond and units up to it. */
export interface UnitLogRecord extends Omit<UnitLog, "runs" | "first" | "holes"> {
  readonly tail: readonly number[];
  /** A version without this field counts these units as not returned. */
  readonly holes?: Holes;
}

/** The maximum that may count at once, since runs keep unit counts modulo 2^32. A larger debt is cut off. */
export const MAX_COUNTED = 2 ** 32 - 1;
/** Closed runs in a record, which is written each time. More become a segment, which is written once. */
const MAX_TAIL = 64;
const MAX_HOLES = 64;

export function begin(nowMs: number): UnitLog {
  const none = { first: 0, end: 0, goneUnits: 0, holes: NO_HOLES, closedUnits: 0, openUnits: 0 };
  return { sinceMs: nowMs, runs: Runs.from(0, []), ...none, openMs: nowMs, lastMs: nowMs };
}

/** The log with `units` more at `nowMs`. Only the newest `max` of its units count. */
export function add(log: UnitLog, windowMs: number, nowMs: number, units: number, max: number): UnitLog {
  const { first, goneUnits } = countingFrom(log, windowMs, nowMs);
  let { runs, end, closedUnits, openUnits } = log;
  const openMs = Math.max(log.openMs, nowMs);
  if (openMs > log.openMs && openUnits > 0) {
    closedUnits += openUnits;
    runs = runs.with(first, end, log.openMs, closedUnits);
    [end, openUnits] = [end + 1, 0];
  }
  openUnits += Math.min(units, MAX_COUNTED - (unitsInLog(log) - goneUnits));
  const counted = closedUnits + openUnits - goneUnits - unitsInHoles(log.holes, goneUnits);
  const gone = after(log.holes, goneUnits, Math.max(0, counted - max));
  const holes = holesFrom(log.holes, gone);
  const { sinceMs, lastMs } = log;
  return { sinceMs, runs, first, end, goneUnits: gone, holes, closedUnits, openMs, openUnits, lastMs };
}

/**
 * Returns units logged at `atMs`, as far as they still count. Without `atMs`, or with too many holes, the oldest: they
 * leave the window first, so later windows count enough.
 */
export function withoutUnits(
  log: UnitLog,
  windowMs: number,
  nowMs: number,
  units: number,
  atMs?: number,
): UnitLog {
  const { first, goneUnits } = countingFrom(log, windowMs, nowMs);
  if (atMs === undefined) {
    const given = Math.min(units, countedAt(log, windowMs, nowMs));
    return { ...log, goneUnits: after(log.holes, goneUnits, given) };
  }
  const position = search(first, log.end, (at) => log.runs.atMs(at) >= atMs);
  const isOpen = position === log.end;
  if ((isOpen ? log.openMs : log.runs.atMs(position)) !== atMs) return log;
  const from = Math.max(goneUnits, position > first ? unitsTo(log, position - 1) : 0);
  const to = isOpen ? unitsInLog(log) : unitsTo(log, position);
  const counted = to - from - (unitsInHoles(log.holes, from) - unitsInHoles(log.holes, to));
  const given = Math.min(units, counted);
  if (given <= 0) return log;
  const live = holesFrom(log.holes, goneUnits);
  const holes = withHole(live, after(live, from, counted - given), to);
  return holes.length > 2 * MAX_HOLES ? withoutUnits(log, windowMs, nowMs, given) : { ...log, holes };
}

export function countedAt(log: UnitLog | undefined, windowMs: number, nowMs: number): number {
  if (log === undefined) return 0;
  const { goneUnits } = countingFrom(log, windowMs, nowMs);
  return unitsInLog(log) - goneUnits - unitsInHoles(log.holes, goneUnits);
}

/** How many units may join: as many as can be counted, and none if the log has `maxRuns` runs. */
export function roomIn(log: UnitLog | undefined, windowMs: number, nowMs: number, maxRuns: number): number {
  if (log === undefined) return MAX_COUNTED;
  const { first, goneUnits } = countingFrom(log, windowMs, nowMs);
  return log.end - first >= maxRuns ? 0 : MAX_COUNTED - (unitsInLog(log) - goneUnits);
}

/** The instant at which the oldest `units` of those that count at `nowMs` have left the window. */
export function leavesAtMs(log: UnitLog, windowMs: number, nowMs: number, units: number): number {
  const { first, goneUnits } = countingFrom(log, windowMs, nowMs);
  return windowMs + loggedAtMs(log, first, after(log.holes, goneUnits, units));
}

/** The instant at which the last unit leaves the window; -Infinity: no unit could count. */
export function emptyAtMs(log: UnitLog, windowMs: number): number {
  const { first, goneUnits, holes } = log;
  const total = unitsInLog(log);
  if (holes.at(-1) !== total) return total > goneUnits ? windowMs + log.openMs : -Infinity;
  const last = holes.at(-2) ?? 0;
  return last > goneUnits ? windowMs + loggedAtMs(log, first, last) : -Infinity;
}

/** All units since the log began, including those that no longer count. */
export function unitsInLog({ closedUnits, openUnits }: Pick<UnitLog, "closedUnits" | "openUnits">): number {
  return closedUnits + openUnits;
}

/** The units of a record that counted when it was written. */
export function recordedUnits({ goneUnits, holes = NO_HOLES, ...counts }: UnitLogRecord): number {
  return unitsInLog(counts) - goneUnits - unitsInHoles(holes, goneUnits);
}

/** The log as stored. `before`: the last written record. */
export function packLog(
  log: UnitLog,
  windowMs: number,
  nowMs: number,
  before: UnitLogRecord | undefined,
): { readonly record: UnitLogRecord; readonly segment?: NewSegment } {
  const { sinceMs, runs, end, closedUnits, openMs, openUnits, lastMs } = log;
  const live = countingFrom(log, windowMs, nowMs);
  // Runs that have left the window are not written, so their units must count as gone in the record.
  const holes = holesFrom(log.holes, live.goneUnits);
  const counts = { goneUnits: live.goneUnits, ...(holes.length > 0 && { holes }) };
  const rest = { sinceMs, end, ...counts, closedUnits, openMs, openUnits, lastMs };
  const sealed = before?.sinceMs === log.sinceMs ? before.end - before.tail.length / 2 : 0;
  const from = Math.max(sealed, live.first);
  const tail: number[] = [];
  for (let at = from; at < end; at += 1) tail.push(runs.atMs(at), unitsTo(log, at));
  if (tail.length <= 2 * MAX_TAIL) return { record: { ...rest, tail } };
  const keepFromMs = live.first < end ? runs.atMs(live.first) : log.openMs;
  const segment = { log: log.sinceMs, from, toMs: runs.atMs(end - 1), keepFromMs, entries: tail };
  return { record: { ...rest, tail: [] }, segment };
}

/** The log of a record and the stored segments, without segments of other logs. */
export function unpackLog(
  { tail, holes = NO_HOLES, ...rest }: UnitLogRecord,
  segments: readonly Segment[],
): UnitLog {
  const ofThisLog = segments.filter(({ log }) => log === rest.sinceMs).toSorted((a, b) => a.from - b.from);
  const parts = [...ofThisLog.map(({ entries }) => entries), tail];
  const count = parts.reduce((sum, { length }) => sum + length / 2, 0);
  const first = rest.end - count;
  return { ...rest, holes, runs: Runs.from(first, parts), first };
}

/** The first closed run that counts at `nowMs` (`end`: none), and how many of the oldest units do not count. */
function countingFrom(log: UnitLog, windowMs: number, nowMs: number): Gone {
  const { runs, end, openMs } = log;
  const leftMs = nowMs - windowMs;
  if (openMs <= leftMs) return { first: end, goneUnits: unitsInLog(log) };
  const counts = (at: number) => runs.atMs(at) > leftMs && unitsTo(log, at) > log.goneUnits;
  const first = search(log.first, end, counts);
  const before = first > log.first ? unitsTo(log, first - 1) : 0;
  return { first, goneUnits: Math.max(log.goneUnits, before) };
}

/** All units logged up to and including a run. The difference to `closedUnits` is exact modulo 2^32. */
function unitsTo({ runs, closedUnits }: UnitLog, position: number): number {
  return closedUnits - ((closedUnits - runs.unitsTo(position)) >>> 0);
}

/** When the units up to this number had been logged, in a run at or after `first`. */
function loggedAtMs(log: UnitLog, first: number, units: number): number {
  if (units > log.closedUnits) return log.openMs;
  const position = search(first, log.end, (at) => unitsTo(log, at) >= units);
  return position === log.end ? log.openMs : log.runs.atMs(position);
}

/**
 * Holes in a log: units returned by name, numbered from 0 as they were logged. A hole is a pair `from, to`
 * (exclusive). Pairs are in order, and no two touch. Holes only grow, so an older record counts too much, never too
 * little.
 */
type Holes = readonly number[];

const NO_HOLES: Holes = [];

function unitsInHoles(holes: Holes, from: number): number {
  let units = 0;
  for (let at = 0; at < holes.length; at += 2)
    units += Math.max(0, endOf(holes, at) - startOf(holes, at, from));
  return units;
}

/** The number after the first `units` units outside holes, counted from the number `from` on. */
function after(holes: Holes, from: number, units: number): number {
  let to = from + units;
  for (let at = 0; at < holes.length && startOf(holes, at, from) < to; at += 2)
    to += Math.max(0, endOf(holes, at) - startOf(holes, at, from));
  return to;
}

/** The list with one more hole, which may touch or overlap others. */
function withHole(holes: Holes, start: number, end: number): Holes {
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

function holesFrom(holes: Holes, from: number): Holes {
  let at = 0;
  while (at < holes.length && endOf(holes, at) <= from) at += 2;
  return at === 0 ? holes : holes.slice(at);
}

function startOf(holes: Holes, at: number, from = 0): number {
  return Math.max(from, holes[at] ?? 0);
}

function endOf(holes: Holes, at: number): number {
  return holes[at + 1] ?? 0;
}

/**
 * Buckets of a full log change hands at once. A holder's bucket of U units a window admits at an even pace, so of what it has
 * admitted by now, at most U * (1 - x / window) still counts x ms later. That much is held for it anyway:
 *
 * - When a holder of units gets a bucket, what it used before at no more than this pace leaves the log (`atEvenPace`): what
 *   still counts of it and what the bucket admits meanwhile are together never more than U.
 * - What a bucket gives up is logged at this pace (`addEvenly`), so it comes back bit by bit, and not a whole window later.
 *
 * Example: 1,000 in 1 s, all used evenly in the last second. Without the first, a bucket would get a unit each time that one
 * leaves the log, and admit a half in its first window. Time is counted in `STEPS`, each rounded so that more counts.
 */
const STEPS = 64;

/** How many of the oldest units that count may leave the log when a bucket begins for which `units` are held a window. */
export function atEvenPace(log: UnitLog, windowMs: number, nowMs: number, units: number): number {
  const counted = countedAt(log, windowMs, nowMs);
  let most = counted;
  for (let step = 0; step < STEPS; step += 1) {
    const still = countedAt(log, windowMs, nowMs + Math.floor((step * windowMs) / STEPS));
    most = Math.min(most, counted - still + Math.floor((units * (STEPS - step - 1)) / STEPS));
  }
  return most;
}

/** The log with `units` that were used lately, at a pace of `perWindow` at most. */
export function addEvenly(log: UnitLog, windowMs: number, nowMs: number, given: GivenUp): UnitLog {
  const { units, perWindow } = given;
  // A log is known by the millisecond in which it began, and no unit is logged before the last one.
  if (nowMs <= log.sinceMs || nowMs < log.openMs) return add(log, windowMs, nowMs, units, MAX_COUNTED);
  const runs = [...liveRuns(log, windowMs, nowMs)];
  for (let step = 0; step < STEPS; step += 1) {
    const each = Math.ceil((units * (step + 1)) / STEPS) - Math.ceil((units * step) / STEPS);
    runs.push([nowMs - Math.floor((step * windowMs * units) / perWindow / STEPS), each]);
  }
  runs.sort(([a], [b]) => a - b);
  let merged: UnitLog = { ...begin(nowMs), openMs: runs[0]?.[0] ?? nowMs, lastMs: log.lastMs };
  for (const [atMs, each] of runs) if (each > 0) merged = add(merged, windowMs, atMs, each, MAX_COUNTED);
  return merged;
}

/** The runs that count, oldest first: when, and how many units. */
function* liveRuns(log: UnitLog, windowMs: number, nowMs: number): Generator<[number, number]> {
  const { first, goneUnits } = countingFrom(log, windowMs, nowMs);
  let from = goneUnits;
  for (let at = first; at <= log.end; at += 1) {
    const to = Math.max(from, at === log.end ? unitsInLog(log) : unitsTo(log, at));
    const returned = unitsInHoles(log.holes, from) - unitsInHoles(log.holes, to);
    yield [at === log.end ? log.openMs : log.runs.atMs(at), to - from - returned];
    from = to;
  }
}

/**
 * Runs: how many units were logged in which millisecond, one run for each distinct millisecond, in order.
 *
 * Logs share runs. A log reads only runs before its position `end`, which never change. Runs are only added at the
 * end, so a log that grows shares all its runs with its predecessor. When an older log adds a run, its `end` is not
 * the newest: then its runs are copied, unless the same run is already there. (A call that another rule denied leaves
 * such a run, and the next attempt finds it.)
 *
 * Two typed arrays take 12 bytes a run, plus at most a third of slack: at most 16 bytes a run, and a few dozen in all.
 * When the arrays are full, or a quarter of them is no longer needed, the needed runs are copied into new ones: a
 * handful of copies for each added or dropped run, at any size.
 */
export class Runs {
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

  /** The runs in `parts`, two numbers for each as in `UnitLogRecord.tail`, the first of them at position `first`. */
  static from(first: number, parts: readonly ArrayLike<number>[]): Runs {
    const count = parts.reduce((sum, { length }) => sum + length / 2, 0);
    const runs = new Runs(first, roomFor(count));
    for (const part of parts)
      for (let index = 0; index < part.length; index += 2) runs.#add(part[index] ?? 0, part[index + 1] ?? 0);
    return runs;
  }

  atMs(position: number): number {
    return this.#atMs[position - this.#start] ?? Number.NaN;
  }

  unitsTo(position: number): number {
    return this.#units[position - this.#start] ?? Number.NaN;
  }

  get bytes(): number {
    return this.#atMs.byteLength + this.#units.byteLength;
  }

  /**
   * These runs from `first` on, with one more at `end`, possibly this object. `total`: with the new run, modulo 2^32.
   */
  with(first: number, end: number, atMs: number, total: number): Runs {
    const index = end - this.#start;
    const isThere = index < this.#length && this.#atMs[index] === atMs && this.#units[index] === total >>> 0;
    if (isThere) return this;
    const capacity = this.#atMs.length;
    const isWasteful = (end - first) * 4 < (capacity - SPARE) * 3;
    if (index === this.#length && index < capacity && !isWasteful) {
      this.#add(atMs, total);
      return this;
    }
    const copy = this.#copy(first, end);
    copy.#add(atMs, total);
    return copy;
  }

  #add(atMs: number, total: number): void {
    this.#atMs[this.#length] = atMs;
    this.#units[this.#length] = total;
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

/** Spare runs, so that a small log is not copied at every call. */
const SPARE = 8;

function roomFor(count: number): number {
  return Math.floor(count * 1.25) + SPARE;
}

/**
 * The first position in [from, to) from which on `isReached` is true; `to` if there is none. A galloping search: its
 * steps are the logarithm of the distance.
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
