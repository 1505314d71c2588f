import type { Policy } from "../core/policies/policy.ts";
import { regionalPolicies } from "./deployment.ts";
import { sharesOf } from "./pool/share-algorithm.ts";

/** The policies of this deployment as objects decide by them: of a pool, a region has a share. */
export const objectPolicies = {
  get(name: string): Policy | undefined {
    const policy = regionalPolicies.get(name);
    if (policy?.pool === undefined) return policy;
    const shares = known.get(name) ?? sharesOf(policy);
    known.set(name, shares);
    return shares;
  },
};
const known = new Map<string, Policy>();
