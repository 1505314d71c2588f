import { minBurst } from "../../core/algorithms/token-bucket.ts";
import type { Rule } from "../../core/policies/policy.ts";
import { parsePolicies } from "./milliseconds.ts";

export function ruleOf(fields: Readonly<Record<string, unknown>>): Rule {
  const policy = parsePolicies({ test: fields }).get("test");
  if (policy === undefined) throw new Error("no policy");
  return policy.rules[0];
}

/** The same fields of a token bucket, with the burst that its rate needs at least. */
export function reachable<Fields extends { limit: number; window: number; burst: number }>(
  fields: Fields,
): Fields {
  return { ...fields, burst: Math.max(fields.burst, minBurst(fields.limit, fields.window)) };
}

export function bucket(fields: { limit: number; window: number; burst?: number }): Rule {
  return ruleOf({ algorithm: "token-bucket", ...fields });
}

export function log(fields: {
  limit: number;
  window: number;
  minInterval?: number;
  countDenied?: boolean;
}): Rule {
  return ruleOf({ algorithm: "sliding-log", ...fields });
}
