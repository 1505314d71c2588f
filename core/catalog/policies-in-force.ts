/** The policies of a deployment, with what the catalog changes. One isolate has one, and its calls look here. */
import type { AppliedOverride, InForce } from "../policies/in-force.ts";
import { parsePolicy } from "../policies/parse-policies.ts";
import type { Policies, Policy } from "../policies/policy.ts";
import { RegionalPolicies } from "../policies/regional-policies.ts";
import type { Regions } from "../policies/regions.ts";
import type { CatalogChanges, OverrideChange, PolicyChange } from "./changes.ts";
import { OverrideIndex } from "./override-index.ts";
import { readOverride, type OverrideFields, type Table } from "./overrides.ts";
import { parsePattern } from "./patterns.ts";

/** So many overridden policies are kept, and so many that were read. */
const MOST_KEPT = 4_096;
const MOST_READ = 1_024;

/** What a deployment's file says. */
export interface Deployed {
  readonly policies: Policies;
  /** By the policy's name: its table. */
  readonly tables: ReadonlyMap<string, Table>;
  readonly regions: Regions;
}

/** An override that is to be read. */
interface Overriding {
  readonly pattern: string;
  readonly fields: OverrideFields;
}

/** A policy as an override makes it, but for the pattern. */
interface Overridden extends Pick<Policy, "terms"> {
  readonly policy: Policy;
  readonly inForce: InForce;
  readonly override: Omit<AppliedOverride, "pattern">;
}

/** A policy with its overrides, as the catalog has told them. */
class Entry {
  readonly name: string;
  readonly #index = new OverrideIndex<OverrideChange & { readonly fields: OverrideFields }>();
  /** By the pattern. */
  readonly #kept = new Map<string, Policy>();
  /** By what the override says: patterns that say the same, as those of one plan do, are read once. */
  readonly #read = new Map<string, Overridden>();
  #policy: Policy | undefined;
  #table: Table | undefined;
  #inForce: InForce = { version: 0 };

  constructor(name: string) {
    this.name = name;
  }

  /** What is in force for keys without an override; `undefined`: there is no such policy. */
  get policy(): Policy | undefined {
    return this.#policy;
  }

  /** Takes over a version. */
  change({ version, fields }: PolicyChange, deployed: Deployed): void {
    this.#kept.clear();
    this.#read.clear();
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
    this.#kept.delete(change.pattern);
    const { fields } = change;
    if (fields === undefined) this.#index.delete(meant);
    else this.#index.set(meant, { ...change, fields });
  }

  /** All that has changed was taken over: the policy is put together, once for however many overrides. */
  join(): void {
    if (this.#policy !== undefined) this.#policy = this.#withOverrides(this.#policy);
  }

  #withOverrides(given: Policy): Policy {
    const { overrides: _, ...policy } = given;
    const inForce = policy.pool === undefined ? { inForce: this.#inForce } : {};
    const overrides = { find: (key: string) => this.#find(key) };
    return withAll(policy, { ...inForce, ...(this.#index.size > 0 && { overrides }) });
  }

  #find(key: string): Policy | undefined {
    const found = this.#index.find(key);
    if (found === undefined) return undefined;
    const known = this.#kept.get(found.pattern);
    if (known !== undefined) return known;
    const read = this.#readOverride(found);
    if (read === undefined) return undefined;
    const { pattern } = found;
    const { policy, ...more } = read;
    const overridden = withAll(policy, { ...more, override: { ...more.override, pattern } });
    keep(this.#kept, pattern, overridden, MOST_KEPT);
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
    const { effect, endsAtMs, policy: parsed = this.#parse(read.fields) } = read;
    if (parsed === undefined) return undefined;
    const overridden: Overridden = {
      policy: parsed,
      inForce: { version: this.#inForce.version, fields: JSON.stringify(read.fields) },
      override: { ...(effect && { effect }), ...(endsAtMs !== undefined && { endsAtMs }) },
      // Terms go with messages that have calls of other keys too, and are compared with what those are decided by.
      ...(policy.terms !== undefined && { terms: policy.terms }),
    };
    keep(this.#read, said, overridden, MOST_READ);
    return overridden;
  }

  #parse(fields: Table): Policy | undefined {
    const parsed = parsePolicy(this.name, fields);
    if (!("problems" in parsed)) return parsed;
    // Another version of the deployment may know what this one cannot read.
    console.warn(
      `policy ${this.name}: the catalog has what this version cannot read: ${parsed.problems.join("; ")}`,
    );
    return undefined;
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

/** The policy with these fields, also as calls of each priority see it. */
function withAll(policy: Policy, more: Partial<Policy>): Policy {
  const { priorities } = policy;
  const seen = new Map([...priorities.seen].map(([name, each]) => [name, { ...each, ...more }]));
  return { ...policy, ...more, priorities: { ...priorities, seen } };
}

/** What is in force. It begins as the deployment's file, and changes as the catalog tells. */
export class PoliciesInForce extends RegionalPolicies {
  readonly #deployed: Deployed;
  readonly #named: Map<string, Policy>;
  readonly #entries = new Map<string, Entry>();
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

  #entryOf(name: string): Entry {
    const entry = this.#entries.get(name) ?? new Entry(name);
    this.#entries.set(name, entry);
    return entry;
  }
}
