/** The field `shed` of a policy, which says when calls are shed. */
import * as v from "valibot";
import { LAG_MS, type Shedding } from "../shedding/load-shedder.ts";
import { oneOf, table, type Violation, violationsOf, wrong } from "../validation.ts";
import { aboveZero, DURATION } from "./policy-fields.ts";

const share = (usual: number) =>
  v.optional(
    aboveZero((value) => value < 1, "a number above 0 and below 1"),
    usual,
  );

/** The defaults are those of P. Tarjan's example code of 2017. */
const SHED = table({
  good: share(0.7),
  bad: share(0.8),
  after: v.optional(DURATION, "28s"),
  over: v.optional(DURATION, "120s"),
  by: v.optional(oneOf(["leases", "reports"])),
});

/** @param leases whether a rule of the policy leases units */
export function sheddingOf(
  given: unknown,
  leases: boolean,
  pool: string | undefined,
): Shedding | undefined | { readonly problems: readonly Violation[] } {
  if (given === undefined || given === false) return undefined;
  const refusal = (path: readonly string[], value: unknown, allowed: string) => ({
    problems: [wrong(["shed", ...path], value, allowed)],
  });
  const isTable = typeof given === "object" && given !== null && !Array.isArray(given);
  if (!isTable && given !== true)
    return refusal([], given, "true, false, or a table { good, bad, after, over, by }");
  if (pool !== undefined)
    return refusal([], given, 'left out with pool = "redis": each region would shed for itself');
  const parsed = v.safeParse(SHED, isTable ? given : {});
  if (!parsed.success) {
    const named = (detail: string) => (detail.startsWith("shed") ? detail : `shed: ${detail}`);
    return {
      problems: violationsOf(parsed.issues, ["shed"]).map(({ path, detail }) => ({
        path,
        detail: named(detail),
      })),
    };
  }
  const { good, bad, after: afterMs, over: overMs, by = leases ? "leases" : "reports" } = parsed.output;
  if (by === "leases" && !leases) return refusal(["by"], by, '"reports", since no rule leases units');
  if (bad <= good) return refusal(["bad"], bad, `above the good utilization, which is ${good}`);
  const minMs = Math.ceil(LAG_MS / (bad - good) - 1e-6);
  if (overMs < minMs) {
    const why = `at least ${minMs} ms with bad - good = ${Number((bad - good).toFixed(6))}: else it would shed too much`;
    return refusal(["over"], overMs, why);
  }
  return { good, bad, afterMs, overMs, by };
}
