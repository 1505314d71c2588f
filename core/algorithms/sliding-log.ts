import type { Algorithm } from "./algorithm.ts";
import { NO_HOLES, unitsInHoles } from "./holes.ts";
import { decideByLog, logged, type SlidingLogConfig, type SlidingLogState } from "./log-decision.ts";
import { SlidingLogForecast } from "./log-forecast.ts";
import {
  begin,
  countedAt,
  countingFrom,
  emptyAtMs,
  MOST_COUNTED,
  packLog,
  roomIn,
  totalOf,
  unpackLog,
  withoutOldest,
  withoutUnitsAt,
  type UnitLogRecord,
} from "./unit-log.ts";

/**
 * Sliding log: at most `limit` units in any window, exactly.
 *
 * A counter that starts again at 0 in every window admits twice the limit around the edge of two windows. Two
 * counters, weighted by how far the window has moved, only estimate. The log remembers when each unit was taken. A unit
 * taken at `t` counts while now < t + window, and a cost passes when
 *
 *     units counted + outstanding + cost  <=  limit
 *
 * Example: limit 3 per 1,000 ms, one unit each at 0, 400 and 900 ms. At 950 ms a cost of 1 waits until the first unit
 * leaves the window: 50 ms, and a cost of 2 for the second: 450 ms.
 *
 * The units of one millisecond are one run (runs.ts). The latest run is kept open in the state, since more units may
 * join it. Every run knows how many units were logged up to it, so the number of units that count is a difference.
 * The wait for a cost is found by a search that begins at the oldest run. So on average the time of a decision does
 * not grow with the log, only with the logarithm of the number of runs that a cost has to wait for.
 *
 * A refund that names its charge takes units out of the run in which they were logged (holes.ts), if that still
 * counts. Without a name it takes the oldest units, which leave first anyway: any other choice could admit too many.
 *
 * `minInterval` is the shortest time between two calls that pass. With `countDenied` a denied call is logged as if it
 * had passed, so a client that never pauses stays denied. Then only the newest `limit` units matter and are kept.
 *
 * The bound, in any window: `limit` units. Its worst boundary: `limit` units at once, and again one window later. A
 * client that calls steadily above the limit is denied in bursts. What it is bad at: memory. It keeps a run for each
 * distinct millisecond, at most 1,000,000.
 */
export type { SlidingLogConfig, SlidingLogState } from "./log-decision.ts";

type State = SlidingLogState;
type Config = SlidingLogConfig;
type Record = UnitLogRecord & Pick<State, "lastMs">;
/** A run takes at most 16 bytes, and an object has 128 MB for everything. */
const MOST_RUNS = 1_000_000;
/** The most runs in one segment: they take 1.6 MB there, and a row of storage has room for 2 MB. */
const MOST_SEGMENT = 100_000;

export const slidingLog: Algorithm<Config, State> = {
  name: "sliding-log",
  isPoolable: true,
  fields: { limit: "units", window: "duration", minInterval: "duration?", countDenied: "boolean?" },

  configure(fields) {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    if (Math.min(limit, windowMs) > MOST_RUNS) {
      const allowed = `at most ${MOST_RUNS} with a window of more than ${MOST_RUNS} ms (every unit is remembered)`;
      return { problem: { field: "limit", allowed } };
    }
    const minIntervalMs = Number(fields["minInterval"] ?? 0);
    return { limit, windowMs, minIntervalMs, countDenied: fields["countDenied"] === true };
  },

  capacity: (config) => config.limit,
  quota: (config) => ({ units: config.limit, windowMs: config.windowMs }),

  localDecisions: ({ minIntervalMs, countDenied }) => ({
    admits: minIntervalMs === 0 && !countDenied,
    denies: !countDenied,
  }),
  wholeFromMs: ({ windowMs, minIntervalMs }) => Math.max(windowMs, minIntervalMs),

  scale(config, part) {
    const limit = Math.floor(config.limit * part);
    return limit < 1 ? undefined : { ...config, limit };
  },

  decide: decideByLog,

  debit: (config, state, nowMs, units) =>
    units === 0 ? state : logged(config, state, nowMs, units, MOST_COUNTED, state?.lastMs ?? 0),

  mostDebit: (config, state, nowMs) => roomIn(state, config.windowMs, nowMs, MOST_RUNS),

  credit(config, state, nowMs, units) {
    return state && withoutOldest(state, config.windowMs, nowMs, units);
  },

  uncharge(config, state, nowMs, units, atMs) {
    return state && withoutUnitsAt(state, config.windowMs, nowMs, units, atMs);
  },

  noteHold(config, state, nowMs) {
    if (config.minIntervalMs === 0) return state;
    return { ...(state ?? begin(nowMs)), lastMs: Math.max(nowMs, state?.lastMs ?? nowMs) };
  },

  wholeAtMs({ windowMs, minIntervalMs }, state, uses) {
    // What is used last leaves the window last.
    const lastUseMs = uses?.endsMs.at(-1);
    if (state === undefined && lastUseMs === undefined) return -Infinity;
    const { openMs = -Infinity, lastMs = 0 } = state ?? {};
    const emptyMs = state === undefined ? -Infinity : emptyAtMs(state, windowMs);
    const atMs = lastUseMs === undefined ? emptyMs : Math.max(openMs, lastUseMs) + windowMs;
    return minIntervalMs === 0 ? atMs : Math.max(atMs, lastMs + minIntervalMs);
  },

  forecast: (config, state) => new SlidingLogForecast(config, state),

  covers(config, stored, ahead, state, outstanding, nowMs) {
    if (state === undefined) return outstanding <= ahead;
    const record = stored as Record | undefined;
    if (config.minIntervalMs > 0 && record?.lastMs !== state.lastMs) return false;
    if (state.end - (record?.end ?? 0) > MOST_SEGMENT) return false;
    // Units that were taken since the record was written; when the record is of an older log, all units that count.
    const isSameLog = record?.sinceMs === state.sinceMs;
    const since = isSameLog ? totalOf(state) - totalOf(record) : countedAt(state, config.windowMs, nowMs);
    return since >= 0 && since + outstanding <= ahead;
  },

  pack(config, { lastMs, ...log }, nowMs, before) {
    const live = countingFrom(log, config.windowMs, nowMs);
    const { record, ...packed } = packLog(log, before as Record | undefined, live);
    return { record: { ...record, lastMs } satisfies Record, ...packed };
  },

  unpack(_, stored, segments) {
    const { lastMs, ...record } = stored as Record;
    return { ...unpackLog(record, segments), lastMs };
  },

  used(record) {
    if (record === null) return 0;
    const { goneUnits, holes, ...counts } = record as Record;
    return totalOf(counts) - goneUnits - unitsInHoles(holes ?? NO_HOLES, goneUnits);
  },

  bytes: (state) => state.runs.bytes,
};
