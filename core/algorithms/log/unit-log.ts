import type { NewSegment, Segment } from "../algorithm.ts";

/**
 * A log of units: how many were taken in which millisecond. A unit taken at `t` counts while now < t + window. A log
 * is a value that never changes, and shares its runs with the log that it grew from. Positions and numbers of units
 * are counted from the beginning of the log, at `sinceMs`.
 */
export interface UnitLog {
  readonly sinceMs: number;
  readonly runs: Runs;
  /** The position of the first closed run that may still count. */
  readonly first: number;
  /** The position after the last closed run. */
  readonly end: number;
  /** So many of the oldest units do not count any more: they have left the window, or were given back. */
  readonly goneUnits: number;
  /** Younger units that do not count any more: they were given back, and older ones go on counting. */
  readonly holes: Holes;
  /** All units of closed runs, since the log began. */
  readonly closedUnits: number;
  /** The latest run. It is open: more units may join it. */
  readonly openMs: number;
  readonly openUnits: number;
}

/**
 * The stored form: never rename a field. `tail` has the closed runs that are in no segment, two numbers for each: its
 * millisecond, and all units up to and including it.
 */
export interface UnitLogRecord extends Omit<UnitLog, "runs" | "first" | "holes"> {
  readonly tail: readonly number[];
  /** Absent: there are none. Whoever does not know this field counts these units as if they had not been given back. */
  readonly holes?: Holes;
}

/** The most units that may count at once, since runs keep unit counts modulo 2^32. A debt above this is cut off. */
export const MAX_COUNTED = 2 ** 32 - 1;
/**
 * A record carries up to so many closed runs, and is written each time. More become a segment, which is written once.
 */
const MAX_TAIL = 64;
/** A record carries up to so many holes. */
const MAX_HOLES = 64;

/** A log without units. */
export function begin(nowMs: number): UnitLog {
  const none = { first: 0, end: 0, goneUnits: 0, holes: NO_HOLES, closedUnits: 0, openUnits: 0 };
  return { sinceMs: nowMs, runs: Runs.empty(0), ...none, openMs: nowMs };
}

/** The log with `units` more at `nowMs`. Of all its units only the newest `most` go on counting. */
export function add(log: UnitLog, windowMs: number, nowMs: number, units: number, most: number): UnitLog {
  const { first, goneUnits } = countingFrom(log, windowMs, nowMs);
  let { runs, end, closedUnits, openUnits } = log;
  const openMs = Math.max(log.openMs, nowMs);
  if (openMs > log.openMs && openUnits > 0) {
    closedUnits += openUnits;
    runs = runs.with(first, end, log.openMs, closedUnits);
    [end, openUnits] = [end + 1, 0];
  }
  openUnits += Math.min(units, MAX_COUNTED - (totalOf(log) - goneUnits));
  const counted = closedUnits + openUnits - goneUnits - unitsInHoles(log.holes, goneUnits);
  const gone = after(log.holes, goneUnits, Math.max(0, counted - most));
  const holes = holesFrom(log.holes, gone);
  return { sinceMs: log.sinceMs, runs, first, end, goneUnits: gone, holes, closedUnits, openMs, openUnits };
}

/**
 * The log after `units` were given back, nobody knows which. The oldest units go, which leave the window first anyway.
 * So in every later window the log counts at least the units that were really used in it, whichever they were.
 */
export function withoutOldest<Log extends UnitLog>(
  log: Log,
  windowMs: number,
  nowMs: number,
  units: number,
): Log {
  const { goneUnits } = countingFrom(log, windowMs, nowMs);
  const most = Math.min(units, countedAt(log, windowMs, nowMs));
  return { ...log, goneUnits: after(log.holes, goneUnits, most) };
}

/**
 * The log after `units` of those that were logged at `atMs` were given back, as far as they still count. When there
 * are too many holes already, the oldest units go instead, which is never too many.
 */
export function withoutUnitsAt<Log extends UnitLog>(
  log: Log,
  windowMs: number,
  nowMs: number,
  units: number,
  atMs: number,
): Log {
  const { first, goneUnits } = countingFrom(log, windowMs, nowMs);
  const position = search(first, log.end, (at) => log.runs.atMs(at) >= atMs);
  const isOpen = position === log.end;
  if ((isOpen ? log.openMs : log.runs.atMs(position)) !== atMs) return log;
  const from = Math.max(goneUnits, position > first ? unitsTo(log, position - 1) : 0);
  const to = isOpen ? totalOf(log) : unitsTo(log, position);
  const counted = to - from - (unitsInHoles(log.holes, from) - unitsInHoles(log.holes, to));
  const given = Math.min(units, counted);
  if (given <= 0) return log;
  const live = holesFrom(log.holes, goneUnits);
  const holes = withHole(live, after(live, from, counted - given), to);
  return holes.length > 2 * MAX_HOLES ? withoutOldest(log, windowMs, nowMs, given) : { ...log, holes };
}

/** Units that count at `nowMs`. */
export function countedAt(log: UnitLog | undefined, windowMs: number, nowMs: number): number {
  if (log === undefined) return 0;
  const { goneUnits } = countingFrom(log, windowMs, nowMs);
  return totalOf(log) - goneUnits - unitsInHoles(log.holes, goneUnits);
}

/** How many units may join: as many as can be counted, and none if that would take one of over `mostRuns` runs. */
export function roomIn(log: UnitLog | undefined, windowMs: number, nowMs: number, mostRuns: number): number {
  if (log === undefined) return MAX_COUNTED;
  const { first, goneUnits } = countingFrom(log, windowMs, nowMs);
  return log.end - first >= mostRuns ? 0 : MAX_COUNTED - (totalOf(log) - goneUnits);
}

/** The instant at which the oldest `units` of those that count at `nowMs` have left the window. */
export function leavesAtMs(log: UnitLog, windowMs: number, nowMs: number, units: number): number {
  const { first, goneUnits } = countingFrom(log, windowMs, nowMs);
  return windowMs + loggedAtMs(log, first, after(log.holes, goneUnits, units));
}

/** The instant at which the last unit leaves the window; -Infinity: the log has no unit that could count. */
export function emptyAtMs(log: UnitLog, windowMs: number): number {
  const { first, goneUnits, holes } = log;
  const total = totalOf(log);
  if (holes.at(-1) !== total) return total > goneUnits ? windowMs + log.openMs : -Infinity;
  const last = holes.at(-2) ?? 0;
  return last > goneUnits ? windowMs + loggedAtMs(log, first, last) : -Infinity;
}

/** All units logged since the log began, those that do not count any more included. */
export function totalOf({ closedUnits, openUnits }: Pick<UnitLog, "closedUnits" | "openUnits">): number {
  return closedUnits + openUnits;
}

/**
 * The log as storage keeps it: a record, and a segment when the tail has grown too long.
 *
 * @param before the record that was written last
 * @param live what counts now, as `countingFrom` says
 */
export function packLog(
  log: UnitLog,
  before: UnitLogRecord | undefined,
  live: { readonly first: number; readonly goneUnits: number },
): { readonly record: UnitLogRecord; readonly segment?: NewSegment } {
  const { sinceMs, runs, end, closedUnits, openMs, openUnits } = log;
  // Runs that have left the window are not written, so the record must say that their units are gone.
  const holes = holesFrom(log.holes, live.goneUnits);
  const counts = { goneUnits: live.goneUnits, ...(holes.length > 0 && { holes }) };
  const rest = { sinceMs, end, ...counts, closedUnits, openMs, openUnits };
  const sealed = before?.sinceMs === log.sinceMs ? before.end - before.tail.length / 2 : 0;
  const from = Math.max(sealed, live.first);
  const tail: number[] = [];
  for (let at = from; at < end; at += 1) tail.push(runs.atMs(at), unitsTo(log, at));
  if (tail.length <= 2 * MAX_TAIL) return { record: { ...rest, tail } };
  const keepFromMs = live.first < end ? runs.atMs(live.first) : log.openMs;
  const segment = { log: log.sinceMs, from, toMs: runs.atMs(end - 1), keepFromMs, entries: tail };
  return { record: { ...rest, tail: [] }, segment };
}

/** The log that a record and the stored segments stand for. Segments of other logs are not used. */
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

/** The first closed run that counts at `nowMs` (`end`: none does), and how many units do not count any more. */
export function countingFrom(
  log: UnitLog,
  windowMs: number,
  nowMs: number,
): { readonly first: number; readonly goneUnits: number } {
  const { runs, end, openMs } = log;
  const leftMs = nowMs - windowMs;
  if (openMs <= leftMs) return { first: end, goneUnits: totalOf(log) };
  const counts = (at: number) => runs.atMs(at) > leftMs && unitsTo(log, at) > log.goneUnits;
  const first = search(log.first, end, counts);
  const before = first > log.first ? unitsTo(log, first - 1) : 0;
  return { first, goneUnits: Math.max(log.goneUnits, before) };
}

/** All units logged up to and including a run. The difference to `closedUnits` is exact modulo 2^32. */
function unitsTo({ runs, closedUnits }: UnitLog, position: number): number {
  return closedUnits - ((closedUnits - runs.unitsTo(position)) >>> 0);
}

/** When the units up to this number had been logged, in a run at `first` or behind it. */
function loggedAtMs(log: UnitLog, first: number, units: number): number {
  if (units > log.closedUnits) return log.openMs;
  const position = search(first, log.end, (at) => unitsTo(log, at) >= units);
  return position === log.end ? log.openMs : log.runs.atMs(position);
}

/**
 * Holes in a log: units that were given back by name, and that do not count any more. The units of a log are numbered
 * as they were logged, from 0. A hole is a pair of numbers `from, to`: the units from number `from` up to `to`, `to`
 * not included. A list has its pairs in order, and no two of them touch. Units only ever join holes, so a log whose
 * record is older than its latest hole counts too much and never too little.
 */
type Holes = readonly number[];

export const NO_HOLES: Holes = [];

/** How many units with this number or a higher one are in holes. */
export function unitsInHoles(holes: Holes, from: number): number {
  let units = 0;
  for (let at = 0; at < holes.length; at += 2)
    units += Math.max(0, endOf(holes, at) - startOf(holes, at, from));
  return units;
}

/** The number after the first `units` units that are in no hole, counted from the number `from` on. */
function after(holes: Holes, from: number, units: number): number {
  let to = from + units;
  for (let at = 0; at < holes.length && startOf(holes, at, from) < to; at += 2)
    to += Math.max(0, endOf(holes, at) - startOf(holes, at, from));
  return to;
}

/** The list with one hole more, which may touch others or lie over them. */
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

/** The holes that have a unit with this number or a higher one. */
function holesFrom(holes: Holes, from: number): Holes {
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
   * @param total all units logged up to and including the new run; taken modulo 2^32
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
