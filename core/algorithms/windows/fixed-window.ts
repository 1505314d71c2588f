import {
  afterUses,
  type Algorithm,
  type ConfigProblem,
  configProblem,
  cutByWindow,
  type Fields,
  replay,
  scaleLimit,
} from "../algorithm.ts";
import { Calendar, type Period, PERIODS } from "./calendar.ts";

/**
 * Fixed window: at most `limit` units in each window, by a counter that starts again at 0. It is the oldest limiter,
 * and the right one for quotas by the calendar, such as 10,000 a month.
 *
 *     a cost passes when  taken in this window + outstanding + cost  <=  limit
 *
 * Where windows begin (`align`): with "epoch" they follow each other since 1970, with "calendar" they are the hours,
 * days, weeks, months or years of a time zone with its daylight saving (calendar.ts), and with "first" each window
 * begins with the first request after the last window's end.
 *
 * Example: 3 a day in Europe/Berlin. On 25 October 2025 three units are taken at 23:59. The fourth waits for one
 * minute. If three are taken at 0:00 on the 26th, when the clocks are set back, the fourth waits for 25 hours.
 *
 * The bound: `limit` units in each window. An interval of L ms meets at most floor(L / shortest window) + 2 windows,
 * and has at most that many times the limit. The worst boundary: `limit` units in the last millisecond of a window and
 * `limit` in the first of the next. What it is bad at: this boundary, and that all denied callers retry at once.
 *
 * `jitter` prevents such herds: it delays the end of a window by 0 up to `jitter`, drawn from the instant of its first
 * request. (An algorithm does not know the key, and a decision must not depend on chance.) Keys that begin in
 * different milliseconds end in different ones. The next window begins with the first request after that, and ends at
 * its usual end, delayed by its own jitter. So a key has at most one window for each of the calendar. `jitter` is at
 * most half of a usual one. An interval of L ms then meets floor((L + jitter) / shortest window) + 2.
 *
 * Held units are debited when they are settled, in the window of that instant. Units that an isolate spends after the
 * window in which it reserved them stay outstanding, so the new window offers fewer. At any instant taken +
 * outstanding <= limit. What was used in a window is by its end debited in it or still outstanding, so no window has
 * more than `limit` units *used* in it, even with late settlement; units used in one window and debited in the next
 * count in both, which only denies. The same holds for an interval: its use is debited in one of its windows, or
 * outstanding at its end. Those add up to `limit` for each window that it meets, and if the last of them is over (only
 * with "first" or `jitter`), to one `limit` more: floor(L / shortest window) + 2 at most.
 *
 * A charge can be returned until its window ends, as if it had never been made.
 *
 * When a policy changes, the count stays: in the new policy's window of the first unit, or of the last unit if that
 * window would end before the last unit was taken.
 *
 * The Redis script does not implement it: Lua has no time zones there.
 */
export interface FixedWindowConfig extends Windows {
  readonly limit: number;
}

type Config = FixedWindowConfig;
const ALIGNS = ["epoch", "calendar", "first"] as const;
const QUOTED_PERIODS = PERIODS.map((period) => `"1 ${period}"`).join(", ");

export const fixedWindow: Algorithm<Config, WindowUse> = {
  name: "fixed-window",
  fields: { limit: "units", window: "period", timeZone: "text?", align: ALIGNS, jitter: "duration?" },

  configure(fields) {
    const windows = typeof fields["window"] === "number" ? durations(fields) : periods(fields);
    if ("problem" in windows) return windows;
    const jitterMs = Number(fields["jitter"] ?? 0);
    const maxMs = Math.floor(windows.windowMs / 2);
    if (jitterMs > maxMs) return configProblem("jitter", `at most half of the window: ${maxMs} ms`);
    return { limit: Number(fields["limit"]), ...windows, jitterMs };
  },

  capacity: (config) => config.limit,
  quota: ({ limit, windowMs }) => ({ units: limit, windowMs }),
  localDecisions: () => ({ admits: true, denies: true }),
  refillMs: ({ windowMs, jitterMs, calendar }) => (calendar?.longestMs ?? windowMs) + jitterMs,
  scale: scaleLimit,
  isCutByWindow: true,
  hasWindows: true,
  lessRate: (config) =>
    config.calendar === undefined && config.jitterMs === 0 ? cutByWindow(config) : undefined,

  decide(config, state, nowMs, cost, outstanding) {
    const { limit } = config;
    const endMs = state === undefined ? -Infinity : windowOf(config, state).endMs;
    const taken = state !== undefined && nowMs < endMs ? state.units : 0;
    const free = limit - taken - outstanding;
    if (cost > 0 && cost > free)
      return {
        allowed: false,
        reason: cost > limit ? "cost-over-limit" : "quota",
        retryAfterMs: cost + outstanding > limit ? null : endMs - nowMs,
        remaining: Math.max(0, free),
        resetAfterMs: taken === 0 ? 0 : endMs - nowMs,
      };
    const remaining = Math.max(0, free - cost);
    if (taken + cost === 0) return { allowed: true, state: undefined, remaining, resetAfterMs: 0 };
    const after = cost === 0 ? state : taking(config, state, nowMs, cost);
    const untilMs = taken > 0 ? endMs : endFromMs(config, nowMs);
    return { allowed: true, state: after, remaining, resetAfterMs: untilMs - nowMs };
  },

  debit: (config, state, nowMs, units) => (units === 0 ? state : taking(config, state, nowMs, units)),

  credit(config, state, nowMs, units, atMs) {
    if (state === undefined) return undefined;
    const { fromMs, endMs } = windowOf(config, state);
    const isOver = atMs !== undefined && (nowMs >= endMs || atMs < fromMs || atMs >= endMs);
    if (isOver) return state;
    return state.units <= units ? undefined : { ...state, units: state.units - units };
  },

  untouchedAtMs(config, state, uses) {
    const after = afterUses(fixedWindow, config, state, uses);
    return after === undefined ? -Infinity : windowOf(config, after).endMs;
  },

  // Units used before the window ends count in it as much as held ones.
  forecast: (config, state) => replay(fixedWindow, config, state, () => true),

  covers(config, stored, ahead, state, outstanding, nowMs) {
    const spare = ahead - outstanding;
    const endMs = state === undefined ? -Infinity : windowOf(config, state).endMs;
    if (spare < 0 || state === undefined || nowMs >= endMs) return spare >= 0;
    // The stored units have to count for as long as those in memory.
    const record = stored as WindowUse | undefined;
    const kept = record !== undefined && windowOf(config, record).endMs >= endMs ? record.units : 0;
    return kept + spare >= state.units;
  },

  pack: (_, state) => ({ record: state }),
  unpack: (_, record) => record as WindowUse,
  used: (record) => (record as WindowUse | null)?.units ?? 0,
};

type WindowPlacement = Omit<Windows, "jitterMs"> | ConfigProblem;

function durations({ window, align = "epoch", timeZone }: Fields): WindowPlacement {
  const calendar = `with a window of ${QUOTED_PERIODS}`;
  if (timeZone !== undefined) return configProblem("timeZone", `left out, or ${calendar}`);
  if (align === "calendar") return configProblem("align", `"epoch", "first" or left out, or ${calendar}`);
  return { windowMs: Number(window), align: align === "first" ? "first" : "epoch" };
}

function periods({ window, align = "calendar", timeZone = "UTC" }: Fields): WindowPlacement {
  if (align !== "calendar")
    return configProblem("align", `"calendar" or left out, or with a duration as window`);
  const calendar = Calendar.of(window as Period, String(timeZone));
  if (calendar === undefined) {
    const allowed = 'the name of a time zone of the IANA database, such as "Europe/Berlin" or "UTC"';
    return configProblem("timeZone", allowed);
  }
  const shown = { period: String(window), timeZone: String(timeZone) };
  return { windowMs: calendar.nominalMs, align, calendar, ...shown };
}

export interface Windows {
  /** The length of a window; of a period of the calendar, its usual length. */
  readonly windowMs: number;
  readonly align: "epoch" | "calendar" | "first";
  readonly jitterMs: number;
  /** The periods of align "calendar", and their time zone. */
  readonly calendar?: Calendar;
  readonly period?: string;
  readonly timeZone?: string;
}

/** What was taken in a window. Stored: never rename a field. */
export interface WindowUse {
  /** More than the limit is debt. */
  readonly units: number;
  /** When the first of them was taken, which determines the window. */
  readonly startMs: number;
  /** When the last was taken. Used only after a change of the policy. */
  readonly lastMs: number;
}

/** A larger debt is cut off. */
const MAX_TAKEN = 2 ** 52;

function endFromMs({ align, windowMs, jitterMs, calendar }: Windows, startMs: number): number {
  const endMs =
    align === "first"
      ? startMs + windowMs
      : (calendar?.around(startMs).endMs ?? (Math.floor(startMs / windowMs) + 1) * windowMs);
  return jitterMs === 0 ? endMs : endMs + Math.floor(drawn(startMs) * jitterMs);
}

/** The window of a state. After a change of the policy, units past its end all count as taken with the last. */
function windowOf(windows: Windows, { startMs, lastMs }: WindowUse): { fromMs: number; endMs: number } {
  const endMs = endFromMs(windows, startMs);
  return lastMs < endMs ? { fromMs: startMs, endMs } : { fromMs: lastMs, endMs: endFromMs(windows, lastMs) };
}

function taking(windows: Windows, state: WindowUse | undefined, nowMs: number, units: number): WindowUse {
  if (state !== undefined && nowMs < windowOf(windows, state).endMs)
    return {
      units: Math.min(state.units + units, MAX_TAKEN),
      startMs: windowOf(windows, state).fromMs,
      lastMs: Math.max(state.lastMs, nowMs),
    };
  return { units, startMs: nowMs, lastMs: nowMs };
}

/** A number in [0, 1) for an instant: the finaliser of MurmurHash3 (A. Appleby), of both halves. */
function drawn(atMs: number): number {
  const mixed = mix(mix(Math.floor(atMs / 2 ** 32)) ^ (atMs % 2 ** 32));
  return (mixed >>> 0) / 2 ** 32;
}

function mix(value: number): number {
  let mixed = value | 0;
  mixed = Math.imul(mixed ^ (mixed >>> 16), 0x85ebca6b);
  mixed = Math.imul(mixed ^ (mixed >>> 13), 0xc2b2ae35);
  return mixed ^ (mixed >>> 16);
}
