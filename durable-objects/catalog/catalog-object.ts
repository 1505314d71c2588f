import { DurableObject } from "cloudflare:workers";
import type {
  AuditEntry,
  CandidateInCatalog,
  CatalogChanges,
  CatalogDocument,
  CatalogMethods,
  OverrideChange,
  OverrideInCatalog,
  Page,
  PolicyChange,
  PolicyInCatalog,
  Refusal,
  TokenChange,
  TokenInCatalog,
  Versioned,
  WriteCall,
} from "../../core/catalog/calls.ts";
import type { Table } from "../../core/catalog/overrides.ts";
import { readClockMs } from "../../core/clock.ts";
import { deployed } from "../deployment.ts";
import { Candidates, type StoredCandidate } from "./candidates.ts";
import {
  AuditLog,
  CatalogStore,
  CatalogTables,
  type StoredOverride,
  type StoredPolicy,
} from "./catalog-store.ts";
import { CatalogWrites } from "./catalog-writes.ts";
import type { Deployed } from "./checked-writes.ts";

/** An alarm is never later than this: the runtime takes none after 2189, and an override may end in 9999. */
const MAX_ALARM_MS = 365 * 24 * 3_600_000;

/** The object that has what was changed at run time: policies, overrides and tokens. There is one. */
export class CatalogObject extends DurableObject implements CatalogMethods {
  readonly #catalog: Catalog;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    this.#catalog = new Catalog(ctx.storage, deployed, readClockMs);
  }

  async changes(since: number): ReturnType<CatalogMethods["changes"]> {
    return this.#catalog.changes(since);
  }

  async write(call: WriteCall): ReturnType<CatalogMethods["write"]> {
    const written = this.#catalog.write(call);
    await this.#setAlarm();
    return written;
  }

  async policy(name: string): ReturnType<CatalogMethods["policy"]> {
    return this.#catalog.policy(name);
  }

  async candidate(policy: string): ReturnType<CatalogMethods["candidate"]> {
    return this.#catalog.candidate(policy);
  }

  async override(policy: string, pattern: string): ReturnType<CatalogMethods["override"]> {
    return this.#catalog.override(policy, pattern);
  }

  async overrides(policy: string, after?: string): ReturnType<CatalogMethods["overrides"]> {
    return this.#catalog.overrides(policy, after);
  }

  async tokens(): ReturnType<CatalogMethods["tokens"]> {
    return this.#catalog.tokens();
  }

  async document(): ReturnType<CatalogMethods["document"]> {
    return this.#catalog.document();
  }

  async audit(before?: number): ReturnType<CatalogMethods["audit"]> {
    return this.#catalog.audit(before);
  }

  /** Overrides that have ended are taken away. */
  override async alarm(): Promise<void> {
    this.#catalog.endOverrides();
    await this.#setAlarm();
  }

  async #setAlarm(): Promise<void> {
    const nextMs = this.#catalog.nextEndMs;
    if (nextMs === undefined) return;
    await this.ctx.storage.setAlarm(Math.min(nextMs, readClockMs() + MAX_ALARM_MS));
  }
}

/** Items on a page of a list. */
const PAGE = 100;

/** The catalog: what was changed at run time, beside what the deployment's file says. All methods are synchronous. */
class Catalog {
  readonly #store: CatalogStore;
  readonly #audit: AuditLog;
  readonly #writes: CatalogWrites;
  readonly #candidates: Candidates;
  readonly #deployed: Deployed;

  constructor(storage: DurableObjectStorage, deployment: Deployed, nowMs: () => number) {
    const tables = new CatalogTables(storage);
    this.#store = new CatalogStore(tables);
    this.#audit = new AuditLog(tables);
    const parts = { store: this.#store, audit: this.#audit, deployed: deployment, nowMs };
    this.#candidates = new Candidates(tables, parts);
    this.#writes = new CatalogWrites(tables, parts, this.#candidates);
    this.#deployed = deployment;
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

/** All that has changed after a revision: each thing as it is now. */
function changesAfter(store: CatalogStore, candidates: Candidates, since: number): CatalogChanges {
  const { revision, firstRevision } = store;
  const isKnown = since > 0 && since <= revision && since >= firstRevision - 1;
  if (!isKnown) return { ...whole(store, candidates), revision, isWhole: true };
  const changed = store.changedAfter(since);
  const ofKind = (kind: string) => changed.filter((each) => each.kind === kind);
  const names = new Set(changed.flatMap(({ kind, name }) => (kind === "token" ? [] : [name])));
  return {
    revision,
    isWhole: false,
    policies: [...names]
      .flatMap((name) => store.policy(name) ?? [])
      .map((each) => policyChangeOf(each, candidates.of(each.name))),
    overrides: ofKind("override").map(({ name, pattern }) =>
      overrideChangeOf(name, pattern, store.override(name, pattern)?.fields),
    ),
    tokens: ofKind("token").map(({ name }) => tokenChangeOf(name, store.token(name))),
  };
}

function whole(
  store: CatalogStore,
  candidates: Candidates,
): Pick<CatalogChanges, "policies" | "overrides" | "tokens"> {
  const tried = new Map(candidates.all().map((each) => [each.policy, each]));
  return {
    policies: store.policies().map((each) => policyChangeOf(each, tried.get(each.name))),
    overrides: store
      .allOverrides()
      .map(({ policy, pattern, fields }) => overrideChangeOf(policy, pattern, fields)),
    tokens: store.tokens().map(({ name, entry }) => tokenChangeOf(name, entry)),
  };
}

function policyChangeOf({ name, version, fields }: StoredPolicy, tried?: StoredCandidate): PolicyChange {
  const candidate = tried && { version: tried.version, fields: tried.fields };
  return { name, version, ...(fields && { fields }), ...(candidate && { candidate }) };
}

function overrideChangeOf(policy: string, pattern: string, fields: Table | undefined): OverrideChange {
  return { policy, pattern, ...(fields && { fields }) };
}

function tokenChangeOf(name: string, entry: Table | undefined): TokenChange {
  return { name, ...(entry && { entry }) };
}
