import * as v from "valibot";
import { MAX_UNITS } from "../algorithms/algorithm.ts";
/** Policies with the catalog's changes: fields, overrides for some keys, and candidates. */
import {
  isTable,
  multiplied,
  plansWithout,
  problem,
  type Problems,
  raised,
  withFigures,
} from "../policies/changed-tables.ts";
import {
  type Deployment,
  RegionalPolicies,
  withAll,
  withoutJurisdiction,
} from "../policies/parse-policies.ts";
import { parsePolicy, writtenProblems } from "../policies/parse-policy.ts";
import { OVERRIDE_FIELDS } from "../policies/policy-fields.ts";
import { type Candidate, candidateName, type Policy, type PolicyRevision } from "../policies/policy.ts";
import { parseInstantMs, violationsOf } from "../validation.ts";
import { clip, describe, meant, type Violation, violation } from "../violations.ts";
import type { CatalogChanges, OverrideChange, OverrideFields, PolicyChange, Table } from "./calls.ts";
import { OverrideIndex, parsePattern } from "./patterns.ts";

type Deployed = Pick<Deployment, "policies" | "tables" | "regions"> & {
  readonly areJurisdictionsIgnored?: boolean | undefined;
};

/** The policies of one isolate: the deployment's file, then the catalog's changes. Complete once there were changes. */
export class PoliciesInForce extends RegionalPolicies {
  readonly #deployed: Deployed;
  readonly #named: Map<string, Policy>;
  readonly #entries = new Map<string, PolicyEntry>();
  #revision = 0;

  constructor(deployed: Deployed) {
    const named = new Map(deployed.policies);
    super(named, deployed.regions);
    this.#named = named;
    this.#deployed = deployed;
    this.isComplete = false;
  }

  get revision(): number {
    return this.#revision;
  }

  apply({ revision, isWhole, policies, overrides }: CatalogChanges): void {
    if (revision <= this.#revision && !isWhole) return;
    if (isWhole) {
      this.#entries.clear();
      this.#named.clear();
      for (const [name, policy] of this.#deployed.policies) this.#named.set(name, policy);
    }
    for (const change of policies) this.#entryOf(change.name).change(change);
    for (const change of overrides) this.#entryOf(change.policy).override(change);
    const changed = [...policies.map(({ name }) => name), ...overrides.map(({ policy }) => policy)];
    for (const name of new Set(changed)) {
      const policy = this.#entryOf(name).join();
      if (policy === undefined) this.#named.delete(name);
      else this.#named.set(name, policy);
    }
    this.#revision = revision;
    this.isComplete = true;
  }

  #entryOf(name: string): PolicyEntry {
    const entry = this.#entries.get(name) ?? new PolicyEntry(name, this.#deployed);
    this.#entries.set(name, entry);
    return entry;
  }
}

/** The bounds of policies kept by pattern, and by fields. */
const [MAX_KEPT, MAX_READ] = [4_096, 1_024];

interface Override {
  readonly pattern: string;
  readonly fields: OverrideFields;
  /** NaN: from its writing on. */
  readonly startsAtMs: number;
  /** NaN: never. */
  readonly endsAtMs: number;
}

class PolicyEntry {
  readonly #name: string;
  readonly #deployed: Deployed;
  readonly #overrides = new OverrideIndex<Override>();
  readonly #byPattern = new Map<string, Policy>();
  /** Keys whose override has ended: by that instant and the pattern that applies since, if any. */
  readonly #afterEnd = new Map<string, Policy>();
  /** Patterns with the same fields, as those of one plan, are parsed once. */
  readonly #byFields = new Map<string, Policy>();
  #policy: Policy | undefined;
  #table: Table | undefined;
  #inForce: PolicyRevision = { version: 0 };
  #candidate: PolicyChange["candidate"];

  constructor(name: string, deployed: Deployed) {
    this.#name = name;
    this.#deployed = deployed;
  }

  change({ version, fields, candidate }: PolicyChange): void {
    for (const read of [this.#byPattern, this.#afterEnd, this.#byFields]) read.clear();
    this.#candidate = candidate;
    this.#inForce = { version, ...(fields && { fields: JSON.stringify(fields) }) };
    this.#table = fields ?? this.#deployed.tables.get(this.#name);
    this.#policy = fields === undefined ? this.#deployed.policies.get(this.#name) : this.#parse(fields);
  }

  /** Adds an override, unless this version cannot parse its pattern. */
  override({ pattern: text, fields }: OverrideChange): void {
    const pattern = parsePattern(this.#policy ?? { keyKind: "text" }, text);
    if (pattern === undefined) return;
    this.#byPattern.delete(text);
    this.#afterEnd.clear();
    if (fields === undefined) this.#overrides.delete(pattern);
    else {
      const instantOf = (field: string) => Date.parse(String(fields[field]));
      const [startsAtMs, endsAtMs] = [instantOf("startsAt"), instantOf("expiresAt")];
      this.#overrides.set(pattern, { pattern: text, fields, startsAtMs, endsAtMs });
    }
  }

  /** The policy after any number of changes; `undefined`: there is none. */
  join(): Policy | undefined {
    if (this.#policy === undefined) return undefined;
    const { overrides: _, candidate: __, ...policy } = this.#policy;
    const candidate = this.#candidateWith();
    this.#policy = withAll(policy, {
      inForce: this.#inForce,
      ...(this.#overrides.size > 0 && {
        overrides: { find: (key, nowMs, aheadMs = 0) => this.#find(key, nowMs, aheadMs) },
      }),
      ...(candidate && { candidate }),
    });
    return this.#policy;
  }

  /**
   * An override begins and ends at its instants: isolates know the first long before, the catalog deletes it after the
   * second, and isolates read that later still. What applies since an instant is a later revision for the key's object.
   */
  #find(key: string, nowMs: number, aheadMs: number): Policy | undefined {
    const hasBegun = ({ startsAtMs }: Override) => !(startsAtMs > nowMs + aheadMs);
    const first = this.#overrides.find(key);
    if (first === undefined) return undefined;
    if (!(first.endsAtMs <= nowMs) && hasBegun(first)) return this.#overridden(first);
    let endedMs = -Infinity;
    const next = this.#overrides.find(key, (each) => {
      if (!(each.endsAtMs <= nowMs)) return hasBegun(each);
      endedMs = Math.max(endedMs, each.endsAtMs);
      return false;
    });
    if (endedMs === -Infinity) return next && this.#overridden(next);
    const name = `${endedMs}/${next?.pattern ?? ""}`;
    const known = this.#afterEnd.get(name);
    if (known !== undefined) return known;
    const policy = (next && this.#overridden(next)) ?? this.#policy;
    const revised = ({ inForce }: Policy) => {
      const sinceMs = Math.max(endedMs, inForce?.sinceMs ?? endedMs);
      return inForce === undefined ? {} : { inForce: { ...inForce, sinceMs } };
    };
    return policy && keep(this.#afterEnd, name, withEach(policy, revised), MAX_KEPT);
  }

  #overridden({ pattern, fields }: Override): Policy | undefined {
    const known = this.#byPattern.get(pattern);
    if (known !== undefined) return known;
    const text = JSON.stringify(fields);
    let read = this.#byFields.get(text);
    if (read === undefined) {
      read = this.#read(pattern, fields);
      if (read === undefined) return undefined;
      keep(this.#byFields, text, read, MAX_READ);
    }
    const override = { ...read.override, pattern };
    const policy = withEach(read, () => ({ override }));
    return keep(this.#byPattern, pattern, policy, MAX_KEPT);
  }

  #read(pattern: string, fields: OverrideFields): Policy | undefined {
    const policy = this.#policy;
    if (policy === undefined || this.#table === undefined) return undefined;
    const read = readOverride(this.#name, this.#table, fields);
    if ("problems" in read) {
      const details = read.problems.map(({ detail }) => detail);
      return this.#warn(`the override ${describe(pattern)} does not fit it any more`, details);
    }
    const { effect, endsAtMs } = read;
    const parsed = read.policy === undefined ? this.#parse(read.fields) : this.#placed(read.policy);
    if (parsed === undefined) return undefined;
    const candidate = this.#candidateWith(fields);
    // Terms are sent with calls of other keys too, and are compared with theirs.
    const termsOf = (each?: Policy) => (each?.terms === undefined ? {} : { terms: each.terms });
    return withAll(parsed, {
      inForce: { version: this.#inForce.version, fields: JSON.stringify(read.fields), ...sinceOf(read) },
      override: { pattern, ...(effect && { effect }), ...(endsAtMs !== undefined && { endsAtMs }) },
      ...termsOf(policy),
      ...(candidate && {
        candidate: { ...candidate, policy: withAll(candidate.policy, termsOf(policy.candidate?.policy)) },
      }),
    });
  }

  /** The candidate for keys with an override; none if the override does not fit it. */
  #candidateWith(override?: OverrideFields): Candidate | undefined {
    if (this.#candidate === undefined) return undefined;
    const { version } = this.#candidate;
    // Its keys were never in other objects.
    const { objectsBefore: _, ...table } = this.#candidate.fields;
    const read = override === undefined ? { fields: table } : readOverride(this.#name, table, override);
    if ("problems" in read) return undefined;
    const policy = this.#parse(read.fields, candidateName(this.#name));
    if (policy === undefined) return undefined;
    const fields = JSON.stringify(read.fields);
    const inForce = { ...this.#inForce, fields, candidate: version, ...sinceOf(read) };
    return { policy: withAll(policy, { inForce }), version };
  }

  #parse(fields: Table, name = this.#name): Policy | undefined {
    const parsed = parsePolicy(name, fields);
    if (!("problems" in parsed)) return this.#placed(parsed);
    // Another version of the deployment may have written it.
    const details = parsed.problems.map(({ detail }) => detail);
    return this.#warn("the catalog has what this version cannot read", details);
  }

  #warn(what: string, details: readonly string[]): undefined {
    console.warn(`policy ${this.#name}: ${what}: ${details.join("; ")}`);
  }

  #placed(policy: Policy): Policy {
    return this.#deployed.areJurisdictionsIgnored === true ? withoutJurisdiction(policy) : policy;
  }
}

/** Keeps a value, and drops the oldest beyond the bound. */
function keep<Value>(kept: Map<string, Value>, name: string, value: Value, max: number): Value {
  for (const oldest of kept.keys()) {
    if (kept.size < max) break;
    kept.delete(oldest);
  }
  kept.set(name, value);
  return value;
}

function sinceOf({ startsAtMs }: Pick<ReadOverride, "startsAtMs">): Pick<PolicyRevision, "sinceMs"> {
  return startsAtMs === undefined ? {} : { sinceMs: startsAtMs };
}

function withEach(policy: Policy, fieldsOf: (each: Policy) => Partial<Policy>): Policy {
  const { candidate } = policy;
  return withAll(policy, {
    ...fieldsOf(policy),
    ...(candidate && { candidate: { ...candidate, policy: withEach(candidate.policy, fieldsOf) } }),
  });
}

/* Overrides: other limits for some keys of a policy, parsed and merged into the policy's table. */

const OVERRIDE_ALLOWED =
  'figures of the policy, as { "limit": 1000 }, or one of { "multiply": 10 }, { "blocked": true } and { "unlimited": true }, each with startsAt, expiresAt and note if wanted';

const OF_OVERRIDE = { what: "an override", ownFields: Object.keys(OVERRIDE_FIELDS) };
const OWN_NAMES = Object.keys(OVERRIDE_FIELDS);
const OVERRIDE_SCHEMA = v.object(OVERRIDE_FIELDS);
const EFFECTS = ["multiply", "blocked", "unlimited"] as const;
interface ReadOverride {
  readonly effect?: "blocked" | "unlimited";
  readonly startsAtMs?: number;
  readonly endsAtMs?: number;
  /** The policy's table with the override. Unchanged for `blocked`: a limit of 0 would forget what was consumed. */
  readonly fields: Table;
  readonly policy?: Policy;
}

/** Parses an override of a policy with this table. */
export function readOverride(name: string, base: Table, given: unknown): ReadOverride | Problems {
  if (!isTable(given)) return problem([], violation([], given, OVERRIDE_ALLOWED));
  const entries = Object.entries(given);
  const own: Table = Object.fromEntries(entries.filter(([field]) => OWN_NAMES.includes(field)));
  const changes: Table = Object.fromEntries(entries.filter(([field]) => !OWN_NAMES.includes(field)));
  const parsed = v.safeParse(OVERRIDE_SCHEMA, own);
  if (!parsed.success) return { problems: violationsOf(parsed.issues) };
  const { multiply, blocked, unlimited, startsAt, expiresAt } = parsed.output;
  const effects: string[] = EFFECTS.filter((field) => own[field] !== undefined);
  const changed = Object.keys(changes);
  if (effects.length + Math.min(changed.length, 1) !== 1) {
    const kinds = [...effects, ...(changed.length > 0 ? [clip(changed.join(", "))] : [])];
    // An unknown field next to `blocked`, for example, may be a misspelled `expiresAt`.
    const near = changed.map((field) => meant(field, OWN_NAMES)).find(Boolean) ?? "";
    const found = kinds.length === 0 ? "nothing" : kinds.join(" and ") + near;
    return problem([], `the override says ${found}: must be ${OVERRIDE_ALLOWED}`);
  }
  const times = {
    ...(startsAt !== undefined && { startsAtMs: parseInstantMs(startsAt) ?? Number.NaN }),
    ...(expiresAt !== undefined && { endsAtMs: parseInstantMs(expiresAt) ?? Number.NaN }),
  };
  if (Number(times.startsAtMs) >= Number(times.endsAtMs))
    return problem(["startsAt"], violation(["startsAt"], startsAt, "before expiresAt"));
  if (blocked === true) return { effect: "blocked", ...times, fields: base };
  if (unlimited === true) return { effect: "unlimited", ...times, fields: largest(name, base) };
  const merged =
    multiply === undefined ? withFigures(base, changes, OF_OVERRIDE) : { fields: multiplied(base, multiply) };
  if ("problems" in merged) return merged;
  // An override comes before a plan, and a plan that has the same figures is as the policy.
  const fields =
    multiply === undefined ? { ...merged.fields, ...plansWithout(base, changes) } : merged.fields;
  const policy = parsePolicy(name, fields);
  return "problems" in policy ? policy : { ...times, fields, policy };
}

/** What is wrong with a policy that is written. */
export function problemsOf(name: string, fields: Table): readonly Violation[] {
  const policy = parsePolicy(name, fields);
  return "problems" in policy ? policy.problems : writtenProblems(policy, fields);
}

/** The table with the largest limits that its algorithms can count, of each rule by itself. */
function largest(name: string, base: Table): Table {
  const rules = isTable(base["rules"]) ? Object.keys(base["rules"]) : [undefined];
  return rules.reduce((fields, rule) => {
    let counted = fields;
    let [fits, tooMany] = [0, MAX_UNITS + 1];
    for (let units = MAX_UNITS; units > fits; units = Math.floor((fits + tooMany) / 2)) {
      const table = raised(fields, rule, units);
      if ("problems" in parsePolicy(name, table)) tooMany = units;
      else [fits, counted] = [units, table];
    }
    return counted;
  }, base);
}
