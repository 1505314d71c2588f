/** The policies of a deployment, with what the catalog changes. One isolate has one, and its calls look here. */
import type { Policy } from "../policies/policy.ts";
import { RegionalPolicies } from "../policies/regional-policies.ts";
import type { CatalogChanges } from "./changes.ts";
import { PolicyEntry, type Deployed } from "./policy-entry.ts";

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
