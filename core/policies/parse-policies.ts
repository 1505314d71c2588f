import * as v from "valibot";
import type { AnyAlgorithm, ConfigProblem, Fields, LocalDecisions } from "../algorithms/algorithm.ts";
import { withPenalty } from "../algorithms/penalty.ts";
import { zeroLimit } from "../algorithms/unlimited.ts";
import { clip, meant, table, violation, violationsOf } from "../validation.ts";
import { algorithms } from "./algorithms.ts";
import { beforeOf, placementOf } from "./placement.ts";
import {
  fieldsOf,
  NAME,
  NAME_ALLOWED,
  PENALTY_FIELDS,
  POLICY_FIELDS,
  RULE_FIELDS,
  sheddingOf,
  strictest,
  waitingOf,
} from "./policy-fields.ts";
import { MIN_USEFUL_TTL_MS } from "./policy-options.ts";
import { policyTablesOf } from "./policy-tables.ts";
import type { Policies, Policy, Rule } from "./policy.ts";
import { prioritiesOf } from "./priorities.ts";

/** Every call decides all rules of its policy, and each rule is a member of a response header. */
const MAX_RULES = 16;

/** Schemas are made once: making one takes longer than reading with it, and policies are read for each override. */
const ruleSchemas = { alone: schemasBy(Object.keys(POLICY_FIELDS)), among: schemasBy([]) };

/**
 * Reads the policies of `wrangler.toml`, once, at start-up.
 *
 * @param vars the table `[vars.POLICIES]`, or the same as JSON text
 * @throws Error that names every bad policy, field and value, and what is allowed. A worker with a bad policy does
 * not start. `npm run deploy` refuses it, and the last good deployment goes on.
 */
export function parsePolicies(vars: unknown): Policies {
  const tables = policyTablesOf(vars);
  const problems: string[] = [];
  const policies = new Map<string, Policy>();
  for (const [name, fields] of tables) {
    const parsed = NAME.test(name)
      ? parsePolicy(name, fields)
      : { problems: [violation(["its name"], name, NAME_ALLOWED)] };
    if ("problems" in parsed)
      problems.push(...parsed.problems.map((text) => `policy ${JSON.stringify(name)}: ${text}`));
    else policies.set(name, parsed);
  }
  if (problems.length > 0) throw new Error(`bad configuration, not serving:\n${problems.join("\n")}`);
  return policies;
}

/** Reads one policy. The problems are sentences that begin with the field. */
export function parsePolicy(name: string, given: unknown): Policy | { readonly problems: readonly string[] } {
  const { rules: tables, policyFields, problems } = splitRules(name, given);
  if (problems.length > 0) return { problems };
  const parsed = parsePolicyLevel(policyFields);
  if (!parsed.success) problems.push(...violationsOf(parsed.issues).map(({ detail }) => detail));
  const rules: Rule[] = [];
  for (const { path, ruleName, fields } of tables) {
    const rule = parseRule(ruleName, path, fields);
    if ("problems" in rule) problems.push(...rule.problems);
    else rules.push(rule);
  }
  const [first, ...others] = rules;
  if (!parsed.success || problems.length > 0 || first === undefined) return { problems };
  const {
    pool: kind,
    localShare,
    priorities,
    defaultPriority,
    reserve,
    ageing,
    retryJitter,
    maxWait,
    maxWaiters,
    denialTtl: denialTtlMs,
    shed,
    objectsBefore,
    locationHint,
    jurisdiction,
    ...policy
  } = parsed.output;
  const unpooled = poolProblem({ onFailure: policy.onFailure, localShare, pool: kind, rules });
  if (unpooled !== undefined) return { problems: [unpooled] };
  const before = beforeOf(policy.objects, objectsBefore, kind);
  if (before !== undefined && "problems" in before) return before;
  const placement = placementOf({ locationHint, jurisdiction }, kind);
  if ("problems" in placement) return placement;
  const pool = kind && { kind, ...(localShare !== undefined && { localShare }) };
  const lease = strictest(rules.flatMap((rule) => rule.lease ?? []));
  const waiting = waitingOf({ maxWait, maxWaiters }, lease, kind);
  if ("problem" in waiting) return { problems: [waiting.problem] };
  const mayBe = (what: keyof LocalDecisions) =>
    policy.reservation.mostMs > 0 &&
    rules.every(({ algorithm, config }) => algorithm.localDecisions(config)[what]);
  const isLongEnough = policy.reservation.mostMs >= MIN_USEFUL_TTL_MS;
  const localDecisions = { admits: isLongEnough && mayBe("admits"), denies: mayBe("denies") };
  const whole = {
    name,
    rules: [first, ...others] as const,
    ...policy,
    denialTtlMs,
    waiting,
    localDecisions,
    ...(rules.every(({ algorithm }) => algorithm.isStateless === true) && { isStateless: true }),
    ...(lease && { lease }),
    ...(pool && { pool }),
    ...(retryJitter && { retryJitter }),
    ...before,
    ...placement,
  };
  const shedding = sheddingOf(shed, lease !== undefined, kind);
  if (shedding !== undefined && "problems" in shedding) return shedding;
  // A region's object decides by what it has of the pool.
  const terms = pool === undefined && {
    terms: JSON.stringify(tables.map(({ ruleName, fields }) => [ruleName, fields])),
  };
  const all = { ...whole, ...terms, ...(shedding && { shedding }) };
  const important = prioritiesOf(all, { priorities, defaultPriority, reserve, ageing });
  return "problems" in important ? important : { ...all, priorities: important };
}

interface RuleTable {
  /** Where the table stands in its policy; errors begin with it. */
  readonly path: readonly string[];
  readonly ruleName: string;
  readonly fields: unknown;
}

/**
 * Separates the fields of a policy from those of its rules. Without `rules` there is one rule: it has the policy's
 * name, and its fields stand beside the policy's own.
 */
function splitRules(
  name: string,
  given: unknown,
): { rules: RuleTable[]; policyFields: Readonly<Record<string, unknown>>; problems: string[] } {
  if (typeof given !== "object" || given === null || Array.isArray(given)) {
    const problems = [violation([], given, "a table with an algorithm or with rules")];
    return { rules: [], policyFields: {}, problems };
  }
  // In a policy of one rule a field that its algorithm has too is the rule's.
  const ofRule = Object.hasOwn(given, "rules") ? {} : (algorithmOf(given)?.fields ?? {});
  const ofPolicy = new Set(Object.keys(POLICY_FIELDS).filter((field) => !Object.hasOwn(ofRule, field)));
  const entries = Object.entries(given);
  const policyFields = Object.fromEntries(entries.filter(([field]) => ofPolicy.has(field)));
  const others = Object.fromEntries(entries.filter(([field]) => !ofPolicy.has(field)));
  if (!Object.hasOwn(given, "rules"))
    return { rules: [{ path: [], ruleName: name, fields: others }], policyFields, problems: [] };
  const { rules: named, ...strays } = others;
  const problems = Object.keys(strays).map(
    (field) =>
      `${field} is beside rules: must be in one of the rules, or be one of ${[...ofPolicy].join(", ")}`,
  );
  const isTable = typeof named === "object" && named !== null && !Array.isArray(named);
  const tables = isTable ? Object.entries(named) : [];
  if (tables.length === 0 || tables.length > MAX_RULES)
    problems.push(violation(["rules"], named, `1 to ${MAX_RULES} tables, one a rule`));
  for (const [ruleName] of tables)
    if (!NAME.test(ruleName)) problems.push(violation(["the name of a rule"], ruleName, NAME_ALLOWED));
  const rules = tables.map(([ruleName, fields]) => ({ path: ["rules", ruleName], ruleName, fields }));
  return { rules, policyFields, problems };
}

function parseRule(name: string, path: readonly string[], given: unknown): Rule | { problems: string[] } {
  const named = algorithmOf(given);
  if (named === undefined) return { problems: algorithmProblems(path, given) };
  const schemaOf = path.length === 0 ? ruleSchemas.alone : ruleSchemas.among;
  const parsed = v.safeParse(schemaOf(named), given);
  if (!parsed.success) return { problems: violationsOf(parsed.issues, path).map(({ detail }) => detail) };
  const { algorithm: _, unit, blockFor, maxBlock, ...fields } = parsed.output;
  const opened = configuredBy(named, fields);
  const configured =
    "problem" in opened ? opened : penalised(opened.algorithm, opened.config, blockFor, maxBlock);
  if ("problem" in configured) {
    const { field, allowed } = configured.problem;
    return {
      problems: [violation([...path, field], ({ ...fields, blockFor, maxBlock } as Fields)[field], allowed)],
    };
  }
  const { algorithm, config } = configured;
  const capacity = algorithm.capacity(config);
  const lease = algorithm.leasing?.terms(config);
  const defaultUnit = lease === undefined ? "requests" : "concurrent-requests";
  const quota = algorithm.quota(config);
  return { name, algorithm, config, capacity, quota, unit: unit ?? defaultUnit, ...(lease && { lease }) };
}

/** The schema of a rule, by its algorithm. Errors name these fields of the policy too, beside which it stands. */
function schemasBy(policyFields: readonly string[]) {
  const make = (algorithm: AnyAlgorithm) =>
    table({ ...RULE_FIELDS, ...fieldsOf(algorithm), ...PENALTY_FIELDS }, policyFields);
  const made = new Map<AnyAlgorithm, ReturnType<typeof make>>();
  return (algorithm: AnyAlgorithm) => {
    const schema = made.get(algorithm) ?? make(algorithm);
    made.set(algorithm, schema);
    return schema;
  };
}

/** An algorithm with its configuration, made of parsed fields. A limit of 0 closes it. */
export function configuredBy(algorithm: AnyAlgorithm, fields: Fields): ConfiguredRule {
  return fields["limit"] === 0 ? closedBy(algorithm, fields) : openedBy(algorithm, fields);
}

type ConfiguredRule = Pick<Rule, "algorithm" | "config"> | ConfigProblem;

function openedBy(algorithm: AnyAlgorithm, fields: Fields): ConfiguredRule {
  const config = algorithm.configure(fields);
  return "problem" in config ? config : { algorithm, config };
}

/** The rule of a limit of 0. Its other fields are checked as if the limit were 1. */
function closedBy(algorithm: AnyAlgorithm, fields: Fields): ConfiguredRule {
  const stray = ["burst", "initial"].find((field) => fields[field] !== undefined);
  if (stray !== undefined)
    return { problem: { field: stray, allowed: "left out with a limit of 0: nothing passes at all" } };
  const config = algorithm.configure({ ...fields, limit: 1 });
  if ("problem" in config) return config;
  const {
    burst: _,
    initial: __,
    ...others
  } = config as { readonly burst?: number; readonly initial?: number };
  return { algorithm: zeroLimit(algorithm), config: { ...others, limit: 0 } };
}

/* The algorithm that a rule names. */

/** The algorithm of a rule as its policy gives it; `undefined`: it names none that there is. */
export function algorithmOf(given: unknown): AnyAlgorithm | undefined {
  const name = algorithmNameOf(given);
  return typeof name === "string" ? algorithms.get(name) : undefined;
}

/** What is wrong with a rule that names no algorithm that there is. */
export function algorithmProblems(path: readonly string[], given: unknown): string[] {
  const misspelt = misspeltIn(path, given);
  if (misspelt.length > 0) return misspelt;
  const [name, known] = [algorithmNameOf(given), [...algorithms.keys()]];
  const near = typeof name === "string" ? meant(name, known) : "";
  const allowed = `one of ${known.map((each) => JSON.stringify(each)).join(", ")}${near}`;
  return [violation([...path, "algorithm"], name, allowed)];
}

/** Fields that are `algorithm`, or the `rules` of a policy, with a wrong letter. */
function misspeltIn(path: readonly string[], given: unknown): string[] {
  if (algorithmNameOf(given) !== undefined || typeof given !== "object" || given === null) return [];
  const words = path.length === 0 ? ["algorithm", "rules"] : ["algorithm"];
  return Object.keys(given).flatMap((field) => {
    const near = meant(field, words);
    return near === "" ? [] : `${clip([...path, field].join("."))} is not a field${near}`;
  });
}

function algorithmNameOf(given: unknown): unknown {
  return typeof given === "object" && given !== null && "algorithm" in given ? given.algorithm : undefined;
}

/** The longest block, unless a rule says otherwise: a day. */
const DEFAULT_MOST_MS = 86_400_000;
/** 2^31 - 1 ms, about 24 days. */
const MAX_MS = 2_147_483_647;

/**
 * An algorithm and its configuration with the penalties that a rule asks for, if it does.
 *
 * @param blockMs `blockFor`: how long the first block lasts, in milliseconds
 * @param mostMs `maxBlock`: the longest block
 */
export function penalised(
  algorithm: AnyAlgorithm,
  config: object,
  blockMs: Duration,
  mostMs: Duration,
): { readonly algorithm: AnyAlgorithm; readonly config: object } | ConfigProblem {
  if (blockMs === undefined) {
    if (mostMs === undefined) return { algorithm, config };
    return { problem: { field: "maxBlock", allowed: "left out, or with blockFor" } };
  }
  const isRate = algorithm.leasing === undefined && algorithm.fields["limit"] !== undefined;
  // Who has no credits left is not let in by waiting, so there is nothing to keep out.
  if (!isRate || algorithm.isLasting === true)
    return { problem: { field: "blockFor", allowed: `left out with algorithm "${algorithm.name}"` } };
  if (Number(blockMs) > MAX_MS) return { problem: { field: "blockFor", allowed: `at most ${MAX_MS} ms` } };
  const longestMs = Number(mostMs ?? Math.max(Number(blockMs), DEFAULT_MOST_MS));
  if (longestMs < Number(blockMs) || longestMs > MAX_MS) {
    const allowed = `at least the blockFor of ${Number(blockMs)} ms and at most ${MAX_MS} ms`;
    return { problem: { field: "maxBlock", allowed } };
  }
  const penal = { inner: config, blockForMs: Number(blockMs), maxBlockMs: longestMs };
  return { algorithm: withPenalty(algorithm), config: penal };
}

/** A duration as it is parsed. */
type Duration = number | boolean | string | undefined;

/* What a policy says of its pool, and of regions that go on without it. */

interface PoolFields {
  readonly onFailure: string;
  readonly localShare: number | undefined;
  readonly pool: string | undefined;
  readonly rules: readonly Rule[];
}

/** What is wrong with these fields together; `undefined`: nothing. */
export function poolProblem({ onFailure, localShare, pool, rules }: PoolFields): string | undefined {
  if (pool === undefined && localShare !== undefined)
    return violation(["localShare"], localShare, 'left out, or with pool = "redis"');
  if (pool === undefined && onFailure === "local")
    return violation(["onFailure"], onFailure, 'left out, or with pool = "redis"');
  if (localShare !== undefined && onFailure !== "local")
    return violation(["localShare"], localShare, 'left out, or with onFailure = "local"');
  const stray = rules.find(({ algorithm }) => algorithm.isPoolable !== true);
  if (pool === undefined || stray === undefined) return undefined;
  const { isPenal, name } = stray.algorithm;
  const what = stray.capacity === 0 ? "a limit of 0" : isPenal ? "blockFor" : `algorithm "${name}"`;
  return violation(["pool"], pool, `left out with ${what}`);
}

/* The fields of a policy that are not those of its rules. */

/** A schema is made once: making one takes longer than reading with it. */
const SCHEMA = table(POLICY_FIELDS);

type PolicyTable = Readonly<Record<string, unknown>>;

/**
 * What was read last. Each key with an override has the same policy with other figures in its rules, and reading these
 * fields again is half of what reading a policy takes.
 */
let last: { readonly given: PolicyTable; readonly parsed: ReturnType<typeof parse> } | undefined;

/** Reads the fields. They must not change afterwards. */
export function parsePolicyLevel(given: PolicyTable): ReturnType<typeof parse> {
  if (last !== undefined && isSame(given, last.given)) return last.parsed;
  const parsed = parse(given);
  last = { given, parsed };
  return parsed;
}

function parse(given: PolicyTable) {
  return v.safeParse(SCHEMA, given);
}

/** Whether the fields have the same values, in the same order. What is no plain value may have changed inside. */
function isSame(one: PolicyTable, other: PolicyTable): boolean {
  const [mine, theirs] = [Object.keys(one), Object.keys(other)];
  return (
    mine.length === theirs.length &&
    mine.every(
      (field, index) => field === theirs[index] && isPlain(one[field]) && one[field] === other[field],
    )
  );
}

function isPlain(value: unknown): boolean {
  return typeof value !== "object" && typeof value !== "function";
}
