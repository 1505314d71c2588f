import { parseDurationMs } from "./durations.ts";

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
