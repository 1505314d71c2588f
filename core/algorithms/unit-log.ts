import type { NewSegment, Segment } from "./packed.ts";
import { Runs, search } from "./runs.ts";

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
  /** Units that do not count any more: they have left the window, or were given back. */
  readonly goneUnits: number;
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
export interface UnitLogRecord extends Omit<UnitLog, "runs" | "first"> {
  readonly tail: readonly number[];
}

/** The most units that may count at once, since runs keep unit counts modulo 2^32. A debt above this is cut off. */
export const MOST_COUNTED = 2 ** 32 - 1;
/**
 * A record carries up to so many closed runs, and is written each time. More become a segment, which is written once.
 */
const MOST_TAIL = 64;

/** A log without units. */
export function begin(nowMs: number): UnitLog {
  const none = { first: 0, end: 0, goneUnits: 0, closedUnits: 0, openUnits: 0 };
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
  openUnits += Math.min(units, MOST_COUNTED - (totalOf(log) - goneUnits));
  const gone = Math.max(goneUnits, closedUnits + openUnits - most);
  return { sinceMs: log.sinceMs, runs, first, end, goneUnits: gone, closedUnits, openMs, openUnits };
}

/**
 * The `goneUnits` after `units` are given back. The oldest units go, which leave the window first anyway. So in every
 * later window the log counts at least the units that were really used in it, whichever units were given back.
 */
export function goneAfter(log: UnitLog, windowMs: number, nowMs: number, units: number): number {
  return totalOf(log) - Math.max(0, countedAt(log, windowMs, nowMs) - units);
}

/** Units that count at `nowMs`. */
export function countedAt(log: UnitLog | undefined, windowMs: number, nowMs: number): number {
  return log === undefined ? 0 : totalOf(log) - countingFrom(log, windowMs, nowMs).goneUnits;
}

/** The instant at which the oldest `units` of those that count at `nowMs` have left the window. */
export function leavesAtMs(log: UnitLog, windowMs: number, nowMs: number, units: number): number {
  const { first, goneUnits } = countingFrom(log, windowMs, nowMs);
  const position = search(first, log.end, (at) => unitsTo(log, at) >= goneUnits + units);
  return windowMs + (position === log.end ? log.openMs : log.runs.atMs(position));
}

/** The instant at which the last unit leaves the window; -Infinity: the log has no unit that could count. */
export function emptyAtMs(log: UnitLog, windowMs: number): number {
  return totalOf(log) > log.goneUnits ? log.openMs + windowMs : -Infinity;
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
  const rest = { sinceMs, end, goneUnits: live.goneUnits, closedUnits, openMs, openUnits };
  const sealed = before?.sinceMs === log.sinceMs ? before.end - before.tail.length / 2 : 0;
  const from = Math.max(sealed, live.first);
  const tail: number[] = [];
  for (let at = from; at < end; at += 1) tail.push(runs.atMs(at), unitsTo(log, at));
  if (tail.length <= 2 * MOST_TAIL) return { record: { ...rest, tail } };
  const keepFromMs = live.first < end ? runs.atMs(live.first) : log.openMs;
  const segment = { log: log.sinceMs, from, toMs: runs.atMs(end - 1), keepFromMs, entries: tail };
  return { record: { ...rest, tail: [] }, segment };
}

/** The log that a record and the stored segments stand for. Segments of other logs are not used. */
export function unpackLog({ tail, ...rest }: UnitLogRecord, segments: readonly Segment[]): UnitLog {
  const ofThisLog = segments.filter(({ log }) => log === rest.sinceMs).toSorted((a, b) => a.from - b.from);
  const parts = [...ofThisLog.map(({ entries }) => entries), tail];
  const count = parts.reduce((sum, { length }) => sum + length / 2, 0);
  const first = rest.end - count;
  let [runs, position] = [Runs.empty(first), first];
  for (const part of parts) {
    for (let index = 0; index < part.length; index += 2) {
      runs = runs.with(first, position, part[index] ?? 0, part[index + 1] ?? 0);
      position += 1;
    }
  }
  return { ...rest, runs, first };
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
