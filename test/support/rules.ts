import { parsePolicies, type Rule } from "../../durable-objects/policies.ts";

/** The rule of a token-bucket policy with these fields. */
export function bucket(fields: { limit: number; window: number; burst?: number }): Rule {
  const policy = parsePolicies({ test: { algorithm: "token-bucket", ...fields } }).get("test");
  if (policy === undefined) throw new Error("no policy");
  return policy.rules[0];
}
