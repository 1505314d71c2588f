/** What middleware refuses when it is made. An option that nobody reads would be missed at the first attack only. */
import { requireGiven, requireInteger, requireKnownOptions } from "../core/violations.ts";

const SHARED = ["limiter", "priority", "skip", "time", "onDenied"];
const CHECK = ["policy", "key", "cost"];
const LIMITER = "a limiter, as createLimiter makes one, or a function of the request that finds it";
const KEY = "a text, or a function of the request that finds it";

/** Options of which the types may not have been checked. */
type Loose = Readonly<Partial<Record<string, unknown>>>;

/** @throws TypeError that names what is wrong with the options of a limit, if anything is */
export function requireRateLimitOptions(options: object): void {
  requireKnownOptions(options, [...SHARED, ...CHECK, "waitMs", "limits"]);
  const { limiter, key, limits, waitMs } = options as Loose;
  requireGiven("limiter", limiter, LIMITER);
  requireInteger("waitMs", waitMs, 0);
  if (limits === undefined) return requireGiven("key", key, KEY);
  if (!Array.isArray(limits) || limits.length === 0)
    throw new TypeError("limits is no list with checks in it: must be several of { policy, key, cost }");
  const beside = [...CHECK, "waitMs"].find((name) => (options as Loose)[name] !== undefined);
  if (beside !== undefined)
    throw new TypeError(`${beside} stands beside limits, where nobody reads it: must be in one of them`);
  for (const check of limits as readonly object[]) {
    requireKnownOptions(check, CHECK);
    requireGiven("key of a limit", (check as Loose)["key"], KEY);
  }
}

/** @throws TypeError that names what is wrong with the options of a lease for each request, if anything is */
export function requireLeaseOptions(options: object): void {
  requireKnownOptions(options, [...SHARED, "policy", "key", "units", "waitMs", "ttlMs", "mostMs"]);
  const { limiter, key, waitMs, ttlMs, mostMs } = options as Loose;
  requireGiven("limiter", limiter, LIMITER);
  requireGiven("key", key, KEY);
  requireInteger("waitMs", waitMs, 0);
  requireInteger("ttlMs", ttlMs, 1);
  requireInteger("mostMs", mostMs, 1);
}

/** @throws TypeError that names what is wrong with the options of a `fetch`, if anything is */
export function requireFetchOptions(options: object): void {
  requireKnownOptions(options, ["limiter", ...CHECK, "waitMs", "attempts", "fetch", "time"]);
  const { limiter, key, waitMs, attempts } = options as Loose;
  requireGiven("limiter", limiter, "a limiter, as createLimiter makes one");
  requireGiven("key", key, "a text, or a function of the request that finds it");
  requireGiven("waitMs", waitMs, "an integer, 0 or more");
  requireInteger("waitMs", waitMs, 0);
  requireInteger("attempts", attempts, 1);
}

/** The limiter of a request. @throws TypeError when the option's function has found none */
export function foundLimiter<Found>(limiter: Found): Found {
  requireGiven("limiter", limiter, "found by the function that was given for it");
  return limiter;
}
