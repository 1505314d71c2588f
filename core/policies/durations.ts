import { type Period, PERIODS } from "../algorithms/windows/calendar.ts";

const UNITS_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 } as const;

/** What errors say is allowed, when a field is a duration. */
export const DURATION_ALLOWED =
  'a duration of 1 ms or more with its unit, such as "250ms" "10s" "15m" "1h" "30d"';

/** What an error adds about a number without a unit: the two durations that it might be. */
export function bothReadings(value: unknown): string {
  return typeof value === "number" && value > 0 ? ` (${value} might be "${value}s" or "${value}ms")` : "";
}

/**
 * Reads a duration as policies write them: `"250ms" "10s" "15m" "1h" "30d"`, also with a space: `"10 s"`. A number is
 * none: 60 milliseconds instead of 60 seconds is a limit a thousand times as high.
 *
 * @returns whole milliseconds, 1 or more; `undefined` when it is not a duration
 */
export function parseDurationMs(value: unknown): number | undefined {
  const durationMs = typeof value === "string" ? fromText(value) : undefined;
  return durationMs !== undefined && Number.isSafeInteger(durationMs) && durationMs >= 1
    ? durationMs
    : undefined;
}

/** What errors say is allowed, when a field is a period. */
export const PERIOD_ALLOWED = `${DURATION_ALLOWED}, or of the calendar ${PERIODS.map((each) => `"1 ${each}"`).join(" ")}`;

/**
 * Reads a period as policies write it: a duration, or one of the calendar's, such as `"1 month"`.
 *
 * @returns milliseconds, or the calendar's word for it; `undefined` when it is neither
 */
export function parsePeriod(value: unknown): number | Period | undefined {
  return PERIODS.find((period) => value === `1 ${period}`) ?? parseDurationMs(value);
}

function fromText(text: string): number | undefined {
  const match = /^(\d{1,16}) ?(ms|s|m|h|d)$/.exec(text);
  return match === null ? undefined : Number(match[1]) * UNITS_MS[match[2] as keyof typeof UNITS_MS];
}

const DAY_MS = 86_400_000;
const RFC_3339 =
  /^(?<year>\d{4})-(?<month>\d\d)-(?<day>\d\d)T(?<hour>\d\d):\d\d:\d\d(?:\.\d+)?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)$/;

/**
 * Reads an instant as RFC 3339 writes it: `"2027-01-31T12:00:00Z"`, `"2027-01-31T13:00:00.5+01:00"`. `Date.parse` alone
 * takes 30 February for 2 March, and 24:00 for the next day.
 *
 * @returns milliseconds since the Unix epoch; `undefined` when it is none, as on a day that there is not
 */
export function parseInstantMs(text: string): number | undefined {
  const upper = text.toUpperCase();
  const { year, month, day, hour } = RFC_3339.exec(upper)?.groups ?? {};
  const atMs = Date.parse(upper);
  const isThere = Number(day) <= daysOf(Number(year), Number(month)) && Number(hour) < 24;
  return isThere && !Number.isNaN(atMs) ? atMs : undefined;
}

/** The days of a month, which are the same every 400 years. */
function daysOf(year: number, month: number): number {
  const like = 2_000 + (year % 400);
  return (Date.UTC(like, month) - Date.UTC(like, month - 1)) / DAY_MS;
}
