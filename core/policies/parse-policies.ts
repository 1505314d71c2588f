/** Parses the tables POLICIES, REGIONS and LOG of wrangler.toml. */
import * as v from "valibot";
import { number, oneOf, table, violationsOf } from "../validation.ts";
import { nearest, violation, wrong } from "../violations.ts";
import type { Table } from "./changed-tables.ts";
import { parsePolicy, writtenProblems } from "./parse-policy.ts";
import { NAME, NAME_ALLOWED } from "./policy-fields.ts";
import {
  type LimitInCall,
  LOCATION_HINTS,
  type LocationHint,
  type Policies,
  type Policy,
  publicName,
  regionIn,
  type Region,
  type Rule,
  SEPARATOR,
} from "./policy.ts";

/**
 * @throws Error that names every bad policy, field and value, and the allowed values. Such a worker does not start:
 * `npm run deploy` rejects it, and the last good deployment continues.
 */
export function parsePolicies(vars: unknown): Policies {
  const problems: string[] = [];
  const policies = new Map<string, Policy>();
  for (const [name, fields] of policyTablesOf(vars)) {
    const parsed = NAME.test(name)
      ? parsePolicy(name, fields)
      : { problems: [wrong(["its name"], name, NAME_ALLOWED)] };
    const found = "problems" in parsed ? parsed.problems : writtenProblems(parsed, fields as Table);
    problems.push(...found.map(({ detail }) => `policy ${JSON.stringify(name)}: ${detail}`));
    if ("problems" in parsed) continue;
    policies.set(name, parsed);
  }
  refuseBad(problems);
  return policies;
}

function refuseBad(problems: readonly string[]): void {
  if (problems.length > 0) throw badConfiguration(problems);
}

function badConfiguration(problems: readonly string[]): Error {
  return new Error(`bad configuration, not serving:\n${problems.join("\n")}`);
}

/** Replaces the fields of a removed policy. */
const REMOVAL = '{"removed":true}';

type PolicyTable = [name: string, fields: unknown];

/** The tables of `[vars.POLICIES]`, which may be JSON text. @throws Error when there is none */
function policyTablesOf(vars: unknown): PolicyTable[] {
  return tablesOf(vars).filter(([, fields]) => !isRemoval(fields));
}

/** Whether a policy has `removed = true` instead of fields. Stored keys of other missing policies are kept. */
export function removedIn(vars: unknown): (name: string) => boolean {
  const removed = new Set(tablesOf(vars).flatMap(([name, fields]) => (isRemoval(fields) ? [name] : [])));
  return (name) => removed.has(publicName(name));
}

function isRemoval(fields: unknown): boolean {
  return typeof fields === "object" && fields !== null && "removed" in fields;
}

function tablesOf(vars: unknown): PolicyTable[] {
  const wanted = "POLICIES must be a table of policies: add one to wrangler.toml as [vars.POLICIES.<name>]";
  const { given, error } = tableIn(vars);
  const entries: PolicyTable[] = Array.isArray(given) ? [] : Object.entries(given);
  if (entries.length === 0) refuseBad([wanted + (error ? ` (it is text that is not JSON: ${error})` : "")]);
  const bad = entries.filter(([, fields]) => isRemoval(fields) && JSON.stringify(fields) !== REMOVAL);
  const allowed = "removed = true and nothing else, or without removed";
  refuseBad(bad.map(([name, fields]) => `policy ${JSON.stringify(name)}: ${violation([], fields, allowed)}`));
  return entries;
}

/** A table, which may be JSON text; an empty one instead of any other value. */
function tableIn(vars: unknown): { readonly given: object; readonly error?: string } {
  try {
    const given: unknown = typeof vars === "string" ? JSON.parse(vars) : vars;
    return { given: typeof given === "object" && given !== null ? given : {} };
  } catch (error) {
    return { given: {}, error: String(error) };
  }
}

const LogTable = table({
  denials: v.optional(number(0, 1), 0),
  /** The logged part of the calls without an answer from the object. */
  failures: v.optional(number(0, 1), 1),
  keys: v.optional(v.boolean("true or false"), false),
  /** Whether the span of a traced call has its decision as attributes. */
  traces: v.optional(v.boolean("true or false"), false),
});

export type LogSettings = Readonly<v.InferOutput<typeof LogTable>>;

/** @throws Error that names each bad field and value, and the allowed values */
export function parseLog(given: unknown): LogSettings {
  const parsed = v.safeParse(LogTable, given ?? {});
  if (!parsed.success) refuseBad(violationsOf(parsed.issues).map(({ detail }) => `LOG: ${detail}`));
  return parsed.output as LogSettings;
}

const [MIN_BACKGROUND_MS, MAX_BACKGROUND_MS] = [50, 60_000];

/** The interval of background work; `undefined`: the default. @throws Error with the allowed numbers */
export function parseBackgroundMs(given: unknown): number | undefined {
  if (given === undefined) return undefined;
  const ms = Number(given);
  if (Number.isInteger(ms) && ms >= MIN_BACKGROUND_MS && ms <= MAX_BACKGROUND_MS) return ms;
  const allowed = `a whole number from ${MIN_BACKGROUND_MS} to ${MAX_BACKGROUND_MS}`;
  throw badConfiguration([`BACKGROUND_MS is ${JSON.stringify(given)}: must be ${allowed}`]);
}

/** HOME, where the catalog and the statistics are made. @throws Error with the allowed hints */
export function requireHome(given: unknown): void {
  const parsed = v.safeParse(v.optional(oneOf(LOCATION_HINTS)), given);
  if (!parsed.success) refuseBad(violationsOf(parsed.issues, ["HOME"]).map(({ detail }) => detail));
}

/**
 * A policy with a pool gets a copy for each region. @throws Error that names every bad field and value, and the
 * allowed values: such a worker does not start
 */
export function parseDeployment(vars: DeploymentVars) {
  const { areJurisdictionsIgnored } = vars;
  const placed = (policy: Policy) => (areJurisdictionsIgnored ? withoutJurisdiction(policy) : policy);
  const parsed = [...parsePolicies(vars.policies)];
  const policies: Policies = new Map(parsed.map(([name, policy]) => [name, placed(policy)]));
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

/** The changed policy, as calls of each priority and plan see it too. */
function changed(policy: Policy, change: (each: Policy) => Policy): Policy {
  const { priorities, plans, limitInCall } = policy;
  const seen = new Map([...priorities.seen].map(([name, each]) => [name, change(each)]));
  const ofPlans = plans && new Map([...plans].map(([name, each]) => [name, changed(each, change)]));
  return {
    ...change(policy),
    priorities: { ...priorities, seen },
    ...(ofPlans && { plans: ofPlans }),
    ...(limitInCall && { limitInCall: changedInCall(limitInCall, change) }),
  };
}

function changedInCall(own: LimitInCall, change: (each: Policy) => Policy): LimitInCall {
  // A policy that is kept is the same one for all calls with its limits.
  const known = new WeakMap<Policy, Policy>();
  return {
    ...own,
    withLimits(limits) {
      const limited = own.withLimits(limits);
      if (limited === undefined) return undefined;
      const policy = known.get(limited) ?? changed(limited, change);
      known.set(limited, policy);
      return policy;
    },
  };
}

/** All policies of a deployment, and for each policy with a pool a copy for each region. */
export class RegionalPolicies {
  readonly named: Policies;
  readonly regions: Regions;
  /** False: there may be policies that are not known here yet. */
  isComplete = true;
  /** The copies of each policy by their regions, those without the pool by their whole names. */
  readonly #copies = new WeakMap<Policy, Map<string, Policy>>();

  /** @throws Error when a region would have less than one unit of a limit without its pool */
  constructor(policies: Policies, regions: Regions) {
    this.named = policies;
    this.regions = regions;
    for (const policy of policies.values()) {
      const problem = aloneProblem(policy, regions);
      if (problem !== undefined)
        throw badConfiguration([`policy ${JSON.stringify(policy.name)}: ${problem}`]);
    }
  }

  get(name: string): Policy | undefined {
    const named = this.named.get(name);
    if (named !== undefined) return named;
    const policy = this.named.get(publicName(name));
    return policy?.pool === undefined ? undefined : this.copyOf(policy, name);
  }

  /** @param region `undefined`: the first region, which has the calls of no region */
  within(policy: Policy, region: Region | undefined): Policy {
    if (policy.pool === undefined || policy.region !== undefined) return policy;
    const { name } = region ?? this.regions[0];
    return (
      this.#copies.get(policy)?.get(name) ??
      this.copyOf(policy, `${policy.name}${SEPARATOR}${name}`) ??
      policy
    );
  }

  /** A copy of a policy with a pool, by its own name: `api@eu`, `api@eu/local`. `undefined`: there is no such region. */
  copyOf(policy: Policy, name: string): Policy | undefined {
    const { region: regionName, isAlone } = regionIn(name);
    const region = this.regions.find((each) => each.name === regionName);
    if (region === undefined) return undefined;
    const copies = this.#copies.get(policy) ?? new Map<string, Policy>();
    const id = isAlone ? name : regionName;
    const copy =
      copies.get(id) ??
      (isAlone ? alone(policy, name, region, this.regions) : this.#regional(policy, name, region));
    this.#copies.set(policy, copies.set(id, copy));
    return copy;
  }

  #regional(policy: Policy, name: string, region: Region): Policy {
    const { overrides, candidate, plans } = policy;
    const ofPlans = plans && new Map([...plans].map(([plan, each]) => [plan, this.within(each, region)]));
    const found = (key: string, nowMs: number, aheadMs?: number) => {
      const overridden = overrides?.find(key, nowMs, aheadMs);
      return overridden && this.within(overridden, region);
    };
    return {
      ...policy,
      name,
      region,
      ...(ofPlans && { plans: ofPlans }),
      ...(overrides && { overrides: { find: found } }),
      ...(candidate && { candidate: { ...candidate, policy: this.within(candidate.policy, region) } }),
    };
  }
}

/** The policy of a region without its pool: its part of each limit. */
function alone({ pool, ...policy }: Policy, name: string, region: Region, regions: Regions): Policy {
  const part = partOf(pool, regions);
  const [first = policy.rules[0], ...others] = policy.rules.map((rule) => {
    const { algorithm } = rule;
    const config = algorithm.scale(rule.config, part);
    // No version in force leaves a region less than a unit, unless its regions have become more since.
    if (config === undefined) throw badConfiguration([tooSmall(rule, part)]);
    return { ...rule, config, capacity: algorithm.capacity(config), quota: algorithm.quota(config) };
  });
  const { plans } = policy;
  const ofPlans =
    plans && new Map([...plans].map(([plan, each]) => [plan, alone(each, name, region, regions)]));
  return { ...policy, name, region, rules: [first, ...others], ...(ofPlans && { plans: ofPlans }) };
}

function partOf(pool: Policy["pool"], regions: Regions): number {
  return pool?.localShare ?? 1 / regions.length;
}

/** Why a region without its pool could not decide; `undefined`: it can, or need not. */
export function aloneProblem(policy: Policy, regions: Regions): string | undefined {
  const { onFailure, pool, rules, plans = new Map<string, Policy>() } = policy;
  if (onFailure !== "local") return undefined;
  const part = partOf(pool, regions);
  const all = [...rules, ...[...plans.values()].flatMap((plan) => plan.rules)];
  const small = all.find(({ algorithm, config }) => algorithm.scale(config, part) === undefined);
  return small && tooSmall(small, part);
}

function tooSmall({ name, capacity }: Rule, part: number): string {
  const units = `${capacity} times ${part.toFixed(3)} units of ${name}, which is less than one`;
  const wanted = "must have a larger localShare or another onFailure";
  return `with onFailure = "local" a region alone has ${units}: ${wanted}`;
}

const READ = ["POLICIES", "REGIONS", "LOG", "NOTICES"];

/** @throws Error that names a misspelled `POLICIES`, `REGIONS`, `LOG` or `NOTICES`. Other variables are ignored. */
export function requireKnownNames(variables: object): void {
  const misspelt = Object.entries(variables).flatMap(([name, value]: [string, unknown]) => {
    const isTable = typeof value === "object" && value !== null;
    // A table of the singular is meant to be one of them; text of that name may be anybody's.
    const word = isTable ? name.replace(/y$/i, "ies") : name;
    const meant = READ.includes(name) ? undefined : nearest(word, READ);
    const isWrong = meant !== undefined && (isTable || meant === "POLICIES");
    return isWrong ? `${name} is not a variable that is read (did you mean ${meant}?)` : [];
  });
  refuseBad(misspelt);
}

/* Regions: parts of the world. A pooled key has an object of its own in each region. */

export interface Origin {
  readonly colo?: unknown;
  readonly country?: unknown;
  readonly continent?: unknown;
  /** In degrees, as text. */
  readonly longitude?: unknown;
}

/** The first region also has the requests of no region. */
type Regions = readonly [Region, ...Region[]];

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
  for (const [name, fields] of Object.entries(tableIn(vars).given)) {
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

/** Where an object is near this request; `undefined`: the request does not say where it is from. */
export function locationHintOf({ continent, longitude }: Origin): LocationHint | undefined {
  const east = typeof longitude === "string" ? Number(longitude) : 0;
  switch (continent) {
    case "NA":
      return east < -100 ? "wnam" : "enam";
    case "SA":
      return "sam";
    case "EU":
      return east > 15 ? "eeur" : "weur";
    case "AS":
      return east > 0 && east < 63 ? "me" : "apac";
    case "OC":
      return "oc";
    case "AF":
      return "afr";
    default:
      return undefined;
  }
}

/** The region of a request, by colo, then country, then continent; by default the first region. */
export function regionOf(regions: Regions, { colo, country, continent: from }: Origin): Region {
  const within = (field: "colos" | "countries" | "continents", code: unknown) =>
    typeof code === "string" ? regions.find((region) => region[field].includes(code)) : undefined;
  return within("colos", colo) ?? within("countries", country) ?? within("continents", from) ?? regions[0];
}
