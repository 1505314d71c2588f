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

/** An alarm is never later than this: the runtime takes none after 2189, and an override may end in 9999. */
const MAX_ALARM_MS = 365 * 24 * 3_600_000;

/** Items on a page of a list. */
const PAGE = 100;

/** The object that has what was changed at run time, beside what the deployment's file says. There is one. */
export class CatalogObject extends DurableObject implements CatalogMethods {
  readonly #store: CatalogStore;
  readonly #audit: AuditLog;
  readonly #writes: CatalogWrites;
  readonly #candidates: Candidates;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    const tables = new CatalogTables(ctx.storage);
    this.#store = new CatalogStore(tables);
    this.#audit = new AuditLog(tables);
    const parts = { store: this.#store, audit: this.#audit, deployed, nowMs: readClockMs };
    this.#candidates = new Candidates(tables, parts);
    this.#writes = new CatalogWrites(tables, parts, this.#candidates);
  }

  async changes(since: number): Promise<CatalogChanges> {
    return changesAfter(this.#store, this.#candidates, since);
  }

  async write(call: WriteCall): Promise<Versioned<unknown> | Refusal> {
    const written = this.#writes.write(call);
    await this.#setAlarm();
    return written;
  }

  async policy(name: string): Promise<Versioned<PolicyInCatalog> | Refusal> {
    return this.#policy(name);
  }

  async candidate(policy: string): Promise<Versioned<CandidateInCatalog> | Refusal> {
    const stored = this.#candidates.of(policy);
    if (stored === undefined) {
      const known = this.#policy(policy);
      const detail = `the policy ${JSON.stringify(policy)} has no candidate`;
      return "refused" in known ? known : { refused: "missing", detail };
    }
    const { version, fields, sinceMs } = stored;
    return { version, value: { policy, fields, sinceMs } };
  }

  async override(policy: string, given: string): Promise<Versioned<OverrideInCatalog> | Refusal> {
    const pattern = this.#writes.patternOf(policy, given);
    const stored = pattern === undefined ? undefined : this.#store.override(policy, pattern);
    if (stored !== undefined) return inCatalog(stored);
    return {
      refused: "missing",
      detail: `the policy ${JSON.stringify(policy)} has no override ${JSON.stringify(given)}`,
    };
  }

  /** A page of a policy's overrides, in the order of their patterns, after one. */
  async overrides(policy: string, after = ""): Promise<Page<Versioned<OverrideInCatalog>> | Refusal> {
    const known = this.#policy(policy);
    if ("refused" in known) return known;
    const found = this.#store.overridesAfter(policy, after, PAGE + 1);
    const items = found.slice(0, PAGE).map(inCatalog);
    const next = found.length > PAGE ? items.at(-1)?.value.pattern : undefined;
    return { items, ...(next !== undefined && { next }) };
  }

  async tokens(): Promise<readonly TokenInCatalog[]> {
    return this.#store.tokens().map(({ name, entry }) => {
      const { sha256: _, ...others } = entry;
      return { name, entry: others };
    });
  }

  async document(): Promise<Versioned<CatalogDocument>> {
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
  async audit(before = Number.MAX_SAFE_INTEGER): Promise<Page<AuditEntry>> {
    const found = this.#audit.before(before, PAGE + 1);
    const items = found.slice(0, PAGE);
    const next = found.length > PAGE ? items.at(-1)?.id : undefined;
    return { items, ...(next !== undefined && { next: String(next) }) };
  }

  /** Overrides that have ended are taken away. */
  override async alarm(): Promise<void> {
    this.#writes.endOverrides();
    await this.#setAlarm();
  }

  async #setAlarm(): Promise<void> {
    const nextMs = this.#store.nextEndMs;
    if (nextMs === undefined) return;
    await this.ctx.storage.setAlarm(Math.min(nextMs, readClockMs() + MAX_ALARM_MS));
  }

  #policy(name: string): Versioned<PolicyInCatalog> | Refusal {
    const stored = this.#store.policy(name);
    const fields = stored?.fields ?? deployed.tables.get(name);
    if (fields === undefined)
      return { refused: "missing", detail: `there is no policy ${JSON.stringify(name)}` };
    const source = stored?.fields === undefined ? "file" : "catalog";
    const overrides = this.#store.countOverrides(name);
    return { version: stored?.ownVersion ?? 0, value: { name, source, fields, overrides } };
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
