import { DURATION_ALLOWED, parseDurationMs } from "./durations.ts";

/** For so long a denial may be repeated from memory unless the policy says otherwise, as policies write it. */
export const DEFAULT_DENIAL_TTL = "10s";
/** Whoever gets a quota back must not wait for longer to hear of it. */
const MOST_MS = 3_600_000;

/** What errors say is allowed. */
export const DENIAL_TTL_ALLOWED = `"0s", or ${DURATION_ALLOWED}, at most ${MOST_MS} ms`;

/** Reads a duration that may be 0; `undefined`: it is none, or too long. */
export function parseDenialTtlMs(value: unknown): number | undefined {
  // A 0 is a 0 in every unit.
  if (value === 0 || (typeof value === "string" && /^0 ?(?:ms|s)$/.test(value))) return 0;
  const ttlMs = parseDurationMs(value);
  return ttlMs === undefined || ttlMs > MOST_MS ? undefined : ttlMs;
}
