/** The call that sets what a key has used. */
import type { LimiterClient } from "../../client/limiter-client.ts";
import { publicName } from "../../core/policies/policy-names.ts";
import type { Rule } from "../../core/policies/policy.ts";
import type { KeyReport } from "../../core/protocol/decision.ts";
import type { Problem } from "../../core/protocol/problems.ts";
import type { Principal } from "../auth/tokens.ts";
import { alsoBeside } from "./candidates.ts";
import { SetRequest } from "./set-schema.ts";
import { call, costProblem, type Answered } from "./target.ts";
import { given, refused } from "./validate.ts";

/** Sets what a key has used, and looks at it. */
export function callSetUsed(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<Answered<KeyReport> | Problem> {
  return call(client, principal, SetRequest, input, ({ policy, key }, { used }) => {
    const problem = costProblem(policy, ["used"], used, given(input, "used"));
    if (problem !== undefined) return problem;
    if (policy.pool !== undefined)
      return refused(
        ["policy"],
        publicName(policy.name),
        "a policy without a pool, to set what a key has used",
      );
    const rates = policy.rules.filter(({ lease }) => lease === undefined);
    if (rates.length === 0)
      return refused(
        ["policy"],
        policy.name,
        "a policy with a rule that counts a rate: leases are only released",
      );
    const isNamed = ({ unit }: Rule) => typeof used === "number" || Object.hasOwn(used, unit);
    if (!rates.some(isNamed))
      return refused(["used"], given(input, "used"), `a number, or a table with one of ${unitsOf(rates)}`);
    alsoBeside(client, policy, (beside, tried) => beside.setUsed(tried, key, used));
    return client.setUsed(policy, key, used);
  });
}

function unitsOf(rules: readonly Rule[]): string {
  return [...new Set(rules.map(({ unit }) => unit))].join(", ");
}
