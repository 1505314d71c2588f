import { parsePolicy } from "../policies/parse-policy.ts";
/** A policy in force, as the catalog has told it: its own figures, its overrides and its candidate. */
import {
  type AppliedOverride,
  type Candidate,
  candidateName,
  type Policies,
  type Policy,
  type PolicyRevision,
} from "../policies/policy.ts";
import { RegionalPolicies, type Regions, withoutJurisdiction } from "../policies/regional-policies.ts";
import type { CatalogChanges, OverrideChange, PolicyChange } from "./calls.ts";
import { ExpiringOverrides, type Overriding } from "./override-index.ts";
import { readOverride, type Table } from "./overrides.ts";
import { parsePattern } from "./patterns.ts";

/** So many overridden policies are kept, and so many that were read. */
const MAX_KEPT = 4_096;
const MAX_READ = 1_024;

/** What a deployment's file says. */
interface Deployed {
  readonly policies: Policies;
  /** By the policy's name: its table. */
  readonly tables: ReadonlyMap<string, Table>;
  readonly regions: Regions;
  /** Where plain workerd runs the worker. */
  readonly areJurisdictionsIgnored?: boolean | undefined;
}

/** A policy as an override makes it, but for the pattern. */
interface Overridden extends Pick<Policy, "terms" | "candidate"> {
  readonly policy: Policy;
  readonly inForce: PolicyRevision;
  readonly override: Omit<AppliedOverride, "pattern">;
}

/** A policy with its overrides, as the catalog has told them. */
class PolicyEntry {
  readonly name: string;
  readonly #isNowhere: boolean;
  readonly #overrides = new ExpiringOverrides();
  /** By the pattern. */
  readonly #kept = new Map<string, Policy>();
  /** Of keys of which an override has ended: by that instant, and the pattern of the one that applies since, if any. */
  readonly #since = new Map<string, Policy>();
  /** By what the override says: patterns that say the same, as those of one plan do, are read once. */
  readonly #read = new Map<string, Overridden>();
  #policy: Policy | undefined;
  #table: Table | undefined;
  #inForce: PolicyRevision = { version: 0 };
  #tried: PolicyChange["candidate"];

  /** @param isNowhere where plain workerd runs the worker, which has no jurisdictions */
  constructor(name: string, isNowhere: boolean) {
    this.name = name;
    this.#isNowhere = isNowhere;
  }

  /** What is in force for keys without an override; `undefined`: there is no such policy. */
  get policy(): Policy | undefined {
    return this.#policy;
  }

  /** Takes over a version. */
  change({ version, fields, candidate }: PolicyChange, deployed: Deployed): void {
    this.#kept.clear();
    this.#since.clear();
    this.#read.clear();
    this.#tried = candidate;
    this.#inForce = { version, ...(fields && { fields: JSON.stringify(fields) }) };
    this.#table = fields ?? deployed.tables.get(this.name);
    this.#policy = fields === undefined ? deployed.policies.get(this.name) : this.#parse(fields);
  }

  /** Takes over an override. Its pattern was read by whoever wrote it; one that means nothing to this version is left. */
  override(change: OverrideChange): void {
    const pattern = parsePattern({ keyKind: "text" }, change.pattern);
    const ofKind = this.#policy && parsePattern(this.#policy, change.pattern);
    const meant = ofKind ?? (this.#policy === undefined ? pattern : undefined);
    if (meant === undefined) return;
    const { pattern: text, fields } = change;
    this.#kept.delete(text);
    this.#since.clear();
    if (fields === undefined) this.#overrides.delete(meant);
    else this.#overrides.set(meant, { pattern: text, fields });
  }

  /** All that has changed was taken over: the policy is put together, once for however many overrides. */
  join(): void {
    if (this.#policy !== undefined) this.#policy = this.#withOverrides(this.#policy);
  }

  #withOverrides(given: Policy): Policy {
    const { overrides: _, candidate: __, ...policy } = given;
    const inForce = policy.pool === undefined ? { inForce: this.#inForce } : {};
    const overrides = { find: (key: string, nowMs: number) => this.#find(key, nowMs) };
    const candidate = this.#candidateOf((table) => table);
    return withAll(policy, {
      ...inForce,
      ...(this.#overrides.size > 0 && { overrides }),
      ...(candidate && { candidate }),
    });
  }

  #find(key: string, nowMs: number): Policy | undefined {
    const found = this.#overrides.find(key, nowMs);
    if (found === undefined) return undefined;
    const { override, sinceMs } = found;
    if (sinceMs === undefined) return override && this.#overridden(override);
    const name = `${sinceMs}/${override?.pattern ?? ""}`;
    const known = this.#since.get(name);
    if (known !== undefined) return known;
    const named = (override && this.#overridden(override)) ?? this.#policy;
    if (named === undefined) return undefined;
    const after = since(named, sinceMs);
    keep(this.#since, name, after, MAX_KEPT);
    return after;
  }

  #overridden(found: Overriding): Policy | undefined {
    const known = this.#kept.get(found.pattern);
    if (known !== undefined) return known;
    const read = this.#readOverride(found);
    if (read === undefined) return undefined;
    const { pattern } = found;
    const { policy, candidate, ...more } = read;
    const override = { ...more.override, pattern };
    const overridden = withAll(policy, {
      ...more,
      override,
      ...(candidate && { candidate: { ...candidate, policy: withAll(candidate.policy, { override }) } }),
    });
    keep(this.#kept, pattern, overridden, MAX_KEPT);
    return overridden;
  }

  #readOverride({ pattern, fields }: Overriding): Overridden | undefined {
    const { name } = this;
    const policy = this.#policy;
    if (policy === undefined || this.#table === undefined) return undefined;
    const said = JSON.stringify(fields);
    const known = this.#read.get(said);
    if (known !== undefined) return known;
    const read = readOverride(name, this.#table, fields);
    if ("problems" in read) {
      const details = read.problems.map(({ detail }) => detail).join("; ");
      console.warn(
        `policy ${name}: the override ${JSON.stringify(pattern)} does not fit it any more: ${details}`,
      );
      return undefined;
    }
    const { effect, endsAtMs } = read;
    const parsed = read.policy === undefined ? this.#parse(read.fields) : this.#placed(read.policy);
    if (parsed === undefined) return undefined;
    // Under an override that does not fit the candidate, it decides nothing.
    const candidate = this.#candidateOf((table) => {
      const tried = readOverride(name, table, fields);
      return "problems" in tried ? undefined : tried.fields;
    });
    const terms = policy.candidate?.policy.terms;
    const overridden: Overridden = {
      policy: parsed,
      inForce: { version: this.#inForce.version, fields: JSON.stringify(read.fields) },
      override: { ...(effect && { effect }), ...(endsAtMs !== undefined && { endsAtMs }) },
      // Terms go with messages that have calls of other keys too, and are compared with what those are decided by.
      ...(policy.terms !== undefined && { terms: policy.terms }),
      ...(candidate && {
        candidate: { ...candidate, policy: withAll(candidate.policy, terms === undefined ? {} : { terms }) },
      }),
    };
    keep(this.#read, said, overridden, MAX_READ);
    return overridden;
  }

  /** The candidate, with what an override makes of its table. */
  #candidateOf(overridden: (table: Table) => Table | undefined): Candidate | undefined {
    if (this.#tried === undefined) return undefined;
    // Its keys have never been anywhere else.
    const { objectsBefore: _, ...table } = this.#tried.fields;
    const fields = overridden(table);
    const policy = fields && this.#parse(fields, candidateName(this.name));
    if (policy === undefined) return undefined;
    const { version } = this.#tried;
    const inForce = { ...this.#inForce, fields: JSON.stringify(fields), candidate: version };
    return { policy: withAll(policy, { inForce }), version };
  }

  #parse(fields: Table, name = this.name): Policy | undefined {
    const parsed = parsePolicy(name, fields);
    if (!("problems" in parsed)) return this.#placed(parsed);
    // Another version of the deployment may know what this one cannot read.
    console.warn(
      `policy ${name}: the catalog has what this version cannot read: ${parsed.problems.join("; ")}`,
    );
    return undefined;
  }

  #placed(policy: Policy): Policy {
    return this.#isNowhere ? withoutJurisdiction(policy) : policy;
  }
}

/** Keeps a value, and lets the oldest go when there are too many. */
function keep<Value>(kept: Map<string, Value>, name: string, value: Value, most: number): void {
  for (const oldest of kept.keys()) {
    if (kept.size < most) break;
    kept.delete(oldest);
  }
  kept.set(name, value);
}

/* The policies of a deployment, with what the catalog changes. One isolate has one, and its calls look here. */

/** What is in force. It begins as the deployment's file, and changes as the catalog tells. */
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
  }

  /** The catalog's revision up to which all changes are known; 0: none. */
  get revision(): number {
    return this.#revision;
  }

  /** Takes over what has changed. Changes that are older than what is known change nothing. */
  apply({ revision, isWhole, policies, overrides }: CatalogChanges): void {
    if (revision <= this.#revision && !isWhole) return;
    this.#revision = revision;
    if (isWhole) this.#clear();
    for (const change of policies) this.#entryOf(change.name).change(change, this.#deployed);
    for (const change of overrides) this.#entryOf(change.policy).override(change);
    const changed = new Set([...policies.map(({ name }) => name), ...overrides.map(({ policy }) => policy)]);
    for (const name of changed) {
      const entry = this.#entryOf(name);
      entry.join();
      const { policy } = entry;
      if (policy === undefined) this.#named.delete(name);
      else this.#named.set(name, policy);
    }
  }

  #clear(): void {
    this.#entries.clear();
    this.#named.clear();
    for (const [name, policy] of this.#deployed.policies) this.#named.set(name, policy);
  }

  #entryOf(name: string): PolicyEntry {
    const isNowhere = this.#deployed.areJurisdictionsIgnored === true;
    const entry = this.#entries.get(name) ?? new PolicyEntry(name, isNowhere);
    this.#entries.set(name, entry);
    return entry;
  }
}

/* Copies of policies with other fields. */

/** The policy with these fields, also as calls of each priority see it. */
function withAll(policy: Policy, more: Partial<Policy>): Policy {
  const { priorities } = policy;
  const seen = new Map([...priorities.seen].map(([name, each]) => [name, { ...each, ...more }]));
  return { ...policy, ...more, priorities: { ...priorities, seen } };
}

/** The policy, and its candidate, of keys of which an override ended at this instant. */
function since(policy: Policy, sinceMs: number): Policy {
  const { inForce, candidate } = policy;
  return withAll(policy, {
    ...(inForce && { inForce: { ...inForce, sinceMs } }),
    ...(candidate && { candidate: { ...candidate, policy: since(candidate.policy, sinceMs) } }),
  });
}
