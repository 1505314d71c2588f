import { nearest } from "../validation.ts";
import { parsePolicies } from "./parse-policies.ts";
import { policyTablesOf, removedIn } from "./policy-tables.ts";
import { LOCAL, type Policies, type Policy, publicName, type Rule, SEPARATOR } from "./policy.ts";
import { parseRegions, type Region, type Regions } from "./regions.ts";
/**
 * Reads what a deployment configures: its policies and its regions. A policy with a pool also gets a copy for each
 * region.
 *
 * @throws Error that names every bad field and value, and what is allowed: such a worker does not start
 */
export function parseDeployment({
  policies: given,
  regions: givenRegions,
  areJurisdictionsIgnored,
}: DeploymentVars) {
  const parsed = parsePolicies(given);
  const policies = areJurisdictionsIgnored === true ? withoutJurisdictions(parsed) : parsed;
  const regions = parseRegions(givenRegions);
  const regionalPolicies = new RegionalPolicies(policies, regions);
  const tables = new Map(policyTablesOf(given)) as ReadonlyMap<string, Readonly<Record<string, unknown>>>;
  return {
    policies,
    tables,
    regions,
    areJurisdictionsIgnored,
    regionalPolicies,
    isRemoved: removedIn(given),
  };
}

/** Tables of `wrangler.toml`, or the same as JSON text. */
interface DeploymentVars {
  readonly policies: unknown;
  readonly regions?: unknown;
  /** Where plain workerd runs the worker. */
  readonly areJurisdictionsIgnored?: boolean;
}

function withoutJurisdictions(policies: Policies): Policies {
  return new Map([...policies].map(([name, policy]) => [name, withoutJurisdiction(policy)]));
}

/** The policy as it is where there are no jurisdictions. */
export function withoutJurisdiction(policy: Policy): Policy {
  const nowhere = (each: Policy): Policy => {
    const { jurisdiction: _, ...others } = each;
    return others;
  };
  const { priorities } = policy;
  const seen = new Map([...priorities.seen].map(([name, each]) => [name, nowhere(each)]));
  return { ...nowhere(policy), priorities: { ...priorities, seen } };
}

/** All policies of a deployment, and for each policy with a pool a copy for each region. */
export class RegionalPolicies {
  /** By the names that the deployment gave them, and that callers know. */
  readonly named: Policies;
  readonly regions: Regions;
  /** The copies, by their own names: `api@eu`, `api@eu/local`. */
  readonly #known = new Map<string, Policy>();

  /** @throws Error when a region that goes on alone would have less than one unit of a limit */
  constructor(policies: Policies, regions: Regions) {
    this.named = policies;
    this.regions = regions;
    for (const policy of policies.values())
      if (policy.pool !== undefined) for (const region of regions) this.#add(policy, region);
  }

  /** Finds a policy or a region's copy by its name. */
  get(name: string): Policy | undefined {
    return this.named.get(name) ?? this.#known.get(name);
  }

  /**
   * The region's copy of a policy; a policy without a pool is the same in all regions.
   *
   * @param region `undefined`: the first region, which has the calls that belong to no region
   */
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

  /** What a region goes on with when its pool does not answer: its part of each limit, without a pool. */
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
        `alone has ${rule.capacity} times ${part.toFixed(3)} units of ${rule.name}, which is less than one: must have a larger ` +
        `localShare or another onFailure`,
    );
  return { ...rule, config, capacity: algorithm.capacity(config), quota: algorithm.quota(config) };
}

/** The names of the variables that a deployment reads. */
const READ = ["POLICIES", "REGIONS", "LOG"];

/**
 * Refuses a variable that is `POLICIES`, `REGIONS` or `LOG` with a wrong letter: nobody would read it. Other variables are not
 * the limiter's. So is a text that has a name like `REGION`: regions are a table.
 *
 * @throws Error that names the variable, and the one that was meant
 */
export function requireKnownNames(variables: object): void {
  const wrong = Object.entries(variables).flatMap(([name, value]: [string, unknown]) => {
    const meant = READ.includes(name) ? undefined : nearest(name, READ);
    const isTable = typeof value === "object" && value !== null;
    const isWrong = meant !== undefined && (isTable || meant === "POLICIES");
    return isWrong ? `${name} is not a variable that is read (did you mean ${meant}?)` : [];
  });
  if (wrong.length > 0) throw new Error(`bad configuration, not serving:\n${wrong.join("\n")}`);
}
