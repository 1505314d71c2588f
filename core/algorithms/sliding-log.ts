import type { Algorithm, AlgorithmDecision, Denial } from "./algorithm.ts";
import {
  add,
  begin,
  countedAt,
  countingFrom,
  emptyAtMs,
  goneAfter,
  leavesAtMs,
  MOST_COUNTED,
  packLog,
  totalOf,
  unpackLog,
  type UnitLog,
  type UnitLogRecord,
} from "./unit-log.ts";

/**
 * Sliding log: at most `limit` units in any window, exactly.
 *
 * A counter that starts again at 0 in every window admits twice the limit around the edge of two windows. Two
 * counters, weighted by how far the window has moved, only estimate. The log remembers when each unit was taken. A
 * unit taken at `t` counts while now < t + window, and a cost passes when
 *
 *     units counted + outstanding + cost  <=  limit
 *
 * Example: limit 3 per 1,000 ms, one unit each at 0, 400 and 900 ms. At 950 ms a cost of 1 waits until the first unit
 * leaves the window: 50 ms. A cost of 2 waits for the second: 450 ms.
 *
 * The units of one millisecond are one run (runs.ts). The latest run is kept open in the state, since more units may
 * join it. Every run knows how many units were logged up to it, so the number of units that count is a difference.
 * The wait for a cost is found by a search that begins at the oldest run. So on average the time of a decision does
 * not grow with the log, only with the logarithm of the number of runs that a cost has to wait for. A refund takes
 * the oldest units, which leave first anyway: any other choice could admit too many.
 *
 * `minInterval` is the shortest time between two calls that pass. With `countDenied` a denied call is logged as if it
 * had passed, so a client that never pauses stays denied. Then only the newest `limit` units can matter, and older
 * ones are dropped.
 *
 * The bound, in any window: `limit` units. Its worst boundary: `limit` units at once, and again one window later. A
 * client that calls steadily above the limit is denied in bursts. What it is bad at: memory. It keeps a run for each
 * distinct millisecond, at most 1,000,000.
 */
export interface SlidingLogConfig {
  readonly limit: number;
  readonly windowMs: number;
  /** 0: calls may come at any distance. */
  readonly minIntervalMs: number;
  /** A denied call is logged as if it had passed. */
  readonly countDenied: boolean;
}

export interface SlidingLogState extends UnitLog {
  /** When the last call passed or, with `countDenied`, was made: `minInterval` begins here. */
  readonly lastMs: number;
}

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
  wholeFromEmptyMs: ({ windowMs, minIntervalMs }) => Math.max(windowMs, minIntervalMs),

  scale(config, part) {
    const limit = Math.floor(config.limit * part);
    return limit < 1 ? undefined : { ...config, limit };
  },

  decide(config, state, nowMs, cost, outstanding): AlgorithmDecision<State> {
    const { minIntervalMs, limit, countDenied } = config;
    const free = limit - countedAt(state, config.windowMs, nowMs) - outstanding;
    const isTooSoon = minIntervalMs > 0 && state !== undefined && nowMs < state.lastMs + minIntervalMs;
    if (cost > 0 && (cost > free || isTooSoon)) {
      const denied = deny(config, state, nowMs, cost, outstanding);
      if (!countDenied || cost > limit) return { allowed: false, ...denied };
      const after = logged(config, state, nowMs, cost, limit);
      const counted = { ...deny(config, after, nowMs, cost, outstanding), state: after };
      return { allowed: false, ...denied, counted };
    }
    const isWhole = state === undefined || slidingLog.wholeAtMs(config, state) <= nowMs;
    const untaken = isWhole ? undefined : state;
    const after = cost === 0 ? untaken : logged(config, state, nowMs, cost, MOST_COUNTED);
    const remaining = isTooSoon || (cost > 0 && minIntervalMs > 0) ? 0 : Math.max(0, free - cost);
    return { allowed: true, state: after, remaining, resetAfterMs: wholeAfterMs(config, after, nowMs) };
  },

  debit: (config, state, nowMs, units) =>
    units === 0 ? state : logged(config, state, nowMs, units, MOST_COUNTED, state?.lastMs ?? 0),

  credit(config, state, nowMs, units) {
    return state && { ...state, goneUnits: goneAfter(state, config.windowMs, nowMs, units) };
  },

  noteHold(config, state, nowMs) {
    if (config.minIntervalMs === 0) return state;
    return { ...(state ?? begin(nowMs)), lastMs: Math.max(nowMs, state?.lastMs ?? nowMs) };
  },

  wholeAtMs(config, state) {
    const atMs = emptyAtMs(state, config.windowMs);
    return config.minIntervalMs === 0 ? atMs : Math.max(atMs, state.lastMs + config.minIntervalMs);
  },

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

  bytes: (state) => state.runs.bytes,
};

function deny(
  config: Config,
  state: State | undefined,
  nowMs: number,
  cost: number,
  outstanding: number,
): Denial {
  const { limit, windowMs, minIntervalMs } = config;
  const free = limit - countedAt(state, windowMs, nowMs) - outstanding;
  const fits = state === undefined || cost <= free;
  const quotaMs = fits ? nowMs : leavesAtMs(state, windowMs, nowMs, cost - free);
  const intervalMs = state === undefined || minIntervalMs === 0 ? nowMs : state.lastMs + minIntervalMs;
  const isInterval = intervalMs > quotaMs;
  return {
    reason: cost > limit ? "cost-over-limit" : isInterval ? "min-interval" : "quota",
    retryAfterMs: cost + outstanding > limit ? null : Math.max(quotaMs, intervalMs) - nowMs,
    remaining: intervalMs > nowMs ? 0 : Math.max(0, free),
    resetAfterMs: wholeAfterMs(config, state, nowMs),
  };
}

/** The state with `units` more at `nowMs`. Of all its units only the newest `most` go on counting. */
function logged(
  config: Config,
  state: State | undefined,
  nowMs: number,
  units: number,
  most: number,
  lastMs = nowMs,
): State {
  // When nothing in the log counts any more, a new log begins.
  const isOver = state !== undefined && slidingLog.wholeAtMs(config, state) <= nowMs && state.openMs < nowMs;
  const log = state === undefined || isOver ? begin(nowMs) : state;
  const added = add(log, config.windowMs, nowMs, units, most);
  return { ...added, lastMs: isOver ? lastMs : Math.max(state?.lastMs ?? 0, lastMs) };
}

function wholeAfterMs(config: Config, state: State | undefined, nowMs: number): number {
  return state === undefined ? 0 : Math.max(0, slidingLog.wholeAtMs(config, state) - nowMs);
}
