/** How callers may wait for units of a policy: its fields `maxWait` and `maxWaiters`. */
import * as v from "valibot";
import type { LeaseTerms, Waiting } from "../algorithms/algorithm.ts";
import {
  DEFAULT_MAX_WAIT_MS,
  DEFAULT_MAX_WAITERS,
  MAX_WAIT_MS,
  MAX_WAITERS,
} from "../algorithms/concurrency.ts";
import { LAG_MS, type Shedding } from "../shedding/load-shedder.ts";
import { integer, oneOf, table, violation, violationsOf } from "../validation.ts";
import { bothReadings, DURATION_ALLOWED, parseDurationMs } from "./policy-options.ts";

/** The fields of a policy. Rules that lease have fields of the same names, with the same defaults. */
export const WAITING_FIELDS = {
  maxWait: v.optional(
    v.pipe(
      v.custom(
        (value) => (parseDurationMs(value) ?? Infinity) <= MAX_WAIT_MS,
        ({ input }) => `${DURATION_ALLOWED}, at most ${MAX_WAIT_MS} ms${bothReadings(input)}`,
      ),
      v.transform((value) => parseDurationMs(value) ?? 0),
    ),
  ),
  maxWaiters: v.optional(integer(1, MAX_WAITERS)),
};

/** How callers may wait: where units are leased, as the rules say that lease them. */
export function waitingOf(
  given: { readonly maxWait?: number | undefined; readonly maxWaiters?: number | undefined },
  lease: LeaseTerms | undefined,
  pool: string | undefined,
): Waiting | { problem: string } {
  const isForRates = lease === undefined && pool === undefined;
  const stray = Object.entries(given).find(([, value]) => value !== undefined && !isForRates);
  if (stray !== undefined) {
    const allowed =
      lease === undefined ? "left out with a pool" : "left out: it stands in the rules that lease units";
    return { problem: violation([stray[0]], stray[1], allowed) };
  }
  if (lease !== undefined) return { maxWaitMs: lease.maxWaitMs, maxWaiters: lease.maxWaiters };
  if (!isForRates) return { maxWaitMs: 0, maxWaiters: 0 };
  const { maxWait = DEFAULT_MAX_WAIT_MS, maxWaiters = DEFAULT_MAX_WAITERS } = given;
  return { maxWaitMs: maxWait, maxWaiters };
}

/** For each term the least of all rules; `undefined`: no rule leases. */
export function strictest(terms: readonly LeaseTerms[]): LeaseTerms | undefined {
  if (terms.length === 0) return undefined;
  const least = (field: keyof LeaseTerms) => Math.min(...terms.map((each) => each[field]));
  return {
    ttlMs: least("ttlMs"),
    maxTtlMs: least("maxTtlMs"),
    maxWaitMs: least("maxWaitMs"),
    maxWaiters: least("maxWaiters"),
  };
}

/* The field `shed` of a policy: what is shed while the machines behind it are too busy. */

const share = (usual: number) =>
  v.optional(
    v.custom<number>(
      (value) => typeof value === "number" && value > 0 && value < 1,
      "a number above 0 and below 1",
    ),
    usual,
  );

const duration = (usual: string) =>
  v.pipe(
    v.optional(
      v.custom(
        (value) => parseDurationMs(value) !== undefined,
        ({ input }) => DURATION_ALLOWED + bothReadings(input),
      ),
      usual,
    ),
    v.transform((value) => parseDurationMs(value) ?? 0),
  );

/** The defaults are those of P. Tarjan's example code of 2017. */
const SHED = table({
  good: share(0.7),
  bad: share(0.8),
  after: duration("28s"),
  over: duration("120s"),
  by: v.optional(oneOf(["leases", "reports"])),
});

export const SHEDDING_FIELDS = { shed: v.optional(v.unknown()) };

/**
 * What a policy sheds; `undefined`: nothing.
 *
 * @param leases whether a rule of the policy leases units
 * @param pool the kind of the policy's pool, if it has one
 */
export function sheddingOf(
  given: unknown,
  leases: boolean,
  pool: string | undefined,
): Shedding | undefined | { readonly problems: readonly string[] } {
  if (given === undefined || given === false) return undefined;
  const isTable = typeof given === "object" && given !== null && !Array.isArray(given);
  if (!isTable && given !== true)
    return refusedBy([], given, "true, false, or a table { good, bad, after, over, by }");
  if (pool !== undefined)
    return refusedBy([], given, 'left out with pool = "redis": each region would shed for itself');
  const parsed = v.safeParse(SHED, isTable ? given : {});
  if (!parsed.success)
    return { problems: violationsOf(parsed.issues, ["shed"]).map(({ detail }) => inShed(detail)) };
  const { good, bad, after: afterMs, over: overMs, by: wanted } = parsed.output;
  const by = wanted ?? (leases ? "leases" : "reports");
  if (by === "leases" && !leases) return refusedBy(["by"], by, '"reports", since no rule leases units');
  if (bad <= good) return refusedBy(["bad"], bad, `above the good utilization, which is ${good}`);
  const leastMs = Math.ceil(LAG_MS / (bad - good) - 1e-6);
  if (overMs < leastMs) {
    const why = `at least ${leastMs} ms with bad - good = ${Number((bad - good).toFixed(6))}: else it would shed too much`;
    return refusedBy(["over"], overMs, why);
  }
  return { good, bad, afterMs, overMs, by };
}

/** The problem of a field that there is not does not say where it stands. */
function inShed(detail: string): string {
  return detail.startsWith("shed") ? detail : `shed: ${detail}`;
}

function refusedBy(path: readonly string[], value: unknown, allowed: string) {
  return { problems: [violation(["shed", ...path], value, allowed)] };
}
