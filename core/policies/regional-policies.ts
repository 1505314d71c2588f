import { parsePolicies } from "./parse-policies.ts";
import { LOCAL, publicName, SEPARATOR } from "./policy-names.ts";
import type { Policies, Policy, Rule } from "./policy.ts";
import { parseRegions, type Region, type Regions } from "./regions.ts";
/** Policies with a pool, region by region. */

/**
 * Reads all that a deployment configures: its policies, its regions, and what each region has of them.
 *
 * @throws Error that names what is bad: a worker with it does not start
 */
export function parseDeployment({ policies: given, regions: givenRegions }: Given) {
  const policies = parsePolicies(given);
  const regions = parseRegions(givenRegions);
  return { policies, regions, regionalPolicies: new RegionalPolicies(policies, regions) };
}

/** As `wrangler.toml` has them, or as JSON. */
interface Given {
  readonly policies: unknown;
  readonly regions?: unknown;
}

/** Finds policies by all names they have, those of regions included. */
export class RegionalPolicies {
  /** By the names that the deployment gave them, which are those that callers know. */
  readonly named: Policies;
  /** The first is for calls that belong to none. */
  readonly regions: Regions;
  readonly #known = new Map<string, Policy>();

  /** @throws Error when a region alone would have less than one unit of a limit */
  constructor(policies: Policies, regions: Regions) {
    this.named = policies;
    this.regions = regions;
    for (const policy of policies.values())
      if (policy.pool !== undefined) for (const region of regions) this.#add(policy, region);
  }

  get(name: string): Policy | undefined {
    return this.named.get(name) ?? this.#known.get(name);
  }

  /** The policy as a region has it; one without a pool is the same everywhere. */
  within(policy: Policy, region: Region | undefined): Policy {
    if (policy.pool === undefined || policy.region !== undefined) return policy;
    const { name } = region ?? this.regions[0];
    return this.#known.get(`${policy.name}${SEPARATOR}${name}`) ?? policy;
  }

  #add(policy: Policy, region: Region): void {
    const name = `${policy.name}${SEPARATOR}${region.name}`;
    const regional = { ...policy, name, region };
    this.#known.set(name, regional);
    if (policy.onFailure === "local") this.#known.set(`${name}${LOCAL}`, this.#alone(regional));
  }

  #alone({ pool, ...policy }: Policy): Policy {
    const part = pool?.localShare ?? 1 / this.regions.length;
    const scaled = policy.rules.map((rule) => scale(policy, rule, part));
    const [first = policy.rules[0], ...others] = scaled;
    return { ...policy, name: `${policy.name}${LOCAL}`, rules: [first, ...others] };
  }
}

function scale(policy: Pick<Policy, "name">, rule: Rule, part: number): Rule {
  const { algorithm } = rule;
  const config = algorithm.scale(rule.config, part);
  if (config === undefined)
    throw new Error(
      `bad configuration, not serving:\npolicy ${JSON.stringify(publicName(policy.name))}: with onFailure = "local" a region ` +
        `alone has ${rule.capacity} times ${part.toFixed(3)} units of ${rule.name}, which is less than one: must be a localShare that ` +
        `leaves one, or another onFailure`,
    );
  return { ...rule, config, capacity: algorithm.capacity(config), quota: algorithm.quota(config) };
}
