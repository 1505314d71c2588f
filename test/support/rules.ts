import { parsePolicies } from "../../core/policies/parse-policies.ts";
import type { Rule } from "../../core/policies/policy.ts";

/** The rule of a policy with these fields. */
export function ruleOf(fields: Readonly<Record<string, unknown>>): Rule {
  const policy = parsePolicies({ test: fields }).get("test");
  if (policy === undefined) throw new Error("no policy");
  return policy.rules[0];
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
