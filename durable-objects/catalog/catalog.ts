import type {
  AuditEntry,
  CandidateInCatalog,
  CatalogDocument,
  OverrideInCatalog,
  Page,
  PolicyInCatalog,
  Refusal,
  TokenInCatalog,
  Versioned,
  WriteCall,
} from "../../core/catalog/calls.ts";
import type { CatalogChanges } from "../../core/catalog/changes.ts";
import { AuditLog } from "./audit-log.ts";
import { Candidates } from "./candidates.ts";
import { CatalogStore, type StoredOverride } from "./catalog-store.ts";
import { CatalogTables } from "./catalog-tables.ts";
import { CatalogWrites } from "./catalog-writes.ts";
import { changesAfter } from "./changes.ts";
import type { Deployed } from "./checked-writes.ts";

/** Items on a page of a list. */
const PAGE = 100;

/** The catalog: what was changed at run time, beside what the deployment's file says. All methods are synchronous. */
export class Catalog {
  readonly #store: CatalogStore;
  readonly #audit: AuditLog;
  readonly #writes: CatalogWrites;
  readonly #candidates: Candidates;
  readonly #deployed: Deployed;

  constructor(storage: DurableObjectStorage, deployed: Deployed, nowMs: () => number) {
    const tables = new CatalogTables(storage);
    this.#store = new CatalogStore(tables);
    this.#audit = new AuditLog(tables);
    const parts = { store: this.#store, audit: this.#audit, deployed, nowMs };
    this.#candidates = new Candidates(tables, parts);
    this.#writes = new CatalogWrites(tables, parts, this.#candidates);
    this.#deployed = deployed;
  }

  /** When the next override ends by itself; `undefined`: none does. */
  get nextEndMs(): number | undefined {
    return this.#store.nextEndMs;
  }

  changes(since: number): CatalogChanges {
    return changesAfter(this.#store, this.#candidates, since);
  }

  write(call: WriteCall): Versioned<unknown> | Refusal {
    return this.#writes.write(call);
  }

  /** Takes away the overrides that have ended. */
  endOverrides(): void {
    this.#writes.endOverrides();
  }

  policy(name: string): Versioned<PolicyInCatalog> | Refusal {
    const stored = this.#store.policy(name);
    const fields = stored?.fields ?? this.#deployed.tables.get(name);
    if (fields === undefined)
      return { refused: "missing", detail: `there is no policy ${JSON.stringify(name)}` };
    const source = stored?.fields === undefined ? "file" : "catalog";
    const overrides = this.#store.countOverrides(name);
    return { version: stored?.ownVersion ?? 0, value: { name, source, fields, overrides } };
  }

  candidate(policy: string): Versioned<CandidateInCatalog> | Refusal {
    const stored = this.#candidates.of(policy);
    if (stored === undefined) {
      const known = this.policy(policy);
      const detail = `the policy ${JSON.stringify(policy)} has no candidate`;
      return "refused" in known ? known : { refused: "missing", detail };
    }
    const { version, fields, sinceMs } = stored;
    return { version, value: { policy, fields, sinceMs } };
  }

  override(policy: string, given: string): Versioned<OverrideInCatalog> | Refusal {
    const pattern = this.#writes.patternOf(policy, given);
    const stored = pattern === undefined ? undefined : this.#store.override(policy, pattern);
    if (stored !== undefined) return inCatalog(stored);
    return {
      refused: "missing",
      detail: `the policy ${JSON.stringify(policy)} has no override ${JSON.stringify(given)}`,
    };
  }

  /** A page of a policy's overrides, in the order of their patterns, after one. */
  overrides(policy: string, after = ""): Page<Versioned<OverrideInCatalog>> | Refusal {
    const known = this.policy(policy);
    if ("refused" in known) return known;
    const found = this.#store.overridesAfter(policy, after, PAGE + 1);
    const items = found.slice(0, PAGE).map(inCatalog);
    const next = found.length > PAGE ? items.at(-1)?.value.pattern : undefined;
    return { items, ...(next !== undefined && { next }) };
  }

  tokens(): readonly TokenInCatalog[] {
    return this.#store.tokens().map(({ name, entry }) => {
      const { sha256: _, ...others } = entry;
      return { name, entry: others };
    });
  }

  document(): Versioned<CatalogDocument> {
    const policies = this.#store
      .policies()
      .flatMap(({ name, fields }) => (fields === undefined ? [] : [[name, fields]]));
    // A policy may be called "constructor", and a pattern "__proto__": a plain object has those already.
    const overrides = new Map<string, [pattern: string, fields: StoredOverride["fields"]][]>();
    for (const { policy, pattern, fields } of this.#store.allOverrides()) {
      const its = overrides.get(policy) ?? [];
      its.push([pattern, fields]);
      overrides.set(policy, its);
    }
    const tokens = this.#store.tokens().map(({ name, entry }) => [name, entry]);
    const candidates = this.#candidates.all().map(({ policy, fields }) => [policy, fields]);
    const value = {
      policies: Object.fromEntries(policies) as CatalogDocument["policies"],
      overrides: Object.fromEntries([...overrides].map(([policy, its]) => [policy, Object.fromEntries(its)])),
      tokens: Object.fromEntries(tokens) as CatalogDocument["tokens"],
      ...(candidates.length > 0 && {
        candidates: Object.fromEntries(candidates) as CatalogDocument["tokens"],
      }),
    };
    return { version: this.#store.revision, value };
  }

  /** A page of the audit log, the latest entry first. */
  audit(before = Number.MAX_SAFE_INTEGER): Page<AuditEntry> {
    const found = this.#audit.before(before, PAGE + 1);
    const items = found.slice(0, PAGE);
    const next = found.length > PAGE ? items.at(-1)?.id : undefined;
    return { items, ...(next !== undefined && { next: String(next) }) };
  }
}

function inCatalog({ policy, pattern, version, fields }: StoredOverride): Versioned<OverrideInCatalog> {
  return { version, value: { policy, pattern, fields } };
}
