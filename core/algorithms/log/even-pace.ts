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
import { add, begin, countedAt, liveRuns, MAX_COUNTED, type UnitLog } from "./unit-log.ts";

/** What an algorithm needs for that. */
export interface EvenPace<Config, State> {
  /** The units that may leave the state, by `credit`, when a bucket begins for which `units` are held a window. */
  most(config: Config, state: State | undefined, nowMs: number, units: number): number;
  /** Takes `units` that a bucket admitted in the last window, and gives up. */
  debit(config: Config, state: State | undefined, nowMs: number, units: number): State | undefined;
}

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

/** The log with `units` that were used in the last window, at an even pace at most. */
export function addEvenly(log: UnitLog, windowMs: number, nowMs: number, units: number): UnitLog {
  // A log is known by the millisecond in which it began, and no unit is logged before the last one.
  if (nowMs <= log.sinceMs || nowMs < log.openMs) return add(log, windowMs, nowMs, units, MAX_COUNTED);
  const runs = [...liveRuns(log, windowMs, nowMs)];
  for (let step = 0; step < STEPS; step += 1) {
    const each = Math.ceil((units * (step + 1)) / STEPS) - Math.ceil((units * step) / STEPS);
    runs.push([nowMs - Math.floor((step * windowMs) / STEPS), each]);
  }
  runs.sort(([a], [b]) => a - b);
  const oldestMs = runs[0]?.[0] ?? nowMs;
  let merged: UnitLog = { ...begin(nowMs), openMs: oldestMs, lastMs: log.lastMs };
  for (const [atMs, each] of runs) if (each > 0) merged = add(merged, windowMs, atMs, each, MAX_COUNTED);
  return merged;
}
