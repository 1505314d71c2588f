export const PERIODS = ["hour", "day", "week", "month", "year"] as const;
export type Period = (typeof PERIODS)[number];

/** From `startMs` (inclusive) to `endMs` (exclusive). */
interface Span {
  readonly startMs: number;
  readonly endMs: number;
}

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;
/** More than any zone's offset from UTC since 1970, which is at most 14 h. */
const REACH_MS = 16 * HOUR_MS;
/** The largest step by which a zone's clocks were set back since 1970 (Antarctica/Vostok, 1994). */
const MAX_BACK_MS = 7 * HOUR_MS;
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
  #last: Span = { startMs: 0, endMs: 0 };
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

  #find(atMs: number): Span {
    const { nominalMs, startOf } = KINDS[this.period];
    if (!(Math.abs(atMs) < MAX_MS)) return { startMs: atMs, endMs: atMs + nominalMs };
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
    return { startMs, endMs };
  }

  /** @param startMs when the hour began, had the clocks not changed since */
  #hour(startMs: number, atMs: number): Span {
    const endMs = startMs + HOUR_MS;
    const changeMs = this.#changeIn(startMs, endMs);
    return changeMs <= atMs ? { startMs: changeMs, endMs } : { startMs, endMs: changeMs };
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
