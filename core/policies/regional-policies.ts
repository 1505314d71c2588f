import * as v from "valibot";
import { nearest, oneOf, table, violation, violationsOf } from "../validation.ts";
import {
  badConfiguration,
  entriesOf,
  parsePolicies,
  policyTablesOf,
  refuseBad,
  removedIn,
} from "./parse-policies.ts";
import { NAME, NAME_ALLOWED } from "./policy-fields.ts";
import {
  LOCAL,
  LOCATION_HINTS,
  type Policies,
  type Policy,
  publicName,
  type Region,
  type Rule,
  SEPARATOR,
} from "./policy.ts";

/**
 * A policy with a pool gets a copy for each region. @throws Error that names every bad field and value, and the
 * allowed values: such a worker does not start
 */
export function parseDeployment(vars: DeploymentVars) {
  const { areJurisdictionsIgnored } = vars;
  const parsed = [...parsePolicies(vars.policies)];
  const policies: Policies = new Map(
    areJurisdictionsIgnored === true
      ? parsed.map(([name, policy]) => [name, withoutJurisdiction(policy)] as const)
      : parsed,
  );
  const regions = parseRegions(vars.regions);
  return {
    policies,
    tables: new Map(policyTablesOf(vars.policies)) as ReadonlyMap<string, Readonly<Record<string, unknown>>>,
    regions,
    areJurisdictionsIgnored,
    regionalPolicies: new RegionalPolicies(policies, regions),
    isRemoved: removedIn(vars.policies),
  };
}

export type Deployment = ReturnType<typeof parseDeployment>;

interface DeploymentVars {
  readonly policies: unknown;
  readonly regions?: unknown;
  /** True where plain workerd runs the worker. */
  readonly areJurisdictionsIgnored?: boolean;
}

export function withoutJurisdiction(policy: Policy): Policy {
  return changed(policy, (each) => {
    const { jurisdiction: _, ...others } = each;
    return others;
  });
}

export function withAll(policy: Policy, more: Partial<Policy>): Policy {
  return changed(policy, (each) => ({ ...each, ...more }));
}

/** The changed policy, as calls of each priority see it too. */
function changed(policy: Policy, change: (each: Policy) => Policy): Policy {
  const { priorities } = policy;
  const seen = new Map([...priorities.seen].map(([name, each]) => [name, change(each)]));
  return { ...change(policy), priorities: { ...priorities, seen } };
}

/** All policies of a deployment, and for each policy with a pool a copy for each region. */
export class RegionalPolicies {
  readonly named: Policies;
  readonly regions: Regions;
  /** The copies, by their own names: `api@eu`, `api@eu/local`. */
  readonly #known = new Map<string, Policy>();

  /** @throws Error when a region would have less than one unit of a limit without its pool */
  constructor(policies: Policies, regions: Regions) {
    this.named = policies;
    this.regions = regions;
    for (const policy of policies.values())
      if (policy.pool !== undefined) for (const region of regions) this.#add(policy, region);
  }

  get(name: string): Policy | undefined {
    return this.named.get(name) ?? this.#known.get(name);
  }

  /** @param region `undefined`: the first region, which has the calls of no region */
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
  if (config === undefined) {
    const units = `${rule.capacity} times ${part.toFixed(3)} units of ${rule.name}, which is less than one`;
    const wanted = "must have a larger localShare or another onFailure";
    const name = JSON.stringify(publicName(policy.name));
    throw badConfiguration([
      `policy ${name}: with onFailure = "local" a region alone has ${units}: ${wanted}`,
    ]);
  }
  return { ...rule, config, capacity: algorithm.capacity(config), quota: algorithm.quota(config) };
}

const READ = ["POLICIES", "REGIONS", "LOG"];

/** @throws Error that names a misspelled `POLICIES`, `REGIONS` or `LOG`. Other variables are ignored. */
export function requireKnownNames(variables: object): void {
  const wrong = Object.entries(variables).flatMap(([name, value]: [string, unknown]) => {
    const meant = READ.includes(name) ? undefined : nearest(name, READ);
    const isTable = typeof value === "object" && value !== null;
    const isWrong = meant !== undefined && (isTable || meant === "POLICIES");
    return isWrong ? `${name} is not a variable that is read (did you mean ${meant}?)` : [];
  });
  refuseBad(wrong);
}

/* Regions: parts of the world. A pooled key has an object of its own in each region. */

export interface Origin {
  readonly colo?: unknown;
  readonly country?: unknown;
  readonly continent?: unknown;
}

/** The first region also has the requests of no region. */
export type Regions = readonly [Region, ...Region[]];

const CONTINENTS = {
  na: { continents: ["NA"], locationHint: "enam" },
  eu: { continents: ["EU"], locationHint: "weur" },
  as: { continents: ["AS"], locationHint: "apac" },
  sa: { continents: ["SA"], locationHint: "sam" },
  oc: { continents: ["OC"], locationHint: "oc" },
  af: { continents: ["AF"], locationHint: "afr" },
};

const CODES_ALLOWED = 'an array of upper-case codes, like ["EU"]';
const codes = v.optional(
  v.pipe(
    v.array(v.pipe(v.string(CODES_ALLOWED), v.regex(/^[A-Z0-9]{2,3}$/, CODES_ALLOWED)), CODES_ALLOWED),
    v.readonly(),
  ),
  [],
);
const REGION_FIELDS = {
  colos: codes,
  countries: codes,
  continents: codes,
  locationHint: v.optional(oneOf(LOCATION_HINTS)),
};

/** By default each continent is a region. @throws Error that names every bad field and value */
export function parseRegions(vars: unknown = CONTINENTS): Regions {
  const problems: string[] = [];
  const regions: Region[] = [];
  for (const [name, fields] of entriesOf(vars).entries) {
    const parsed = v.safeParse(table(REGION_FIELDS), fields);
    const found = parsed.success ? [] : violationsOf(parsed.issues).map(({ detail }) => detail);
    if (!NAME.test(name)) found.push(violation(["its name"], name, NAME_ALLOWED));
    problems.push(...found.map((detail) => `region ${JSON.stringify(name)}: ${detail}`));
    if (parsed.success) {
      const { locationHint, ...codesOf } = parsed.output;
      regions.push({ name, ...codesOf, ...(locationHint !== undefined && { locationHint }) });
    }
  }
  const [first, ...others] = regions;
  const wanted = "left out, or a table of at least one region: [vars.REGIONS.<name>]";
  refuseBad(problems);
  if (first === undefined) throw badConfiguration([violation(["REGIONS"], vars, wanted)]);
  return [first, ...others];
}

/** The region of a request, by colo, then country, then continent; by default the first region. */
export function regionOf(regions: Regions, { colo, country, continent: from }: Origin): Region {
  const within = (field: "colos" | "countries" | "continents", code: unknown) =>
    typeof code === "string" ? regions.find((region) => region[field].includes(code)) : undefined;
  return within("colos", colo) ?? within("countries", country) ?? within("continents", from) ?? regions[0];
}
