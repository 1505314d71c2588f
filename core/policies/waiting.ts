/** How callers may wait for units of a policy: its fields `maxWait` and `maxWaiters`. */
import * as v from "valibot";
import type { LeaseTerms, Waiting } from "../algorithms/algorithm.ts";
import {
  DEFAULT_MAX_WAIT_MS,
  DEFAULT_MAX_WAITERS,
  MAX_WAIT_MS,
  MAX_WAITERS,
} from "../algorithms/concurrency.ts";
import { integer, violation } from "../validation.ts";
import { bothReadings, DURATION_ALLOWED, parseDurationMs } from "./durations.ts";

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
