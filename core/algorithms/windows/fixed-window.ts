import { type Algorithm, type ConfigProblem, configProblem, type Fields, MAX_UNITS } from "../algorithm.ts";
import { afterUses, replay } from "../forecast.ts";
import { cutByWindow } from "../log/sliding-log.ts";
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
 * `carry` adds what is left of a window to the next, up to so many units. What is counted is what is missing of both:
 * units taken in this window, and what the carried units lack. At the end of a window
 *
 *     lacking  =  taken + lacking - limit,  at least 0 and at most `carry`, or as much as before
 *
 * so a window offers limit + carry - lacking, and any k windows in a row limit * k + carry. A key begins with all of it, as
 * a bucket begins full: a key that has rested for long enough is equal to one that was never used, and both are forgotten.
 * Held units lack only when they are settled, in a later window at most: that only denies. A debt is paid out of the
 * carried units, the rest of it is forgiven with the window. When a policy or a plan changes, units taken in this window
 * stay taken, and what the carried units lacked is lacking in the new `carry`: a smaller one lacks all of it at most, and
 * the rest is kept for a larger one. A window returns the `limit` that is in force at its end. Windows that begin with a request,
 * or end by chance, have no next one while a key rests: they carry nothing.
 *
 * The Redis script does not implement it: Lua has no time zones there.
 */
export interface FixedWindowConfig extends Windows {
  readonly limit: number;
  /** The most units of earlier windows; 0: what is left of a window is gone. */
  readonly carry: number;
}

/** In windows: so many have to be counted for one decision, and of the calendar each is looked up. */
const MAX_CARRY_WINDOWS = 12;

type Config = FixedWindowConfig;
const ALIGNS = ["epoch", "calendar", "first"] as const;
const QUOTED_PERIODS = PERIODS.map((period) => `"1 ${period}"`).join(", ");

export const fixedWindow: Algorithm<Config, WindowUse> = {
  name: "fixed-window",
  fields: {
    limit: "units",
    window: "period",
    carry: "units?",
    timeZone: "text?",
    align: ALIGNS,
    jitter: "duration?",
  },

  configure(fields) {
    const windows = typeof fields["window"] === "number" ? durations(fields) : periods(fields);
    if ("problem" in windows) return windows;
    const jitterMs = Number(fields["jitter"] ?? 0);
    const maxMs = Math.floor(windows.windowMs / 2);
    if (jitterMs > maxMs) return configProblem("jitter", `at most half of the window: ${maxMs} ms`);
    const [limit, carry] = [Number(fields["limit"]), Number(fields["carry"] ?? 0)];
    if (carry > 0 && windows.align === "first")
      return configProblem("carry", 'left out with align = "first": a key that rests has no next window');
    if (carry > 0 && jitterMs > 0) return configProblem("carry", "left out with jitter");
    const maxCarry = Math.min(MAX_CARRY_WINDOWS * limit, MAX_UNITS - limit);
    if (carry > maxCarry)
      return configProblem("carry", `at most ${MAX_CARRY_WINDOWS} times the limit: ${maxCarry}`);
    return { limit, carry, ...windows, jitterMs };
  },

  capacity: ({ limit, carry }) => limit + carry,
  quota: ({ limit, windowMs }) => ({ units: limit, windowMs }),
  localDecisions: () => ({ admits: true, denies: true }),
  refillMs(config, missing) {
    const { windowMs, jitterMs, calendar } = config;
    return endsUntil(config, missing, config.carry, 0) * (calendar?.longestMs ?? windowMs) + jitterMs;
  },
  scale(config, part) {
    const limit = Math.floor(config.limit * part);
    return limit < 1 ? undefined : { ...config, limit, carry: Math.floor(config.carry * part) };
  },
  canCount: ({ carry }, units) => units + carry <= MAX_UNITS,
  isCutByWindow: true,
  hasWindows: true,
  // A bucket of a holder knows nothing of units that are carried.
  lessRate: (config) =>
    config.calendar === undefined && config.jitterMs === 0 && config.carry === 0
      ? cutByWindow(config)
      : undefined,

  decide(config, state, nowMs, cost, outstanding) {
    const capacity = config.limit + config.carry;
    const standing = standingAt(config, state, nowMs) ?? untouched(config, nowMs);
    const { taken, lacking } = standing;
    const missing = taken + Math.min(lacking, config.carry);
    const inMs = (units: number, left: number) => fallsToMs(config, standing, units, left) - nowMs;
    const free = capacity - missing - outstanding;
    if (cost > 0 && cost > free)
      return {
        allowed: false,
        reason: cost > capacity ? "cost-over-limit" : "quota",
        retryAfterMs: cost + outstanding > capacity ? null : inMs(taken, capacity - cost - outstanding),
        remaining: Math.max(0, free),
        resetAfterMs: missing === 0 ? 0 : inMs(taken, 0),
      };
    const remaining = Math.max(0, free - cost);
    const resetAfterMs = missing + cost === 0 ? 0 : inMs(taken + cost, 0);
    if (taken + lacking + cost === 0) return { allowed: true, state: undefined, remaining, resetAfterMs };
    const after = cost === 0 ? state : taking(config, state, nowMs, cost);
    return { allowed: true, state: after, remaining, resetAfterMs };
  },

  // Without units: windows that are over return what the policy says until now.
  debit(config, state, nowMs, units) {
    if (units > 0) return taking(config, state, nowMs, units);
    const standing = standingAt(config, state, nowMs);
    return standing?.isNext === true ? useOf({ ...standing, lastMs: nowMs }) : standing && state;
  },

  credit(config, state, nowMs, units, atMs) {
    const standing = standingAt(config, state, nowMs);
    if (state === undefined || standing === undefined) return undefined;
    const { taken, lacking, fromMs, endMs, isNext } = standing;
    if (atMs !== undefined && atMs >= endMs) return state;
    const isEarlier = atMs !== undefined && (isNext || atMs < fromMs) && endFromMs(config, atMs) < endMs;
    const ofTaken = isEarlier ? 0 : Math.min(units, taken);
    const most = isEarlier ? stillLacking(config, standing, units, atMs, nowMs) : units - ofTaken;
    const ofLacking = atMs !== undefined && !isEarlier ? 0 : Math.min(most, lacking);
    if (ofTaken + ofLacking === 0) return state;
    const left = { ...standing, taken: taken - ofTaken, lacking: lacking - ofLacking };
    if (left.taken + left.lacking === 0) return undefined;
    const [startMs, lastMs] = isNext ? [nowMs, nowMs] : [state.startMs, state.lastMs];
    return useOf({ ...left, fromMs: startMs, lastMs });
  },

  untouchedAtMs(config, state, uses) {
    const after = afterUses(fixedWindow, config, state, uses);
    if (after === undefined) return -Infinity;
    return fallsToMs(config, standingIn(config, after), after.units, 0);
  },

  outlastsMs(config, state) {
    const standing = standingIn(config, state);
    const carry = mostLacking(config, standing);
    return carry > config.carry ? fallsToMs({ ...config, carry }, standing, state.units, 0) : -Infinity;
  },

  // Units used before the window ends count in it as much as held ones, unless what they leave is forgiven with it.
  forecast(config, state) {
    const lasts = (atMs: number, now: WindowUse | undefined, outstanding: number) => {
      const { taken, lacking } = standingAt(config, now, atMs) ?? untouched(config, atMs);
      return taken + lacking + outstanding <= config.limit + config.carry;
    };
    return replay(fixedWindow, config, state, (...held) => config.carry === 0 || lasts(...held));
  },

  covers(config, stored, ahead, state, outstanding, nowMs) {
    const spare = ahead - outstanding;
    const standing = standingAt(config, state, nowMs);
    if (spare < 0 || standing === undefined) return spare >= 0;
    // The stored units have to count for as long as those in memory.
    const { taken, lacking, fromMs, endMs } = standing;
    const kept = standingAt(config, stored as WindowUse | undefined, Math.max(nowMs, fromMs));
    const isKept =
      kept !== undefined && kept.endMs >= endMs && mostLacking(config, kept) >= mostLacking(config, standing);
    const [keptTaken, keptLacking] = isKept ? [kept.taken, kept.lacking] : [0, 0];
    return keptTaken + spare >= taken && keptTaken + keptLacking + spare >= taken + lacking;
  },

  pack: (_, state) => ({ record: state }),
  unpack: (_, record) => record as WindowUse,
  used(record) {
    const { units = 0, lacking = 0 } = (record as WindowUse | null) ?? {};
    return units + lacking;
  },
};

type WindowPlacement = Omit<Windows, "jitterMs"> | ConfigProblem;

function durations({ window, align = "epoch", timeZone }: Fields): WindowPlacement {
  const calendar = `with a window of ${QUOTED_PERIODS}`;
  if (timeZone !== undefined) return configProblem("timeZone", `left out, or ${calendar}`);
  if (align === "calendar") return configProblem("align", `"epoch", "first" or left out, or ${calendar}`);
  return { windowMs: Number(window), align: align === "first" ? "first" : "epoch" };
}

export const TIME_ZONE_ALLOWED =
  'the name of a time zone of the IANA database, such as "Europe/Berlin" or "UTC"';

function periods({ window, align = "calendar", timeZone = "UTC" }: Fields): WindowPlacement {
  if (align !== "calendar")
    return configProblem("align", `"calendar" or left out, or with a duration as window`);
  const calendar = Calendar.of(window as Period, String(timeZone));
  if (calendar === undefined) return configProblem("timeZone", TIME_ZONE_ALLOWED);
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
  /** What the units of earlier windows lack. Absent: nothing. */
  readonly lacking?: number;
  /** The largest `carry` under which units of this window were taken. Absent: none, or an earlier version. */
  readonly carry?: number;
  /** Debts that ended with their windows since the carried units were whole: no refund of an earlier charge has them. */
  readonly forgiven?: number;
  /** When the first units were taken since they were whole. Absent: when `startMs` is, or an earlier version. */
  readonly sinceMs?: number;
  /** The largest limit of a window that has ended since then. */
  readonly returned?: number;
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

function taking(config: Config, state: WindowUse | undefined, nowMs: number, units: number): WindowUse {
  const standing = standingAt(config, state, nowMs) ?? untouched(config, nowMs);
  const taken = Math.min(standing.taken + units, MAX_TAKEN);
  const lastMs = standing.isNext ? nowMs : Math.max(state?.lastMs ?? nowMs, nowMs);
  return useOf({ ...standing, taken, carry: Math.max(standing.carry, config.carry), lastMs });
}

type Taken = Omit<Standing, "endMs" | "isNext"> & Pick<WindowUse, "lastMs">;

function useOf({ taken: units, fromMs: startMs, lastMs, lacking, carry, ...since }: Taken): WindowUse {
  const use = { units, startMs, lastMs, ...(carry > 0 && { carry }) };
  if (lacking === 0) return use;
  const { forgiven, sinceMs, returned } = since;
  return { ...use, lacking, ...(forgiven > 0 && { forgiven }), sinceMs, returned };
}

/** A state in the window of an instant. */
interface Standing {
  readonly taken: number;
  /** Possibly more than the `carry` of the policy: a larger one lacks it. */
  readonly lacking: number;
  /** The largest under which units of this window were taken. */
  readonly carry: number;
  readonly forgiven: number;
  readonly sinceMs: number;
  readonly returned: number;
  readonly fromMs: number;
  readonly endMs: number;
  /** The window of the state is over: this is a later one, in which nothing was taken. */
  readonly isNext: boolean;
}

function untouched(config: Config, nowMs: number): Standing {
  const none = { taken: 0, lacking: 0, carry: 0, forgiven: 0, returned: 0 };
  return { ...none, sinceMs: nowMs, fromMs: nowMs, endMs: endFromMs(config, nowMs), isNext: true };
}

/** In the window of the state, also if that is over. */
function standingIn(config: Config, state: WindowUse): Standing {
  const { units: taken, lacking = 0, carry = 0, forgiven = 0, returned = 0, startMs } = state;
  const { sinceMs = lacking > 0 ? 0 : startMs } = state;
  return { taken, lacking, carry, forgiven, sinceMs, returned, ...windowOf(config, state), isNext: false };
}

/** The most that carried units may lack at the end of the window. */
function mostLacking({ carry }: Config, standing: Standing): number {
  return Math.max(carry, standing.carry, standing.lacking);
}

/** `undefined`: untouched. */
function standingAt(config: Config, state: WindowUse | undefined, nowMs: number): Standing | undefined {
  if (state === undefined) return undefined;
  const standing = standingIn(config, state);
  const { taken, lacking, forgiven, endMs } = standing;
  if (nowMs < endMs) return standing;
  const { limit } = config;
  const [over, most] = [taken + lacking - limit, mostLacking(config, standing)];
  const first = Math.min(Math.max(0, over), most);
  if (first === 0) return undefined;
  const left = first - limit * windowsIn(config, endMs, nowMs, Math.ceil(first / limit));
  if (left <= 0) return undefined;
  const since = {
    forgiven: forgiven + Math.max(0, over - most),
    sinceMs: standing.sinceMs,
    returned: Math.max(standing.returned, limit),
  };
  return { ...untouched(config, nowMs), lacking: left, ...since };
}

/** The units of a charge in an earlier window that the carried ones certainly lack for it: each window returned a limit. */
function stillLacking(
  config: Config,
  { forgiven, sinceMs, returned }: Standing,
  units: number,
  atMs: number,
  nowMs: number,
): number {
  if (atMs < sinceMs) return 0;
  const endMs = endFromMs(config, atMs);
  const limit = Math.max(config.limit, returned);
  const ends = 1 + windowsIn(config, endMs, nowMs, Math.ceil(units / limit));
  return Math.max(0, units - ends * limit - forgiven);
}

/** How many windows must end until of so many missing units, of which `most` may be carried on, no more than `left` are. */
function endsUntil({ limit, carry }: Config, missing: number, most: number, left: number): number {
  const first = Math.min(Math.max(0, missing - limit), most);
  return first <= left || carry <= left ? 1 : 1 + Math.ceil((first - left) / limit);
}

/** When no more than `left` are missing. @param taken in the window, beside what the carried units lack */
function fallsToMs(config: Config, standing: Standing, taken: number, left: number): number {
  const { endMs, lacking } = standing;
  const ends = endsUntil(config, taken + lacking, mostLacking(config, standing), left);
  return config.calendar?.ends(endMs, ends - 1).lastMs ?? endMs + (ends - 1) * config.windowMs;
}

/** The windows that begin at `fromMs` or later and are over at `nowMs`, up to `most`. */
function windowsIn({ calendar, windowMs }: Config, fromMs: number, nowMs: number, most: number): number {
  return calendar?.ends(fromMs, most, nowMs).count ?? Math.min(most, Math.floor((nowMs - fromMs) / windowMs));
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
