/** The field `shed` of a policy: what is shed while the machines behind it are too busy. */
import * as v from "valibot";
import { LAG_MS, type Shedding } from "../shedding/load-shedder.ts";
import { oneOf, table, violation, violationsOf } from "../validation.ts";
import { bothReadings, DURATION_ALLOWED, parseDurationMs } from "./durations.ts";

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
