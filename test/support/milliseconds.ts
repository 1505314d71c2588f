/** Policies with durations as numbers of milliseconds, to calculate with. A user's must have units. */
import * as policies from "../../core/policies/parse-policies.ts";
import * as deployment from "../../core/policies/parse-policies.ts";
import type { Policies } from "../../core/policies/policy.ts";

const DURATIONS =
  "window minInterval timeout warmup maxBurst maxDelay jitter ttl maxTtl maxWait blockFor maxBlock ageing forgetAfter after over denialTtl".split(
    " ",
  );

/** The same fields, with the unit of each duration. */
export function inMilliseconds<Given>(given: Given): Given {
  if (Array.isArray(given) || typeof given !== "object" || given === null) return given;
  const entries = Object.entries(given).map(([field, value]: [string, unknown]) => [
    field,
    typeof value === "number" && value > 0 && DURATIONS.includes(field)
      ? `${value}ms`
      : inMilliseconds(value),
  ]);
  return Object.fromEntries(entries) as Given;
}

export function parsePolicies(given: object): Policies {
  return policies.parsePolicies(inMilliseconds(given));
}

export function parseDeployment({ policies: given, ...others }: { policies: object; regions?: object }) {
  return deployment.parseDeployment({ policies: inMilliseconds(given), ...others });
}
