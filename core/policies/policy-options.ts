import { type Period, PERIODS } from "../algorithms/windows/calendar.ts";

/**
 * The styles in which the headers of decisions tell of limits: draft-ietf-httpapi-ratelimit-headers in two versions,
 * and `X-RateLimit-*`, whose reset is an instant in Unix seconds (`x-ratelimit`) or the seconds until then
 * (`x-ratelimit-delta`). Styles of one line have headers in common, so a policy has at most one of each line.
 */
const STYLES = [
  ["draft-11", "draft-7"],
  ["x-ratelimit", "x-ratelimit-delta"],
] as const;

/** A style of headers. */
export type HeaderStyle = (typeof STYLES)[number][number];

/** What errors say is allowed. */
export const HEADERS_ALLOWED = `${STYLES.flat()
  .map((style) => JSON.stringify(style))
  .join(", ")}, or a list of one of the first two and one of the last two`;

/** Reads one style, or a list of them; `undefined`: it is not allowed. */
export function parseHeaders(value: unknown): readonly HeaderStyle[] | undefined {
  const given: readonly unknown[] = Array.isArray(value) ? value : [value];
  const found = STYLES.map((line): readonly HeaderStyle[] => line.filter((style) => given.includes(style)));
  const styles = found.flat();
  const isAllowed = given.length > 0 && found.every(({ length }) => length <= 1);
  return isAllowed && styles.length === given.length ? styles : undefined;
}

/** How much longer than they must callers are told to wait: at most so large a part of the wait, or so long. */
export type RetryJitter = { readonly share: number } | { readonly mostMs: number };

/** A longer one would keep callers away for no reason. */
const MAX_MS = 86_400_000;

/** What errors say is allowed. */
export const RETRY_JITTER_ALLOWED =
  'a number above 0 and at most 1, or a duration of at most 1 day such as "5s"';

/** Reads a share of the wait (a number) or a duration (text); `undefined`: it is neither. */
export function parseRetryJitter(value: unknown): RetryJitter | undefined {
  if (typeof value === "number") return value > 0 && value <= 1 ? { share: value } : undefined;
  const mostMs = typeof value === "string" ? parseDurationMs(value) : undefined;
  return mostMs === undefined || mostMs > MAX_MS ? undefined : { mostMs };
}

/** How long a reservation may live. core/reservations/sizing.ts says why, and what else depends on these numbers. */

/** The shortest and the longest lifetime that a policy allows, in milliseconds. Both are 0: nothing is reserved. */
export interface Lifetimes {
  readonly leastMs: number;
  readonly mostMs: number;
  /** `false`: only isolates of the limiter hold units, and clients in their callers' processes ask for each call. */
  readonly clients?: boolean;
}

/**
 * The shortest and the longest lifetime in milliseconds that `reservation = "auto"` chooses. An object without calls
 * leaves memory after about 10 s, and then the units that isolates had reserved count as used. So isolates give units
 * back sooner. (The background work of a request could run for 30 s.)
 */
export const MIN_TTL_MS = 1_000;
export const MAX_TTL_MS = 8_000;
/** With a shorter lifetime nothing is reserved: messages would take too much of it. */
export const MIN_USEFUL_TTL_MS = 20;

/** What one caller may do in one isolate, so that its calls do not take an object from others. */
export interface CallerBounds {
  /** The most calls that wait for the answer of one object. Calls that the isolate decides alone do not count. */
  readonly maxCallsAtOnce: number;
  /** The most keys a second that it has not asked for lately; ten times as many at once. */
  readonly maxNewKeysPerSecond: number;
}

/** Far above what an isolate does in earnest: an object answers some 1,000 calls a second. */
export const DEFAULT_BOUNDS: CallerBounds = { maxCallsAtOnce: 1_000, maxNewKeysPerSecond: 2_000 };

/** No token and no binding may have higher ones. */
export const MAX_CALLS_AT_ONCE = 100_000;
export const MAX_NEW_KEYS_PER_SECOND = 100_000;

/** For calls that are bounded by something else. */
export const MAX_BOUNDS: CallerBounds = {
  maxCallsAtOnce: MAX_CALLS_AT_ONCE,
  maxNewKeysPerSecond: MAX_NEW_KEYS_PER_SECOND,
};

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
