import type { NewSegment, Segment } from "./algorithm.ts";
import { Runs, search } from "./runs.ts";

/**
 * A log of units: how many were taken at which millisecond, of which those count that were within a window before now.
 * A plain value that shares its runs with the log it grew from. Positions and units count from the beginning of this
 * log, which began at `sinceMs`.
 */
export interface UnitLog {
  readonly sinceMs: number;
  readonly runs: Runs;
  /** The first run that may count, and the position after the last closed one. */
  readonly first: number;
  readonly end: number;
  /** Units that have left or were given back, and units in closed runs. */
  readonly goneUnits: number;
  readonly closedUnits: number;
  /** The open run, the latest: more units may join it. */
  readonly openMs: number;
  readonly openUnits: number;
}

/** The stored form. `tail` is the closed runs that no segment has: when, and all units up to then, in turn. For ever. */
export interface UnitLogRecord extends Omit<UnitLog, "runs" | "first"> {
  readonly tail: readonly number[];
}

/** Differences of unit counts are taken modulo 2^32, so no more may count at once; a debt over it is cut. */
export const MOST_COUNTED = 2 ** 32 - 1;
/** So many closed runs are written with every record before they become a segment, which is written once. */
const MOST_TAIL = 64;

export function begin(nowMs: number): UnitLog {
  const none = { first: 0, end: 0, goneUnits: 0, closedUnits: 0, openUnits: 0 };
  return { sinceMs: nowMs, runs: Runs.empty(0), ...none, openMs: nowMs };
}

/** The log with more units at `nowMs`, at most the newest `most` of all. */
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
 * The goneUnits after `units` are given back. The oldest go, which are the first to leave anyway: then what still
 * counts is, in every window to come, no less than what is really in it, whichever units these were.
 */
export function goneAfter(log: UnitLog, windowMs: number, nowMs: number, units: number): number {
  return totalOf(log) - Math.max(0, countedAt(log, windowMs, nowMs) - units);
}

/** Units that count at `nowMs`. */
export function countedAt(log: UnitLog | undefined, windowMs: number, nowMs: number): number {
  return log === undefined ? 0 : totalOf(log) - countingFrom(log, windowMs, nowMs).goneUnits;
}

/** When so many of the units that count will have left. */
export function leavesAtMs(log: UnitLog, windowMs: number, nowMs: number, units: number): number {
  const { first, goneUnits } = countingFrom(log, windowMs, nowMs);
  const position = search(first, log.end, (at) => unitsTo(log, at) >= goneUnits + units);
  return windowMs + (position === log.end ? log.openMs : log.runs.atMs(position));
}

/** When the last unit leaves; none counts: never. */
export function emptyAtMs(log: UnitLog, windowMs: number): number {
  return totalOf(log) > log.goneUnits ? log.openMs + windowMs : -Infinity;
}

/** All units logged since it began. */
export function totalOf({ closedUnits, openUnits }: Pick<UnitLog, "closedUnits" | "openUnits">): number {
  return closedUnits + openUnits;
}

/** The log as storage keeps it; `before` is the record that was written last. */
export function packLog(
  log: UnitLog,
  before: UnitLogRecord | undefined,
  live: { readonly first: number; readonly goneUnits: number },
): { readonly record: UnitLogRecord; readonly segment?: NewSegment } {
  const { sinceMs, runs, end, closedUnits, openMs, openUnits } = log;
  // What has left is not written, so that it has is.
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

/** The log of a record, with all segments there are. */
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

/** The first run that counts at `nowMs` (`end`: none but perhaps the open one), and the units that do not. */
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

/** All units logged up to and with a run. */
function unitsTo({ runs, closedUnits }: UnitLog, position: number): number {
  return closedUnits - ((closedUnits - runs.unitsTo(position)) >>> 0);
}
