import * as v from "valibot";
import {
  type AnyAlgorithm,
  configProblem,
  type ConfigProblem,
  type Fields,
  type LeaseTerms,
  MAX_UNITS,
} from "../algorithms/algorithm.ts";
import { DEFAULT_MAX_WAIT_MS, DEFAULT_MAX_WAITERS } from "../algorithms/concurrency.ts";
import { canBeFair, fairly } from "../algorithms/fair/fair.ts";
import { canBlock, penalised } from "../algorithms/penalty.ts";
import { zeroLimit } from "../algorithms/unlimited.ts";
import { TIME_ZONE_ALLOWED } from "../algorithms/windows/fixed-window.ts";
import { table, violationsOf } from "../validation.ts";
import { clip, meant, type Violation, violation, wrong } from "../violations.ts";
import { algorithms } from "./algorithms.ts";
import {
  algorithmNameOf,
  algorithmOf,
  isTable,
  NOT_OF_ZERO,
  type Problems,
  type Table,
} from "./changed-tables.ts";
import { algorithmMeant, fieldMeant, inDurations } from "./other-words.ts";
import { planProblems, withPlans } from "./plans.ts";
import {
  BEFORE_ALLOWED,
  FAIR_FIELDS,
  fieldsOf,
  NAME,
  NAME_ALLOWED,
  PENALTY_FIELDS,
  POLICY_FIELDS,
  RULE_FIELDS,
} from "./policy-fields.ts";
import { canHaveRegions, isCuttable, MIN_USEFUL_TTL_MS, type Policy, type Rule } from "./policy.ts";
import { prioritiesOf, sheddingOf } from "./priorities.ts";

/** Every call decides all rules of its policy, and each rule is a member of a response header. */
const MAX_RULES = 16;

/** Lists all fields of policies. An error has no place for thirty names. */
const FIELDS_PAGE = "docs/policies.md of the package weir-limiter";

/** Built once: a schema takes longer to build than to run, and policies are parsed for each override. */
const POLICY_SCHEMA = table(POLICY_FIELDS);
const ruleSchemas = new Map<string, ReturnType<typeof ruleSchema>>();

type PolicyFields = v.InferOutput<typeof POLICY_SCHEMA>;

/** Parses the table of a policy, with its plans. */
export function parsePolicy(name: string, given: unknown): Policy | Problems {
  const policy = parsePlan(name, given);
  return "problems" in policy
    ? policy
    : withPlans(policy, given as Table, (fields) => parsePlan(name, fields, true));
}

/**
 * What is wrong with a policy that is written, beyond what the parser refuses. Those that are stored have
 * been in force, and stay so.
 */
export function writtenProblems(policy: Policy, fields: Table): readonly Violation[] {
  return [...offsetsIn(fields), ...ordersIn(policy, fields), ...planProblems(policy, fields)];
}

/** Adaptive rules had the field of concurrency that says who grants: of theirs the object grants each lease. */
function ordersIn({ rules }: Policy, fields: Table): readonly Violation[] {
  return rules.flatMap(({ name, algorithm }) => {
    const several = fields["rules"] as Readonly<Record<string, Table>> | undefined;
    const order = (several?.[name] ?? fields)["order"];
    if (algorithm.name !== "adaptive-concurrency" || order === undefined) return [];
    const path = several === undefined ? ["order"] : ["rules", name, "order"];
    return [wrong(path, order, `left out with algorithm "${algorithm.name}": the object grants each lease`)];
  });
}

/** `Intl` takes offsets from UTC as time zones. */
export function offsetsIn(fields: Table, path: readonly string[] = []): readonly Violation[] {
  const { timeZone, rules, plans } = fields;
  const isOffset = typeof timeZone === "string" && /^[+-]/.test(timeZone);
  const allowed = `${TIME_ZONE_ALLOWED}: an offset has no daylight saving`;
  const own = isOffset ? [wrong([...path, "timeZone"], timeZone, allowed)] : [];
  const below = Object.entries({ rules, plans }).flatMap(([field, tables]) =>
    Object.entries(isTable(tables) ? tables : {}).flatMap(([name, each]) =>
      isTable(each) ? offsetsIn(each, [...path, field, name]) : [],
    ),
  );
  return [...own, ...below];
}

function parsePlan(name: string, given: unknown, isOfPlan = false): Policy | Problems {
  const { rules: tables, policyFields, problems } = splitRules(name, given);
  if (problems.length > 0) return { problems };
  const parsed = v.safeParse(POLICY_SCHEMA, policyFields);
  if (!parsed.success) problems.push(...violationsOf(parsed.issues));
  const rules: Rule[] = [];
  for (const { path, ruleName, fields } of tables) {
    const rule = parseRule(ruleName, path, fields, isOfPlan);
    if ("problems" in rule) problems.push(...rule.problems);
    else rules.push(rule);
  }
  const [first, ...furtherRules] = rules;
  if (!parsed.success || problems.length > 0 || first === undefined) return { problems };
  const fields = parsed.output;
  const lease = strictest(rules.flatMap((rule) => rule.lease ?? []));
  const problem = contradiction(fields, rules, lease !== undefined);
  if (problem !== undefined) return { problems: [problem] };
  const { pool: kind, localShare, shed, denialTtl: denialTtlMs, maxWait, maxWaiters, ...further } = fields;
  const { plans: _, limitInCall: __, ...others } = further;
  const { priorities: names, defaultPriority, reserve, ageing: ageingMs, onFailure, ...plain } = others;
  const shedding = sheddingOf(shed, lease !== undefined, kind);
  if (shedding !== undefined && "problems" in shedding) return shedding;
  const { mostMs } = plain.reservation;
  const fair = rules.filter(({ algorithm }) => algorithm.isFair === true);
  const isFair = fair.length > 0;
  if (isFair && lease !== undefined && (fair.length > 1 || fair[0]?.lease === undefined))
    return { problems: [wrong(["fair"], true, FAIR_BESIDE_SLOTS)] };
  // Nobody waits for units of a pool, nor in one line by group and by what is kept for priorities.
  const isAtOnce = kind !== undefined || (isFair && Object.keys(fields.reserve).length > 0);
  const mayBe = (what: "admits" | "denies") =>
    mostMs > 0 && rules.every(({ algorithm, config }) => algorithm.localDecisions(config)[what]);
  const policy = {
    ...plain,
    ...(typeof onFailure === "string"
      ? { onFailure }
      : { onFailure: "closed" as const, failureLimit: onFailure }),
    name,
    rules: [first, ...furtherRules] as const,
    denialTtlMs,
    waiting: {
      maxWaitMs: lease?.maxWaitMs ?? (isAtOnce ? 0 : (maxWait ?? DEFAULT_MAX_WAIT_MS)),
      maxWaiters: lease?.maxWaiters ?? (isAtOnce ? 0 : (maxWaiters ?? DEFAULT_MAX_WAITERS)),
    },
    localDecisions: { admits: mostMs >= MIN_USEFUL_TTL_MS && mayBe("admits"), denies: mayBe("denies") },
    ...(rules.every(({ algorithm }) => algorithm.isStateless === true || algorithm.isClosed === true) && {
      isStateless: true,
    }),
    ...(lease && { lease }),
    ...(isFair && { isFair }),
    ...(kind && { pool: { kind, ...(localShare !== undefined && { localShare }) } }),
    // A region's object decides by its share of the pool.
    ...(kind === undefined && {
      terms: JSON.stringify(tables.map((rule) => [rule.ruleName, rule.fields])),
    }),
    ...(shedding && { shedding }),
  };
  const priorities = prioritiesOf(policy, names, defaultPriority, reserve, ageingMs);
  return "problems" in priorities ? priorities : { ...policy, priorities };
}

const FAIR_BESIDE_SLOTS = "left out beside a rule that leases units, or in one such rule only";

interface RuleTable {
  readonly path: readonly string[];
  readonly ruleName: string;
  readonly fields: unknown;
}

/** Separates the fields of a policy from those of its rules. Without `rules` they are those of one rule. */
function splitRules(
  name: string,
  given: unknown,
): { rules: RuleTable[]; policyFields: Table; problems: Violation[] } {
  if (!isTable(given)) {
    const problems = [wrong([], given, "a table with an algorithm or with rules")];
    return { rules: [], policyFields: {}, problems };
  }
  // In a policy of one rule, a field that its algorithm also has belongs to the rule.
  const ofRule = Object.hasOwn(given, "rules") ? {} : (algorithmOf(given)?.fields ?? {});
  const ofPolicy = new Set(Object.keys(POLICY_FIELDS).filter((field) => !Object.hasOwn(ofRule, field)));
  const entries = Object.entries(given);
  const policyFields = Object.fromEntries(entries.filter(([field]) => ofPolicy.has(field)));
  const others = Object.fromEntries(entries.filter(([field]) => !ofPolicy.has(field)));
  if (!Object.hasOwn(given, "rules"))
    return { rules: [{ path: [], ruleName: name, fields: others }], policyFields, problems: [] };
  const { rules: named, ...strays } = others;
  const problems = Object.keys(strays).map((field): Violation => {
    const detail =
      `${clip(field)} is beside rules: must be in one of the rules, or a field of every policy, which ${FIELDS_PAGE} lists` +
      fieldMeant(field, [...ofPolicy]);
    return { path: [field], detail };
  });
  const tables = isTable(named) ? Object.entries(named) : [];
  if (tables.length === 0 || tables.length > MAX_RULES)
    problems.push(wrong(["rules"], named, `1 to ${MAX_RULES} tables, one a rule`));
  for (const [ruleName] of tables)
    if (!NAME.test(ruleName)) {
      const detail = violation(["the name of a rule"], ruleName, NAME_ALLOWED);
      problems.push({ path: ["rules", ruleName], detail });
    }
  const rules = tables.map(([ruleName, fields]) => ({ path: ["rules", ruleName], ruleName, fields }));
  return { rules, policyFields, problems };
}

function parseRule(
  name: string,
  path: readonly string[],
  given: unknown,
  isOfPlan: boolean,
): Rule | Problems {
  const named = algorithmOf(given);
  if (named === undefined) return { problems: algorithmProblems(path, given) };
  const schema = ruleSchemas.get(named.name) ?? ruleSchema(named);
  ruleSchemas.set(named.name, schema);
  const parsed = v.safeParse(schema, given);
  if (!parsed.success) {
    // The schema reports the first unknown field only.
    const known = parsed.issues.filter(({ expected }) => expected !== "never");
    const strays = Object.keys(given as Table).filter((field) => !Object.hasOwn(schema.entries, field));
    return { problems: [...violationsOf(known, path), ...unknownFields(named, path, strays)] };
  }
  const { algorithm: _, unit, blockFor, maxBlock, fair, weights, ...fields } = parsed.output;
  const rule = wrapped(
    configuredBy(named, fields, isOfPlan),
    { blockFor, maxBlock, fair, weights },
    (fields as Fields)["order"],
  );
  if ("problem" in rule) {
    const { field, allowed } = rule.problem;
    // As it was written; absent: its default.
    const value = ({ ...fields, ...(given as Table) } as Table)[field];
    return { problems: [wrong([...path, field], value, inDurations(allowed))] };
  }
  const { algorithm, config } = rule;
  const lease = algorithm.leasing?.terms(config);
  return {
    name,
    algorithm,
    config,
    capacity: algorithm.capacity(config),
    quota: algorithm.quota(config),
    unit: unit ?? (lease === undefined ? "requests" : "concurrent-requests"),
    ...(lease && { lease }),
  };
}

type Configured = Pick<Rule, "algorithm" | "config"> | ConfigProblem;
type Wrapping = Pick<Fields, "blockFor" | "maxBlock"> & {
  readonly fair: true | undefined;
  readonly weights: ((group: string) => number) | undefined;
};

/** The algorithm with penalties, or with the shares of groups. */
function wrapped(
  configured: Configured,
  { blockFor, maxBlock, fair, weights }: Wrapping,
  order: Fields[string],
): Configured {
  if ("problem" in configured) return configured;
  const { algorithm, config } = configured;
  const hasPenalty = blockFor !== undefined || maxBlock !== undefined;
  if (fair === undefined && weights !== undefined) return configProblem("weights", "left out, or with fair");
  if (hasPenalty && fair) return configProblem("fair", "left out with blockFor: one group would block all");
  if (fair && order === "relaxed")
    return configProblem("order", 'left out with fair, or "strict": the object grants each lease');
  if (hasPenalty) return penalised(algorithm, config, { blockFor, maxBlock });
  return fair ? fairly(algorithm, config, weights ?? (() => 1)) : configured;
}

function ruleSchema(algorithm: AnyAlgorithm) {
  return table({ ...RULE_FIELDS, ...fieldsOf(algorithm), ...PENALTY_FIELDS, ...FAIR_FIELDS });
}

/** The problems of a rule's unknown fields. They list what this algorithm takes. */
function unknownFields(
  algorithm: AnyAlgorithm,
  path: readonly string[],
  strays: readonly string[],
): Violation[] {
  const taken = Object.keys({
    ...RULE_FIELDS,
    ...algorithm.fields,
    ...(canBlock(algorithm) && PENALTY_FIELDS),
    ...(canBeFair(algorithm) && FAIR_FIELDS),
  });
  const isAlone = path.length === 0;
  const elsewhere = isAlone ? `, and those of every policy, which ${FIELDS_PAGE} lists` : "";
  const known = isAlone ? [...taken, ...Object.keys(POLICY_FIELDS)] : taken;
  return strays.map((field) => {
    const named = clip([...path, field].join("."));
    const detail = `${named} is not a field: there are ${taken.join(", ")}${elsewhere}${fieldMeant(field, known)}`;
    return { path: [...path, field], detail };
  });
}

/** An algorithm with its configuration. A limit of 0 closes it; other fields are checked with a limit of 1. */
function configuredBy(algorithm: AnyAlgorithm, fields: Fields, isOfPlan: boolean): Configured {
  if (fields["limit"] !== 0) {
    const config = algorithm.configure(fields);
    return "problem" in config ? config : { algorithm, config };
  }
  const stray = NOT_OF_ZERO.find((field) => fields[field] !== undefined);
  if (stray !== undefined)
    return { problem: { field: stray, allowed: "left out with a limit of 0: nothing passes at all" } };
  // Under a plan of 0 time returns as little as can be, and of credits, which do not return, none is cut off.
  const limit = isOfPlan && algorithm.neverRefills === true ? MAX_UNITS : 1;
  const config: Table | ConfigProblem = algorithm.configure({ ...fields, limit }) as Table;
  if ("problem" in config) return config as unknown as ConfigProblem;
  const closed = zeroLimit(algorithm, isOfPlan);
  if (isOfPlan && algorithm.leasing === undefined) return { algorithm: closed, config };
  const { burst: _, initial: __, ...others } = config;
  return { algorithm: closed, config: { ...others, limit: 0 } };
}

/** The problems of a rule with an unknown algorithm: `algorithm` or `rules` may be misspelled. */
function algorithmProblems(path: readonly string[], given: unknown): Violation[] {
  const [name, known] = [algorithmNameOf(given), [...algorithms.keys()]];
  const words = path.length === 0 ? ["algorithm", "rules"] : ["algorithm"];
  const fields = name === undefined && typeof given === "object" && given !== null ? Object.keys(given) : [];
  const misspelt = fields.flatMap((field) => {
    const near = meant(field, words);
    const detail = `${clip([...path, field].join("."))} is not a field${near}`;
    return near === "" ? [] : { path: [...path, field], detail };
  });
  if (misspelt.length > 0) return misspelt;
  const near = typeof name === "string" ? algorithmMeant(name, known) : "";
  const allowed = `one of ${known.map((each) => JSON.stringify(each)).join(", ")}${near}`;
  return [wrong([...path, "algorithm"], name, allowed)];
}

type Check = readonly [isWrong: boolean, field: keyof PolicyFields, allowed: string, value?: unknown];

/** The first of the fields that contradict another one. */
function contradiction(fields: PolicyFields, rules: readonly Rule[], leases: boolean): Violation | undefined {
  const { onFailure, objects, objectsBefore = [], pool, localShare, locationHint, jurisdiction } = fields;
  const isPooled = pool !== undefined;
  const isFair = rules.some((rule) => rule.algorithm.isFair === true);
  const isKept = Object.keys(fields.reserve).length > 0;
  const { algorithm, capacity } = rules.find((rule) => rule.algorithm.isPoolable !== true) ?? {};
  const unpoolable =
    capacity === 0
      ? "a limit of 0"
      : algorithm?.hasPenalty
        ? "blockFor"
        : algorithm?.isFair
          ? "fair"
          : `algorithm "${algorithm?.name}"`;
  const before = objectsBefore.length === 1 ? objectsBefore[0] : objectsBefore;
  const wait = fields.maxWait === undefined ? "maxWaiters" : "maxWait";
  const withPool = 'left out, or with pool = "redis"';
  const withLocal = 'left out, or with onFailure = "local"';
  const withoutJurisdiction = "left out, or without a jurisdiction, which says where";
  const regionless = fields.regions === "always" ? withoutRegions(fields, rules) : undefined;
  const placed = "left out, or without a pool: regions have a locationHint";
  const checks: readonly Check[] = [
    [!isPooled && localShare !== undefined, "localShare", withPool],
    [!isPooled && onFailure === "local", "onFailure", withPool],
    [localShare !== undefined && onFailure !== "local", "localShare", withLocal],
    [isPooled && algorithm !== undefined, "pool", `left out with ${unpoolable}`],
    // Regions get their units from the pool.
    [isPooled && objectsBefore.length > 0, "objectsBefore", "left out, or without a pool", before],
    [objectsBefore.includes(objects), "objectsBefore", BEFORE_ALLOWED, before],
    // A region does not know what others use.
    [isPooled && fields.notify !== undefined, "notify", "left out, or without a pool"],
    [isPooled && locationHint !== undefined, "locationHint", placed],
    [isPooled && jurisdiction !== undefined, "jurisdiction", placed],
    [locationHint !== undefined && jurisdiction !== undefined, "locationHint", withoutJurisdiction],
    [
      fields.regions === "always" && regionless !== undefined,
      "regions",
      `left out, "auto" or "off" ${regionless}`,
    ],
    // Where rules lease units, their own fields set the waits.
    [leases && fields[wait] !== undefined, wait, "left out: it stands in the rules that lease units"],
    [isPooled && fields[wait] !== undefined, wait, "left out with a pool"],
    [isFair && isKept && !leases && fields[wait] !== undefined, wait, "left out with fair and reserve"],
    [leases && isFair && isKept, "reserve", "left out with fair where units are leased"],
  ];
  const found = checks.find(([isWrong]) => isWrong);
  if (found === undefined) return undefined;
  const [, field, allowed, value = fields[field]] = found;
  return wrong([field], value, allowed);
}

/** Why no object in a region can have a part of the policy; `undefined`: one can. */
function withoutRegions(fields: PolicyFields, rules: readonly Rule[]): string | undefined {
  const { pool, jurisdiction, reserve, reservation } = fields;
  if (pool !== undefined) return "with a pool";
  if (jurisdiction !== undefined) return "with a jurisdiction";
  if (Object.keys(reserve).length > 0) return "with reserve";
  if (reservation.mostMs < MIN_USEFUL_TTL_MS) return "without reservations";
  const uncut = rules.find((rule) => !isCuttable(rule));
  if (uncut !== undefined) return `with rules of the algorithm ${JSON.stringify(uncut.algorithm.name)}`;
  return rules.every(canHaveRegions) ? undefined : "with a burst that takes so long to return";
}

function strictest(terms: readonly LeaseTerms[]): LeaseTerms | undefined {
  if (terms.length === 0) return undefined;
  const least = (field: keyof LeaseTerms) => Math.min(...terms.map((each) => each[field]));
  return {
    ttlMs: least("ttlMs"),
    maxTtlMs: least("maxTtlMs"),
    maxWaitMs: least("maxWaitMs"),
    maxWaiters: least("maxWaiters"),
  };
}
