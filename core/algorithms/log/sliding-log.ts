import {
  type Algorithm,
  type AlgorithmDecision,
  configProblem,
  type Denial,
  type Forecast,
  scaleLimit,
} from "../algorithm.ts";
import {
  add,
  addEvenly,
  atEvenPace,
  begin,
  countedAt,
  emptyAtMs,
  leavesAtMs,
  MAX_COUNTED,
  packLog,
  recordedUnits,
  roomIn,
  search,
  unitsInLog,
  type UnitLog,
  type UnitLogRecord,
  unpackLog,
  withoutUnits,
} from "./unit-log.ts";

/**
 * Sliding log: at most `limit` units in any window, exactly.
 *
 * A counter that starts again at 0 in every window admits twice the limit around the edge of two windows. Two
 * counters, weighted by the position in the window, only estimate. The log stores when each unit was taken. A unit
 * taken at `t` counts while now < t + window, and a cost passes when
 *
 *     units counted + outstanding + cost  <=  limit
 *
 * Example: limit 3 per 1,000 ms, one unit each at 0, 400 and 900 ms. At 950 ms a cost of 1 waits until the first unit
 * leaves the window: 50 ms, and a cost of 2 for the second: 450 ms.
 *
 * The units of one millisecond are one run (unit-log.ts); more units may join the latest. Every run has the number of
 * units logged up to it, so the number that counts is a difference. The wait for a cost is found by a search from the
 * oldest run. So the average time of a decision only grows with the logarithm of the number of runs that a cost waits
 * for.
 *
 * A refund that names its charge takes units out of their run, if that still counts. Without a name it takes the
 * oldest units, which leave first: any other choice could admit too many.
 *
 * `minInterval` is the shortest time between two calls that pass. With `countDenied` a denied call is logged as if it
 * had passed, so a client that never pauses stays denied. Then only the newest `limit` units matter and are kept.
 *
 * The bound, in any window: `limit` units. The worst boundary: `limit` units at once, and again one window later. A
 * client that calls steadily above the limit is denied in bursts. What it is bad at: memory. It keeps a run for each
 * distinct millisecond, at most 1,000,000.
 */

type State = UnitLog;
type Config = SlidingLogConfig;
/** A run takes at most 16 bytes, and an object has 128 MB for everything. */
const MAX_RUNS = 1_000_000;
/** The runs of a segment take 1.6 MB of the 2 MB of a row. */
const MAX_SEGMENT = 100_000;

/** In a longer one units that holders keep for seconds are few, and what a bucket gives up counts as used for all of it. */
const MAX_CUT_WINDOW_MS = 10_000;

export function cutByWindow<Windowed extends { readonly windowMs: number }>(
  config: Windowed,
): Windowed | undefined {
  return config.windowMs <= MAX_CUT_WINDOW_MS ? config : undefined;
}

export const slidingLog: Algorithm<Config, State> = {
  name: "sliding-log",
  isPoolable: true,
  fields: { limit: "units", window: "duration", minInterval: "duration?", countDenied: "boolean?" },

  configure(fields) {
    const [limit, windowMs] = [Number(fields["limit"]), Number(fields["window"])];
    if (Math.min(limit, windowMs) > MAX_RUNS) {
      const allowed = `at most ${MAX_RUNS} with a window of more than ${MAX_RUNS} ms (every unit is stored)`;
      return configProblem("limit", allowed);
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
  refillMs: ({ windowMs, minIntervalMs }) => Math.max(windowMs, minIntervalMs),
  scale: scaleLimit,
  canCount: ({ windowMs }, units) => Math.min(units, windowMs) <= MAX_RUNS,
  isCutByWindow: true,
  lessRate: cutByWindow,

  decide(config, state, nowMs, cost, outstanding): AlgorithmDecision<State> {
    const { minIntervalMs, limit, countDenied } = config;
    const free = limit - countedAt(state, config.windowMs, nowMs) - outstanding;
    const isTooSoon = minIntervalMs > 0 && state !== undefined && nowMs < state.lastMs + minIntervalMs;
    if (cost > 0 && (cost > free || isTooSoon)) {
      const denied = deny(config, state, nowMs, cost, outstanding);
      if (!countDenied || cost > limit) return { allowed: false, ...denied };
      const after = logged(config, state, nowMs, cost, limit);
      // The estimate includes this call. The reason is from before it was counted.
      const { reason } = denied;
      const counted = { ...deny(config, after, nowMs, cost, outstanding), reason, state: after };
      return { allowed: false, ...denied, counted };
    }
    const untaken = state === undefined || untouchedMs(config, state) <= nowMs ? undefined : state;
    const after = cost === 0 ? untaken : logged(config, state, nowMs, cost, MAX_COUNTED);
    const isSpaced = isTooSoon || (cost > 0 && minIntervalMs > 0);
    const resetAfterMs = untouchedAfterMs(config, after, nowMs);
    return { allowed: true, state: after, ...estimateOf(config, free - cost, isSpaced), resetAfterMs };
  },

  debit: (config, state, nowMs, units) =>
    units === 0 ? state : logged(config, state, nowMs, units, MAX_COUNTED, state?.lastMs ?? 0),

  maxDebit: (config, state, nowMs) => roomIn(state, config.windowMs, nowMs, MAX_RUNS),

  credit: ({ windowMs }, state, nowMs, units, atMs) =>
    state && withoutUnits(state, windowMs, nowMs, units, atMs),

  evenPace: {
    most: ({ windowMs }, state, nowMs, units) =>
      state === undefined ? 0 : atEvenPace(state, windowMs, nowMs, units),
    debit: ({ windowMs }, state, nowMs, given) =>
      given.units === 0 ? state : addEvenly(state ?? begin(nowMs - 1), windowMs, nowMs, given),
  },

  noteHold(config, state, nowMs) {
    if (config.minIntervalMs === 0) return state;
    return { ...(state ?? begin(nowMs)), lastMs: Math.max(nowMs, state?.lastMs ?? nowMs) };
  },

  untouchedAtMs(config, state, uses) {
    const { windowMs, minIntervalMs } = config;
    const lastUseMs = uses?.endsMs.at(-1);
    if (lastUseMs === undefined) return state === undefined ? -Infinity : untouchedMs(config, state);
    // The last use leaves the window last.
    const atMs = Math.max(state?.openMs ?? -Infinity, lastUseMs) + windowMs;
    return minIntervalMs === 0 ? atMs : Math.max(atMs, (state?.lastMs ?? 0) + minIntervalMs);
  },

  forecast: forecastOf,

  covers(config, stored, ahead, state, outstanding, nowMs) {
    if (state === undefined) return outstanding <= ahead;
    const record = stored as UnitLogRecord | undefined;
    if (config.minIntervalMs > 0 && record?.lastMs !== state.lastMs) return false;
    if (state.end - (record?.end ?? 0) > MAX_SEGMENT) return false;
    // Units taken since the record was written; if the record is of an older log, all units that count.
    const isSameLog = record?.sinceMs === state.sinceMs;
    const since = isSameLog
      ? unitsInLog(state) - unitsInLog(record)
      : countedAt(state, config.windowMs, nowMs);
    return since >= 0 && since + outstanding <= ahead;
  },

  pack: ({ windowMs }, log, nowMs, before) =>
    packLog(log, windowMs, nowMs, before as UnitLogRecord | undefined),
  unpack: (_, record, segments) => unpackLog(record as UnitLogRecord, segments),
  used: (record) => (record === null ? 0 : recordedUnits(record as UnitLogRecord)),
  bytes: (state) => state.runs.bytes,
};

export interface SlidingLogConfig {
  readonly limit: number;
  readonly windowMs: number;
  readonly minIntervalMs: number;
  readonly countDenied: boolean;
}

/** The state with `units` more at `nowMs`. Only the newest `max` of its units count. */
function logged(
  config: Config,
  state: State | undefined,
  nowMs: number,
  units: number,
  max: number,
  lastMs = nowMs,
): State {
  // When no unit of the log counts any more, a new log begins.
  const isOver = state !== undefined && untouchedMs(config, state) <= nowMs && state.openMs < nowMs;
  const log = state === undefined || isOver ? begin(nowMs) : state;
  const added = add(log, config.windowMs, nowMs, units, max);
  return { ...added, lastMs: isOver ? lastMs : Math.max(state?.lastMs ?? 0, lastMs) };
}

function untouchedMs({ windowMs, minIntervalMs }: Config, state: State): number {
  const emptyMs = emptyAtMs(state, windowMs);
  return minIntervalMs === 0 ? emptyMs : Math.max(emptyMs, state.lastMs + minIntervalMs);
}

function untouchedAfterMs(config: Config, state: State | undefined, nowMs: number): number {
  return state === undefined ? 0 : Math.max(0, untouchedMs(config, state) - nowMs);
}

/** What remains: with `minInterval` the largest cost that passes now may be 0 while quota remains. */
function estimateOf({ minIntervalMs }: Config, free: number, isTooSoon: boolean) {
  const left = Math.max(0, free);
  if (minIntervalMs === 0) return { remaining: left };
  return { remaining: isTooSoon ? 0 : left, quotaRemaining: left };
}

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
  return {
    reason: cost > limit ? "cost-over-limit" : intervalMs > quotaMs ? "min-interval" : "quota",
    retryAfterMs: cost + outstanding > limit ? null : Math.max(quotaMs, intervalMs) - nowMs,
    ...estimateOf(config, free, intervalMs > nowMs),
    resetAfterMs: untouchedAfterMs(config, state, nowMs),
  };
}

/** A simulated sliding log. Used units come after those of the log, so they are kept separately, without a copy. */
function forecastOf({ limit, windowMs, minIntervalMs }: Config, log: State | undefined): Forecast {
  let lastMs = log?.lastMs ?? -Infinity;
  let maxCounted = countedAt(log, windowMs, -Infinity);
  const usedAtMs: number[] = [];
  const usedTo: number[] = [];
  let first = 0;
  const usedBefore = (index: number) => (index === 0 ? 0 : (usedTo[index - 1] ?? 0));
  const counted = (atMs: number) => {
    first = search(first, usedTo.length, (at) => (usedAtMs[at] ?? 0) > atMs - windowMs);
    return countedAt(log, windowMs, atMs) + usedBefore(usedTo.length) - usedBefore(first);
  };
  const use = (atMs: number, given: number) => {
    // A log counts at most `MAX_COUNTED`; the rest is cut off.
    const units = maxCounted + given > MAX_COUNTED ? Math.min(given, MAX_COUNTED - counted(atMs)) : given;
    maxCounted += units;
    usedAtMs.push(Math.max(atMs, log?.openMs ?? -Infinity));
    usedTo.push(usedBefore(usedTo.length) + units);
  };
  /** The instant at which the oldest `units` of those that count at `atMs` have left the window. */
  const goneAtMs = (atMs: number, units: number) => {
    const ofLog = countedAt(log, windowMs, atMs);
    if (log !== undefined && units <= ofLog) return leavesAtMs(log, windowMs, atMs, units);
    const goneTo = usedBefore(first) + units - ofLog;
    const last = search(first, usedTo.length, (at) => (usedTo[at] ?? 0) >= goneTo);
    return (usedAtMs[last] ?? Infinity) + windowMs;
  };
  return {
    debit({ endsMs, units }, from, to) {
      for (let index = from; index < to; index += 1) use(endsMs[index] ?? 0, units[index] ?? 0);
    },
    take(atMs, units) {
      use(atMs, units);
      lastMs = Math.max(lastMs, atMs);
    },
    passesAtMs(atMs, cost, outstanding) {
      if (cost === 0) return atMs;
      if (cost + outstanding > limit) return Infinity;
      const excess = counted(atMs) + outstanding + cost - limit;
      const quotaMs = excess > 0 ? goneAtMs(atMs, excess) : atMs;
      return Math.max(atMs, quotaMs, minIntervalMs === 0 ? atMs : lastMs + minIntervalMs);
    },
    isCertain: (_, outstanding) => maxCounted + outstanding <= MAX_COUNTED,
  };
}
