import type { Algorithm, Fields, Forecast, Uses } from "../algorithm.ts";
import { Calendar, type Period, PERIODS } from "./calendar.ts";

/**
 * Fixed window: at most `limit` units in each window. It is the counter that starts again at 0: the oldest limiter
 * there is, and the right one for quotas that people speak of by the calendar, such as 10,000 a month.
 *
 *     a cost passes when  taken in this window + outstanding + cost  <=  limit
 *
 * Where windows begin (`align`): with "epoch" they follow each other since 1970, with "calendar" they are the hours,
 * days, weeks, months or years of a time zone with its daylight saving (calendar.ts), and with "first" a window begins
 * with the first request, and the next with the first request after its end.
 *
 * Example: 3 a day in Europe/Berlin. On 25 October 2025 three units are taken at 23:59. The fourth waits for one
 * minute. If three are taken at 0:00 on the 26th, on which the clocks are put back, the fourth waits for 25 hours.
 *
 * The bound: `limit` units in each window. An interval of L ms meets at most floor(L / shortest window) + 2 windows,
 * so it has that many times the limit at most. The worst boundary: `limit` units in the last millisecond of a window
 * and `limit` in the first of the next. What it is bad at: just that, and that all who were denied come back at the
 * same instant.
 *
 * `jitter` is against such herds: the end of a window is put off by 0 up to `jitter`, drawn from the instant of its
 * first request. An algorithm does not know the key, and a decision must not depend on chance. Keys begin at different
 * milliseconds, so they end at different ones; only keys that begin in the same one end together. The next window
 * begins with the first request after that, and ends where it would have ended anyway, put off by its own jitter. So a
 * key has one window for each of the calendar, and `jitter` is at most half of one. An interval of L ms then meets
 * floor((L + jitter) / shortest window) + 2.
 *
 * Units that isolates and callers hold are debited when they are settled, in the window of that instant. May an isolate
 * spend units after the window ended in which it was granted them? Yes: they go on being outstanding, so the new window
 * offers so many less. At any instant taken + outstanding <= limit. Whatever was used in a window is by its end debited
 * in it, or still outstanding. Both together are at most `limit`. So no window has more than `limit` units *used* in
 * it, whichever was settled late; units used in one window and debited in the next count in both, which only denies.
 * The same holds of an interval: what was used in it is debited in one of the windows that it meets, or outstanding at
 * its end. Those add up to `limit` for each window that it meets, and when the last of them is over (only with "first"
 * or `jitter`), to one `limit` more: floor(L / shortest window) + 2 at most.
 *
 * A charge is given back while the window lasts in which it was taken. It is then as if it had never been.
 *
 * When a policy changes, what is counted goes on counting: in the window, under the new policy, of the first unit, or
 * if that would be over before the last unit was taken, of the last.
 *
 * The Redis script does not know it: Lua has no time zones there.
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
    const mostMs = Math.floor(windows.windowMs / 2);
    if (jitterMs > mostMs)
      return { problem: { field: "jitter", allowed: `at most half of the window: ${mostMs} ms` } };
    return { limit: Number(fields["limit"]), ...windows, jitterMs };
  },

  capacity: (config) => config.limit,
  quota: ({ limit, windowMs }) => ({ units: limit, windowMs }),
  localDecisions: () => ({ admits: true, denies: true }),
  wholeFromMs: ({ windowMs, jitterMs, calendar }) => (calendar?.longestMs ?? windowMs) + jitterMs,

  scale(config, part) {
    const limit = Math.floor(config.limit * part);
    return limit < 1 ? undefined : { ...config, limit };
  },

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

  noteHold: (_, state) => state,

  debit: (config, state, nowMs, units) => (units === 0 ? state : taking(config, state, nowMs, units)),

  credit: (_, state, __, units) => without(state, units),

  uncharge(config, state, nowMs, units, atMs) {
    if (state === undefined) return undefined;
    const { fromMs, endMs } = windowOf(config, state);
    return nowMs < endMs && atMs >= fromMs && atMs < endMs ? without(state, units) : state;
  },

  wholeAtMs(config, state, uses) {
    const forecast = new WindowForecast(config, state);
    if (uses !== undefined) forecast.debit(uses);
    return forecast.wholeAtMs();
  },

  forecast: (config, state) => new WindowForecast(config, state),

  covers(config, stored, ahead, state, outstanding, nowMs) {
    const spare = ahead - outstanding;
    const endMs = state === undefined ? -Infinity : windowOf(config, state).endMs;
    if (spare < 0 || state === undefined || nowMs >= endMs) return spare >= 0;
    // What is stored has to count for as long as what is not.
    const record = stored as WindowUse | undefined;
    const kept = record !== undefined && windowOf(config, record).endMs >= endMs ? record.units : 0;
    return kept + spare >= state.units;
  },

  pack: (_, state) => ({ record: state }),
  unpack: (_, record) => record as WindowUse,
  used: (record) => (record as WindowUse | null)?.units ?? 0,
};

/** The state with fewer units; `undefined`: with none. */
function without(state: WindowUse | undefined, units: number): WindowUse | undefined {
  if (state === undefined || state.units <= units) return undefined;
  return { ...state, units: state.units - units };
}

type WindowPlacement = Omit<Windows, "jitterMs"> | { problem: { field: string; allowed: string } };

/** Windows of so many milliseconds. */
function durations({ window, align = "epoch", timeZone }: Fields): WindowPlacement {
  const calendar = `with a window of ${QUOTED_PERIODS}`;
  if (timeZone !== undefined) return { problem: { field: "timeZone", allowed: `left out, or ${calendar}` } };
  if (align === "calendar")
    return { problem: { field: "align", allowed: `"epoch", "first" or left out, or ${calendar}` } };
  return { windowMs: Number(window), align: align === "first" ? "first" : "epoch" };
}

/** Windows that are periods of the calendar. */
function periods({ window, align = "calendar", timeZone = "UTC" }: Fields): WindowPlacement {
  if (align !== "calendar")
    return { problem: { field: "align", allowed: `"calendar" or left out, or with a duration as window` } };
  const calendar = Calendar.of(window as Period, String(timeZone));
  if (calendar === undefined) {
    const allowed = 'the name of a time zone of the IANA database, such as "Europe/Berlin" or "UTC"';
    return { problem: { field: "timeZone", allowed } };
  }
  const shown = { period: String(window), timeZone: String(timeZone) };
  return { windowMs: calendar.nominalMs, align, calendar, ...shown };
}

/** Where windows begin and end. */
export interface Windows {
  /** How long a window is; of a period of the calendar, about how long. */
  readonly windowMs: number;
  /** Windows are one after the other since the Unix epoch or in the calendar, or begin with the first request. */
  readonly align: "epoch" | "calendar" | "first";
  /** 0: none. */
  readonly jitterMs: number;
  /** Only with `calendar`: its periods, and by whose time they go. */
  readonly calendar?: Calendar;
  readonly period?: string;
  readonly timeZone?: string;
}

/** What was taken in a window: the state of a fixed window, as storage keeps it. Never rename a field. */
export interface WindowUse {
  /** More than the limit is a debt. */
  readonly units: number;
  /** When the first of them was taken: the window is the one that this begins, or that it is in. */
  readonly startMs: number;
  /** When the last was taken. Only a policy that changes asks for it. */
  readonly lastMs: number;
}

/** A debt beyond this is cut. */
const MAX_TAKEN = 2 ** 52;

/** When a window ends whose first unit is taken at `startMs`. */
function endFromMs({ align, windowMs, jitterMs, calendar }: Windows, startMs: number): number {
  const endMs =
    align === "first"
      ? startMs + windowMs
      : (calendar?.around(startMs).endMs ?? (Math.floor(startMs / windowMs) + 1) * windowMs);
  return jitterMs === 0 ? endMs : endMs + Math.floor(drawn(startMs) * jitterMs);
}

/**
 * When the window of a state ends, and when it began. Under another policy than the one that it was counted under,
 * units may have been taken after that end. Then they count as if all had been taken with the last of them.
 */
function windowOf(windows: Windows, { startMs, lastMs }: WindowUse): { fromMs: number; endMs: number } {
  const endMs = endFromMs(windows, startMs);
  return lastMs < endMs ? { fromMs: startMs, endMs } : { fromMs: lastMs, endMs: endFromMs(windows, lastMs) };
}

/** The state with `units` more. A clock that was put back takes them in the window that there is. */
function taking(windows: Windows, state: WindowUse | undefined, nowMs: number, units: number): WindowUse {
  if (state !== undefined && nowMs < windowOf(windows, state).endMs)
    return {
      units: Math.min(state.units + units, MAX_TAKEN),
      startMs: windowOf(windows, state).fromMs,
      lastMs: Math.max(state.lastMs, nowMs),
    };
  return { units, startMs: nowMs, lastMs: nowMs };
}

/** A fixed window that is played forward. */
class WindowForecast implements Forecast {
  readonly #windows: Windows & { readonly limit: number };
  #units = 0;
  /** When the latest window ends in which units were taken; -Infinity: none were. */
  #endMs = -Infinity;

  constructor(windows: Windows & { readonly limit: number }, state: WindowUse | undefined) {
    this.#windows = windows;
    if (state === undefined) return;
    this.#units = state.units;
    this.#endMs = windowOf(windows, state).endMs;
  }

  debit({ endsMs, units }: Uses, from = 0, to = endsMs.length): void {
    for (let index = from; index < to; index += 1) this.take(endsMs[index] ?? 0, units[index] ?? 0);
  }

  take(atMs: number, units: number): void {
    if (units === 0) return;
    const isOver = atMs >= this.#endMs;
    this.#units = isOver ? units : Math.min(this.#units + units, MAX_TAKEN);
    if (isOver) this.#endMs = endFromMs(this.#windows, atMs);
  }

  passesAtMs(atMs: number, cost: number, outstanding: number): number {
    if (cost === 0) return atMs;
    const room = this.#windows.limit - outstanding - cost;
    if (room < 0) return Infinity;
    return atMs >= this.#endMs || this.#units <= room ? atMs : this.#endMs;
  }

  /** Units that are used before the window ends are taken from it as much as if they were held. Then it ends. */
  isCertain(): boolean {
    return true;
  }

  wholeAtMs(): number {
    return this.#endMs;
  }
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
