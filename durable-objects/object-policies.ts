import type { KnownPolicies, Policy } from "../core/policies/policy.ts";
import { isRemoved, regionalPolicies } from "./deployment.ts";
import { sharesOf } from "./pool/share-algorithm.ts";

/** The policies by which objects decide. In a policy with a pool, each rule is replaced by the region's share of it. */
export const objectPolicies = {
  get(name: string): Policy | undefined {
    const policy = regionalPolicies.get(name);
    if (policy?.pool === undefined) return policy;
    const shares = known.get(name) ?? sharesOf(policy);
    known.set(name, shares);
    return shares;
  },
  isRemoved,
} satisfies KnownPolicies;
const known = new Map<string, Policy>();
