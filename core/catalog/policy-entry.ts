/** A policy in force, as the catalog has told it: its own figures, its overrides and its candidate. */
import type { AppliedOverride, InForce } from "../policies/in-force.ts";
import { parsePolicy } from "../policies/parse-policies.ts";
import { candidateName } from "../policies/policy-names.ts";
import type { Candidate, Policies, Policy } from "../policies/policy.ts";
import { withoutJurisdiction } from "../policies/regional-policies.ts";
import type { Regions } from "../policies/regions.ts";
import type { OverrideChange, PolicyChange } from "./changes.ts";
import { OverrideIndex } from "./override-index.ts";
import { readOverride, type OverrideFields, type Table } from "./overrides.ts";
import { parsePattern } from "./patterns.ts";

/** So many overridden policies are kept as they were read. Each takes some 2 KiB, and is read again in 0.1 ms. */
const MOST_READ = 4_096;

/** What a deployment's file says. */
export interface Deployed {
  readonly policies: Policies;
  /** By the policy's name: its table. */
  readonly tables: ReadonlyMap<string, Table>;
  readonly regions: Regions;
  /** Where plain workerd runs the worker. */
  readonly areJurisdictionsIgnored?: boolean | undefined;
}

/** A policy with its overrides, as the catalog has told them. */
export class PolicyEntry {
  readonly name: string;
  readonly #isNowhere: boolean;
  readonly #index = new OverrideIndex<OverrideChange & { readonly fields: OverrideFields }>();
  readonly #read = new Map<string, Policy>();
  #policy: Policy | undefined;
  #table: Table | undefined;
  #inForce: InForce = { version: 0 };
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
    this.#read.delete(change.pattern);
    const { fields } = change;
    if (fields === undefined) this.#index.delete(meant);
    else this.#index.set(meant, { ...change, fields });
  }

  /** All that has changed was taken over: the policy is put together, once for however many overrides. */
  join(): void {
    if (this.#policy !== undefined) this.#policy = this.#withOverrides(this.#policy);
  }

  #withOverrides(given: Policy): Policy {
    const { overrides: _, candidate: __, ...policy } = given;
    const inForce = policy.pool === undefined ? { inForce: this.#inForce } : {};
    const overrides = { find: (key: string) => this.#find(key) };
    const candidate = this.#candidateOf((table) => table);
    return withAll(policy, {
      ...inForce,
      ...(this.#index.size > 0 && { overrides }),
      ...(candidate && { candidate }),
    });
  }

  #find(key: string): Policy | undefined {
    const found = this.#index.find(key);
    if (found === undefined) return undefined;
    const known = this.#read.get(found.pattern);
    if (known !== undefined) return known;
    const policy = this.#apply(found);
    if (policy === undefined) return undefined;
    for (const oldest of this.#read.keys()) {
      if (this.#read.size < MOST_READ) break;
      this.#read.delete(oldest);
    }
    this.#read.set(found.pattern, policy);
    return policy;
  }

  #apply({
    pattern,
    fields,
  }: {
    readonly pattern: string;
    readonly fields: OverrideFields;
  }): Policy | undefined {
    const policy = this.#policy;
    if (policy === undefined || this.#table === undefined) return undefined;
    const read = readOverride(this.name, this.#table, fields);
    if ("problems" in read) {
      const details = read.problems.map(({ detail }) => detail).join("; ");
      console.warn(
        `policy ${this.name}: the override ${JSON.stringify(pattern)} does not fit it any more: ${details}`,
      );
      return undefined;
    }
    const { effect, endsAtMs } = read;
    const override = { pattern, ...(effect && { effect }), ...(endsAtMs !== undefined && { endsAtMs }) };
    const parsed = this.#parse(read.fields);
    const inForce = { version: this.#inForce.version, fields: JSON.stringify(read.fields) };
    // Under an override that does not fit the candidate, it decides nothing.
    const candidate = this.#candidateOf((table) => {
      const tried = readOverride(this.name, table, fields);
      return "problems" in tried ? undefined : tried.fields;
    }, override);
    return parsed && withAll(parsed, { inForce, override, ...(candidate && { candidate }) });
  }

  /** The candidate, with what an override makes of its table. */
  #candidateOf(
    overridden: (table: Table) => Table | undefined,
    override?: AppliedOverride,
  ): Candidate | undefined {
    if (this.#tried === undefined) return undefined;
    // Its keys have never been anywhere else.
    const { objectsBefore: _, ...table } = this.#tried.fields;
    const fields = overridden(table);
    const policy = fields && this.#parse(fields, candidateName(this.name));
    if (policy === undefined) return undefined;
    const inForce = { version: this.#inForce.version, fields: JSON.stringify(fields) };
    return {
      policy: withAll(policy, { inForce, ...(override && { override }) }),
      version: this.#tried.version,
    };
  }

  #parse(fields: Table, name = this.name): Policy | undefined {
    const parsed = parsePolicy(name, fields);
    if (!("problems" in parsed)) return this.#isNowhere ? withoutJurisdiction(parsed) : parsed;
    // Another version of the deployment may know what this one cannot read.
    console.warn(
      `policy ${name}: the catalog has what this version cannot read: ${parsed.problems.join("; ")}`,
    );
    return undefined;
  }
}

/** The policy with these fields, also as calls of each priority see it. */
function withAll(policy: Policy, more: Partial<Policy>): Policy {
  const { priorities } = policy;
  const seen = new Map([...priorities.seen].map(([name, each]) => [name, { ...each, ...more }]));
  return { ...policy, ...more, priorities: { ...priorities, seen } };
}
