/** The options of middleware, and their checks when it is made: a wrong option would later admit calls. */
import type { PolicyName } from "../client/limiter.ts";
import { requireGiven, requireInteger, requireKnownOptions, violation } from "../core/violations.ts";

export type Given<Args extends readonly unknown[], Value> =
  | Value
  | ((...args: Args) => Value | Promise<Value>);

/** The fields of a call (`CallFields`), each as a value or a function of the request. */
export type GivenFields<Args extends readonly unknown[], Fields> = Fields extends unknown
  ? {
      readonly [Name in keyof Fields as Name extends "limits" ? "ownLimits" : Name]: Name extends "policy"
        ? GivenPolicy<Args, Exclude<Fields[Name], undefined>>
        : Given<Args, Exclude<Fields[Name], undefined>>;
    }
  : never;

/** A function may find any policy, so that the other fields are those of calls that name none. */
type GivenPolicy<Args extends readonly unknown[], Name> =
  | Name
  | ([Name] extends [never] ? FoundPolicy<Args> : string extends Name ? FoundPolicy<Args> : never);

type FoundPolicy<Args extends readonly unknown[]> = (...args: Args) => PolicyName | Promise<PolicyName>;

export function valueOf<Args extends readonly unknown[], Value extends string | number | object | undefined>(
  option: Given<Args, Value>,
  args: Args,
): Value | Promise<Value> {
  return typeof option === "function" ? option(...args) : option;
}

type FindsValue = (...args: readonly unknown[]) => unknown;

/** The values of these options, without those that are not given. */
export async function valuesOf<Values extends object>(
  options: object,
  names: readonly (keyof Values & string)[],
  args: readonly unknown[],
): Promise<Values> {
  const values: Record<string, unknown> = {};
  for (const name of names) {
    // A check's `limits` would be taken for the middleware's.
    const option = (options as Unchecked)[name === "limits" ? "ownLimits" : name];
    if (option === undefined) continue;
    // An await takes a turn of the microtask queue, also of a value that is here.
    values[name] = typeof option === "function" ? await (option as FindsValue)(...args) : option;
  }
  return values as Values;
}

/** Keeps work alive after the request's answer, where the runtime requires it. */
export type InBackground = (work: Promise<unknown>) => void;

/** @param context what a runtime passes with the request; without a `waitUntil`, work continues by itself */
export function inBackgroundOf(context: unknown): InBackground {
  const { waitUntil } = (context ?? {}) as { readonly waitUntil?: unknown };
  if (typeof waitUntil !== "function") return (work) => void work.catch(() => undefined);
  return (work) =>
    void waitUntil.call(
      context,
      work.catch(() => undefined),
    );
}

const SHARED = ["limiter", "priority", "skip", "time", "onDenied"];
const PLANNED = ["policy", "key", "cost", "plan", "group"];
const CHECK = [...PLANNED, "ownLimits"];
const LIMITER = "a limiter, as createLimiter makes one, or a function of the request that finds it";
const TEXT = "a text, or a function of the request that finds it";

type Unchecked = Readonly<Partial<Record<string, unknown>>>;

/** @throws TypeError that names the option, its value and what is allowed */
export function requireRateLimitOptions(options: object): void {
  requireKnownOptions(options, [...SHARED, ...CHECK, "waitMs", "limits", "mode"]);
  const { limiter, key, limits, mode, waitMs } = options as Unchecked;
  requireGiven("limiter", limiter, LIMITER);
  requireInteger("waitMs", waitMs, 0);
  if (mode !== undefined && (limits === undefined || (mode !== "all" && mode !== "any")))
    throw new TypeError(violation(["mode"], mode, '"all" or "any" beside limits, or left out'));
  if (limits === undefined) return requireGiven("key", key, TEXT);
  if (!Array.isArray(limits) || limits.length === 0)
    throw new TypeError(violation(["limits"], limits, "a list of 1 or more { policy, key, cost }"));
  const beside = [...CHECK, "waitMs"].find((name) => (options as Unchecked)[name] !== undefined);
  if (beside !== undefined)
    throw new TypeError(
      violation([beside], (options as Unchecked)[beside], "in a check of limits, not beside"),
    );
  for (const check of limits as readonly object[]) {
    requireKnownOptions(check, CHECK);
    requireGiven("key of a limit", (check as Unchecked)["key"], TEXT);
  }
}

/** @throws TypeError that names the option, its value and what is allowed */
export function requireLeaseOptions(options: object): void {
  requireKnownOptions(options, [
    ...SHARED,
    "policy",
    "key",
    "units",
    "plan",
    "group",
    "waitMs",
    "ttlMs",
    "mostMs",
  ]);
  const { limiter, key, waitMs, ttlMs, mostMs } = options as Unchecked;
  requireGiven("limiter", limiter, LIMITER);
  requireGiven("key", key, TEXT);
  requireInteger("waitMs", waitMs, 0);
  requireInteger("ttlMs", ttlMs, 1);
  requireInteger("mostMs", mostMs, 1);
}

/** @throws TypeError that names the option, its value and what is allowed */
export function requireFetchOptions(options: object): void {
  requireKnownOptions(options, ["limiter", ...PLANNED, "waitMs", "attempts", "fetch", "time"]);
  const { limiter, key, waitMs, attempts } = options as Unchecked;
  requireGiven("limiter", limiter, "a limiter, as createLimiter makes one");
  requireGiven("key", key, TEXT);
  requireGiven("waitMs", waitMs, "an integer, 0 or more");
  requireInteger("waitMs", waitMs, 0);
  requireInteger("attempts", attempts, 1);
}

/** The limiter that was found for a request. @throws TypeError if the option's function returned none */
export function requireLimiter<Found extends object>(limiter: Found): Found {
  requireGiven("limiter", limiter, "found by the function that was given for it");
  return limiter;
}
