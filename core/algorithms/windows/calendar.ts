export const PERIODS = ["hour", "day", "week", "month", "year"] as const;
export type Period = (typeof PERIODS)[number];

/** "1 day" is a day of the calendar, as "1d" is 24 hours. */
export function periodOf(window: unknown): Period | undefined {
  return PERIODS.find((period) => window === `1 ${period}`);
}

/** From `startMs` (inclusive) to `endMs` (exclusive). */
interface Span {
  readonly startMs: number;
  readonly endMs: number;
  /** Periods of a time zone are numbered as in UTC. Hours have none, as clocks may show one twice. */
  readonly number: number;
}

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
/** More than any zone's offset from UTC since 1970, which is at most 14 h. */
const REACH_MS = 16 * HOUR_MS;
/** The largest step by which a zone's clocks were set back since 1970 (Antarctica/Vostok, 1994). */
const MAX_BACK_MS = 7 * HOUR_MS;
/** Between two changes of a zone's clocks that cancel each other is more time: Morocco's in Ramadan are five weeks apart. */
const STRETCH_HOURS = 21 * 24;
/** Zones change their rules sooner: later hours are taken as whole. */
const FAR_MS = 10 * 366 * DAY_MS;
/** `Intl` accepts instants up to 8.64e15. */
const MAX_MS = 8e15;

/** Periods as if clocks showed UTC: `startOf` is the start of a period by its number. */
const KINDS = {
  hour: kind(HOUR_MS, HOUR_MS, (number) => number * HOUR_MS),
  day: kind(DAY_MS, DAY_MS + MAX_BACK_MS, (number) => number * DAY_MS),
  // Weeks begin on Mondays (ISO 8601), and 1970 began on a Thursday.
  week: kind(7 * DAY_MS, 7 * DAY_MS + MAX_BACK_MS, (number) => (7 * number - 3) * DAY_MS),
  month: kind(30 * DAY_MS, 31 * DAY_MS + MAX_BACK_MS, (number) => Date.UTC(1970, number)),
  year: kind(365 * DAY_MS, 366 * DAY_MS + MAX_BACK_MS, (number) => Date.UTC(1970 + number, 0)),
} satisfies Record<Period, unknown>;

/** In one period of another kind are at most so many. Clocks are changed by an hour at most once a day. */
const MOST: Readonly<Record<string, number>> = {
  "hour day": 26,
  "hour week": 7 * 24 + 2,
  "hour month": 31 * 24 + 2,
  "hour year": 366 * 24 + 2,
  "day week": 7,
  "day month": 31,
  "day year": 366,
  "week month": 6,
  "week year": 54,
  "month year": 12,
};

/** How many periods one longer period meets at most, in one time zone. */
export function mostPeriods(period: Period, longer: Period): number {
  return MOST[`${period} ${longer}`] ?? 1;
}

function kind(nominalMs: number, longestMs: number, startOf: (number: number) => number) {
  return { nominalMs, longestMs, startOf };
}

/**
 * The periods of the calendar in a time zone. A period begins at the first instant at which the zone's clocks show its
 * beginning or later: where clocks skip midnight, the day begins after the gap. So each instant is in one period, and
 * a day in Europe/Berlin has 23 hours when summer time begins, and 25 when it ends. An hour also ends when the clocks
 * change: the hour that they show twice is two periods, and one that they leave at 2:45 has 45 minutes.
 *
 * `Intl` has the rules of the zones. It takes microseconds, so the last two periods are cached.
 */
export class Calendar {
  readonly period: Period;
  readonly #clock: Intl.DateTimeFormat;
  #last: Span = { startMs: 0, endMs: 0, number: 0 };
  #lastButOne: Span = this.#last;

  private constructor(period: Period, clock: Intl.DateTimeFormat) {
    this.period = period;
    this.#clock = clock;
  }

  /** `undefined`: the time zone does not exist. */
  static of(period: Period, timeZone: string): Calendar | undefined {
    const clock = clockOf(timeZone);
    return clock && new Calendar(period, clock);
  }

  get nominalMs(): number {
    return KINDS[this.period].nominalMs;
  }

  get longestMs(): number {
    return KINDS[this.period].longestMs;
  }

  around(atMs: number): Span {
    if (isIn(this.#last, atMs)) return this.#last;
    if (isIn(this.#lastButOne, atMs)) return this.#lastButOne;
    const span = this.#find(atMs);
    this.#lastButOne = this.#last;
    this.#last = span;
    return span;
  }

  /**
   * From an instant on, how many periods end until another one, at most `most`, and when the last of them ends. It
   * takes no step for each: a debt may last for a million periods once the limit is a small one.
   */
  ends(fromMs: number, most: number, untilMs = Infinity): { count: number; lastMs: number } {
    if (most <= 0) return { count: 0, lastMs: fromMs };
    if (this.period === "hour") return this.#hourEnds(fromMs, most, untilMs);
    const { number, endMs } = this.around(fromMs);
    if (endMs > untilMs) return { count: 0, lastMs: fromMs };
    if (most === 1) return { count: 1, lastMs: endMs };
    const lastMs = this.#endOf(number + most - 1);
    if (lastMs <= untilMs) return { count: most, lastMs };
    const until = this.around(untilMs);
    return { count: until.number - number, lastMs: until.startMs };
  }

  #hourEnds(fromMs: number, most: number, untilMs: number): { count: number; lastMs: number } {
    let [count, lastMs] = [0, fromMs];
    while (count < most) {
      const { startMs, endMs } = this.around(lastMs);
      if (endMs > untilMs) break;
      count += 1;
      lastMs = endMs;
      // An hour that a change of the clocks cuts is followed by another one: all others are alike until the next change.
      if (endMs - startMs < HOUR_MS) continue;
      const left = Math.min(most - count, Math.floor((untilMs - endMs) / HOUR_MS));
      const isFar = endMs - fromMs > FAR_MS;
      const whole = isFar ? left : this.#wholeHours(endMs, Math.min(left, STRETCH_HOURS));
      count += whole;
      lastMs += whole * HOUR_MS;
    }
    return { count, lastMs };
  }

  /** How many of so many hours are over before the clocks are changed. */
  #wholeHours(fromMs: number, hours: number): number {
    return Math.floor((this.#changeIn(fromMs - 1, fromMs + hours * HOUR_MS) - fromMs) / HOUR_MS);
  }

  #endOf(number: number): number {
    const { nominalMs, startOf } = KINDS[this.period];
    const wallMs = startOf(number + 1);
    return Math.abs(wallMs) < MAX_MS ? this.#firstAt(wallMs) : (number + 1) * nominalMs;
  }

  #find(atMs: number): Span {
    const { nominalMs, startOf } = KINDS[this.period];
    if (!(Math.abs(atMs) < MAX_MS))
      return { startMs: atMs, endMs: atMs + nominalMs, number: Math.floor(atMs / nominalMs) };
    const offsetMs = this.#offsetMs(atMs);
    const wallMs = atMs + offsetMs;
    let number = Math.floor(wallMs / nominalMs);
    while (startOf(number + 1) <= wallMs) number += 1;
    while (startOf(number) > wallMs) number -= 1;
    if (this.period === "hour") return this.#hour(startOf(number) - offsetMs, atMs);
    let startMs = this.#firstAt(startOf(number));
    let endMs = this.#firstAt(startOf(number + 1));
    // Clocks that are set back across the beginning show the period before again.
    for (; endMs <= atMs; endMs = this.#firstAt(startOf(number + 1))) {
      number += 1;
      startMs = endMs;
    }
    return { startMs, endMs, number };
  }

  /** @param startMs when the hour began, had the clocks not changed since */
  #hour(startMs: number, atMs: number): Span {
    const [endMs, number] = [startMs + HOUR_MS, 0];
    const changeMs = this.#changeIn(startMs, endMs);
    return changeMs <= atMs ? { startMs: changeMs, endMs, number } : { startMs, endMs: changeMs, number };
  }

  #firstAt(wallMs: number): number {
    const [fromMs, toMs] = [wallMs - REACH_MS, wallMs + REACH_MS];
    const changeMs = this.#changeIn(fromMs, toMs);
    const firstMs = wallMs - this.#offsetMs(fromMs);
    return firstMs < changeMs ? firstMs : Math.max(changeMs, wallMs - this.#offsetMs(toMs));
  }

  /** When the clocks change after `fromMs` and before `toMs`; `toMs` if they do not. */
  #changeIn(fromMs: number, toMs: number): number {
    const before = this.#offsetMs(fromMs);
    if (this.#offsetMs(toMs) === before) return toMs;
    let [beforeMs, changedMs] = [fromMs, toMs];
    while (changedMs - beforeMs > 1) {
      const betweenMs = Math.floor((beforeMs + changedMs) / 2);
      if (this.#offsetMs(betweenMs) === before) beforeMs = betweenMs;
      else changedMs = betweenMs;
    }
    return changedMs;
  }

  /** How far the clocks are ahead of UTC. */
  #offsetMs(atMs: number): number {
    const shown: Partial<Record<Intl.DateTimeFormatPartTypes, number>> = {};
    for (const { type, value } of this.#clock.formatToParts(atMs)) shown[type] = Number(value);
    const { year = 0, month = 1, day = 1, hour = 0, minute = 0, second = 0 } = shown;
    return Date.UTC(year, month - 1, day, hour, minute, second) - Math.floor(atMs / 1_000) * 1_000;
  }
}

function isIn({ startMs, endMs }: Span, atMs: number): boolean {
  return startMs <= atMs && atMs < endMs;
}

/** By time zone: one takes a millisecond to make. */
const clocks = new Map<string, Intl.DateTimeFormat>();

function clockOf(timeZone: string): Intl.DateTimeFormat | undefined {
  let clock = clocks.get(timeZone);
  try {
    clock ??= new Intl.DateTimeFormat("en-US", {
      timeZone,
      calendar: "gregory",
      numberingSystem: "latn",
      hourCycle: "h23",
      year: "numeric",
      month: "numeric",
      day: "numeric",
      hour: "numeric",
      minute: "numeric",
      second: "numeric",
    });
  } catch {
    return undefined;
  }
  clocks.set(timeZone, clock);
  return clock;
}
