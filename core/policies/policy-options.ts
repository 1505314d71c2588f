import { parseDurationMs } from "./durations.ts";

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
