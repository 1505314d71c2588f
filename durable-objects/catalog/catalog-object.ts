import { DurableObject } from "cloudflare:workers";
import {
  type AuditEntry,
  type CandidateInCatalog,
  type CatalogChanges,
  type CatalogDocument,
  type CatalogMethods,
  MAX_OVERRIDES,
  MAX_POLICIES,
  MAX_TOKENS,
  type OverrideChange,
  type OverrideInCatalog,
  type Page,
  type PolicyInCatalog,
  type Refusal,
  type Table,
  type TokenInCatalog,
  type Versioned,
  type CatalogChange,
  type WantedPage,
  type WriteCall,
} from "../../core/catalog/calls.ts";
import { MAX_MULTI_WILDCARD, WILDCARD } from "../../core/catalog/patterns.ts";
import { readClockMs } from "../../core/clock.ts";
import { describe } from "../../core/violations.ts";
import { deployed } from "../deployment.ts";
import { CatalogStore } from "./catalog-store.ts";
import {
  allUsed,
  candidateMisfit,
  changed,
  checkOverride,
  isRefusal,
  lengthsRefusal,
  missing,
  noCandidate,
  noOverride,
  noPolicy,
  policyNames,
  overrideMisfit,
  placed,
  plansRemoved,
  policyRefusal,
  shareRefusal,
  sizeRefusal,
  tokenRefusal,
  type WriteResult,
} from "./checks.ts";
import { type EntryWriter, MAX_CHANGES_AT_ONCE, Snapshots } from "./snapshots.ts";

type OverrideWrite = Extract<CatalogChange, { kind: "override" }>;

/** The runtime takes no alarm after 2189, and an override may end in 9999. */
const MAX_ALARM_MS = 365 * 24 * 3_600_000;

/** Items on a page of a list. */
const PAGE = 100;

/**
 * The one object with the run-time changes to the deployment's file. A write is made fully or not at all, with
 * an audit entry per change. Some checks follow written rows: a refusal ends the transaction.
 */
export class CatalogObject extends DurableObject implements CatalogMethods {
  readonly #store: CatalogStore;
  readonly #snapshots: Snapshots;

  constructor(ctx: DurableObjectState, env: Cloudflare.Env) {
    super(ctx, env);
    this.#store = new CatalogStore(ctx.storage);
    const { SNAPSHOTS: entries } = env as { readonly SNAPSHOTS?: EntryWriter };
    this.#snapshots = new Snapshots(this.#store, entries, (work) => ctx.waitUntil(work));
  }

  async changes(since: number, wanted?: WantedPage): Promise<CatalogChanges> {
    if (wanted === undefined) return this.#store.changes(since) ?? this.#store.everything();
    return this.#store.changes(since, MAX_CHANGES_AT_ONCE) ?? this.#snapshots.read(wanted);
  }

  async write({ write, by, keyPrefix, ifMatch, ifNoneMatch, isDryRun }: WriteCall): Promise<WriteResult> {
    const { version, isThere } = this.#stateOf(write);
    const isMatch =
      ifMatch === undefined || ifMatch.includes(String(version)) || (isThere && ifMatch.includes("*"));
    const refusal = !isMatch
      ? changed(`its entity tag is "${version}", and not ${ifMatch.map((tag) => `"${tag}"`).join(" or ")}`)
      : ifNoneMatch === true && isThere
        ? changed(`it is there already, with the entity tag "${version}"`)
        : undefined;
    const isKept = (result: WriteResult) => !isRefusal(result) && isDryRun !== true;
    const answer = refusal ?? this.#store.atomically(() => this.#writeLimited(write, by, keyPrefix), isKept);
    await this.#setAlarm();
    return answer;
  }

  async policy(name: string, isHinted = false): Promise<Versioned<PolicyInCatalog> | Refusal> {
    const stored = this.#store.policy(name);
    const fields = this.#tableOf(name);
    if (fields === undefined) return noPolicy(name, isHinted ? policyNames(this.#store) : []);
    const source = stored?.fields === undefined ? "file" : "catalog";
    const overrides = this.#store.countOverrides(name);
    return { version: stored?.ownVersion ?? 0, value: { name, source, fields, overrides } };
  }

  async candidate(policy: string): Promise<Versioned<CandidateInCatalog> | Refusal> {
    const refusal = this.#tableOf(policy) === undefined ? noPolicy(policy) : noCandidate(policy);
    return this.#store.candidate(policy) ?? refusal;
  }

  async override(policy: string, pattern: string): Promise<Versioned<OverrideInCatalog> | Refusal> {
    return this.#storedOverride(policy, pattern) ?? noOverride(policy, pattern);
  }

  /** A page of a policy's overrides in the order of patterns, after one. */
  async overrides(policy: string, after = ""): Promise<Page<Versioned<OverrideInCatalog>> | Refusal> {
    if (this.#tableOf(policy) === undefined) return noPolicy(policy);
    return pageOf(this.#store.overridesAfter(policy, after, PAGE + 1), ({ value }) => value.pattern);
  }

  async tokens(): Promise<readonly TokenInCatalog[]> {
    return this.#store.tokens().map(({ name, entry }) => ({ name, entry: withoutHash(entry) }));
  }

  async document(): Promise<Versioned<CatalogDocument>> {
    return { version: this.#store.revision, value: this.#store.document() };
  }

  /** A page of the audit log, latest first. */
  async audit(before = Number.MAX_SAFE_INTEGER): Promise<Page<AuditEntry>> {
    return pageOf(this.#store.auditBefore(before, PAGE + 1), ({ id }) => String(id));
  }

  /** Deletes the overrides that have ended. */
  override async alarm(): Promise<void> {
    const ended = this.#store.endedOverrides(readClockMs());
    if (ended.length > 0)
      this.#store.atomically(() => {
        for (const { value } of ended)
          this.#putOverride("its expiresAt", { policy: value.policy, pattern: value.pattern }, value.fields);
      });
    await this.#setAlarm();
  }

  async #setAlarm(): Promise<void> {
    const nextMs = this.#store.nextEndMs;
    if (nextMs === undefined) return;
    await this.ctx.storage.setAlarm(Math.min(nextMs, readClockMs() + MAX_ALARM_MS));
  }

  /** The table of a policy in force; `undefined`: there is no such policy. */
  #tableOf(name: string): Table | undefined {
    return this.#store.policy(name)?.fields ?? deployed.tables.get(name);
  }

  /** The override of a pattern in any form. */
  #storedOverride(policy: string, pattern: string): Versioned<OverrideInCatalog> | undefined {
    const base = this.#tableOf(policy);
    const checked = base && checkOverride(policy, base, pattern, { blocked: true });
    if (checked === undefined || isRefusal(checked)) return undefined;
    return this.#store.override(policy, checked.pattern);
  }

  /** For conditions: whether a read finds a value, and its entity tag. */
  #stateOf(write: CatalogChange): { readonly version: number; readonly isThere: boolean } {
    const versionOf = () => {
      if (write.kind === "catalog") return this.#store.revision;
      if (write.kind === "token") return this.#store.token(write.name) && 1;
      if (write.kind === "override") return this.#storedOverride(write.policy, write.pattern)?.version;
      if (write.kind !== "policy") return this.#store.candidate(write.policy)?.version;
      // The file's policy has the version 0, and a deleted policy keeps its version.
      const isThere = this.#tableOf(write.name) !== undefined;
      return isThere ? (this.#store.policy(write.name)?.ownVersion ?? 0) : undefined;
    };
    const version = versionOf();
    return { version: version ?? 0, isThere: version !== undefined };
  }

  #writeLimited(write: CatalogChange, by: string, keyPrefix: string | undefined): WriteResult {
    const written = this.#write(write, by, keyPrefix);
    return isRefusal(written) || isDeletion(write) ? written : (sizeRefusal(this.#store.bytes) ?? written);
  }

  #write(write: CatalogChange, by: string, keyPrefix: string | undefined): WriteResult {
    switch (write.kind) {
      case "policy":
        return this.#writePolicy(by, write.name, write.fields ?? undefined);
      case "override":
        return this.#writeLimitedOverride(by, write, keyPrefix);
      case "token":
        return this.#writeToken(by, write.name, write.entry ?? undefined);
      case "candidate":
        return this.#writeCandidate(by, write.policy, write.fields ?? undefined);
      case "promotion":
        return this.#promote(by, write.policy);
      case "catalog":
        return this.#import(by, write.document);
      default:
        return write satisfies never;
    }
  }

  /** Writes a policy. In this and the other writes, `fields` that are `undefined` delete. */
  #writePolicy(by: string, name: string, fields: Table | undefined): WriteResult {
    const store = this.#store;
    const file = deployed.tables.get(name);
    const after = fields ?? file;
    // A deleted policy takes its candidate with it; otherwise the candidate has to fit it.
    if (after === undefined && store.candidate(name) !== undefined) this.#writeCandidate(by, name, undefined);
    const before = store.policy(name);
    const misfit = candidateMisfit(name, after, before?.candidate?.fields);
    if (fields === undefined && before?.fields === undefined)
      return file === undefined
        ? noPolicy(name)
        : (misfit ?? { version: before?.ownVersion ?? 0, value: null });
    if (fields !== undefined) {
      const refusal = policyRefusal(name, fields, file, before?.fields ?? before?.last);
      if (refusal !== undefined) return refusal;
      if (isSame(fields, before?.fields)) return { version: before?.ownVersion ?? 0, value: fields };
      if (before?.fields === undefined && store.count("policies") >= MAX_POLICIES)
        return allUsed(`the catalog has ${MAX_POLICIES} policies`);
    }
    const refusal = (after && this.#overridesMisfit(name, after)) ?? misfit;
    if (refusal !== undefined) return refusal;
    // Without the policy there is nothing to override.
    if (after === undefined)
      for (const { value } of store.overridesAfter(name, "", MAX_OVERRIDES))
        this.#putOverride(by, { policy: name, pattern: value.pattern }, value.fields);
    const version = store.writePolicy(name, fields);
    this.#addToAudit(by, `policy ${name}`, before?.fields, fields);
    return { version, value: fields ?? null, ...plansRemoved(before?.fields ?? file, after) };
  }

  /** The refusal of a table under which one of the policy's overrides has no effect. */
  #overridesMisfit(name: string, fields: Table): Refusal | undefined {
    for (const { value } of this.#store.overridesAfter(name, "", MAX_OVERRIDES)) {
      const checked = checkOverride(name, fields, value.pattern, value.fields);
      if (isRefusal(checked))
        return {
          refused: "not-allowed",
          detail: `the override ${describe(value.pattern)} of the policy would not fit it any more: ${checked.detail}`,
        };
    }
    return undefined;
  }

  /** Writes one override. A new one may exceed the bound on lengths, or a prefix's share. */
  #writeLimitedOverride(by: string, override: OverrideWrite, keyPrefix?: string): WriteResult {
    const { policy, pattern, fields } = override;
    const counts = (prefix?: string) => this.#store.overrideCounts(policy, prefix);
    const isNew = this.#storedOverride(policy, pattern) === undefined;
    const before = isNew && keyPrefix !== undefined ? counts(keyPrefix) : undefined;
    const written = this.#writeOverride(by, policy, pattern, fields ?? undefined);
    if (isRefusal(written) || !isNew) return written;
    const refusal = before && keyPrefix && shareRefusal(keyPrefix, before, counts(keyPrefix), counts());
    if (refusal) return refusal;
    return (pattern.includes(WILDCARD) ? lengthsRefusal(counts()) : undefined) ?? written;
  }

  #writeOverride(by: string, policy: string, given: string, fields: Table | undefined): WriteResult {
    const store = this.#store;
    const base = this.#tableOf(policy);
    if (base === undefined) return noPolicy(policy);
    const checked = checkOverride(policy, base, given, fields ?? { blocked: true }, readClockMs());
    if (isRefusal(checked)) return checked;
    const { pattern, isMultiWildcard, endsAtMs } = checked;
    const before = store.override(policy, pattern);
    if (fields === undefined && before === undefined)
      return missing(`there is no override ${describe(pattern)}`);
    if (before !== undefined && isSame(fields, before.value.fields)) return before;
    if (before === undefined && store.count("overrides") >= MAX_OVERRIDES)
      return allUsed(`the catalog has ${MAX_OVERRIDES} overrides`);
    const { multiWildcards } =
      before === undefined && isMultiWildcard ? store.overrideCounts(policy) : { multiWildcards: 0 };
    if (multiWildcards >= MAX_MULTI_WILDCARD)
      return allUsed(`the policy has ${MAX_MULTI_WILDCARD} patterns with more than one *`);
    const candidate = store.candidate(policy)?.value.fields;
    const misfit = fields && overrideMisfit(policy, pattern, fields, candidate);
    if (misfit !== undefined) return misfit;
    const override = { policy, pattern, ...(fields && { fields }) };
    const version = this.#putOverride(by, override, before?.value.fields, endsAtMs);
    return { version, value: { policy, pattern, fields: fields ?? null } };
  }

  #putOverride(by: string, override: OverrideChange, before?: Table, endsAtMs?: number): number {
    const { policy, pattern, fields } = override;
    const version = this.#store.writeOverride(policy, pattern, fields, endsAtMs);
    this.#addToAudit(by, `override ${policy} ${pattern}`, before, fields);
    return version;
  }

  #writeCandidate(by: string, policy: string, fields: Table | undefined): WriteResult {
    const before = this.#store.candidate(policy);
    const base = this.#tableOf(policy);
    if (base === undefined) return noPolicy(policy);
    if (fields === undefined && before === undefined) return noCandidate(policy);
    if (fields !== undefined) {
      const refusal =
        policyRefusal(policy, fields, deployed.tables.get(policy), base) ??
        candidateMisfit(policy, base, fields) ??
        this.#overridesMisfit(policy, fields);
      if (refusal !== undefined) return refusal;
      if (before !== undefined && isSame(fields, before.value.fields)) return before;
    }
    const sinceMs = readClockMs();
    const version = this.#store.writeCandidate(policy, fields, sinceMs);
    this.#addToAudit(by, `candidate ${policy}`, before?.value.fields, fields);
    return { version, value: { policy, fields: fields ?? null, sinceMs } };
  }

  /** Makes the candidate the policy. */
  #promote(by: string, policy: string): WriteResult {
    const candidate = this.#store.candidate(policy);
    if (candidate === undefined) return noCandidate(policy);
    const ended = this.#writeCandidate(by, policy, undefined);
    return isRefusal(ended) ? ended : this.#writePolicy(by, policy, candidate.value.fields);
  }

  #writeToken(by: string, name: string, entry: Table | undefined): WriteResult {
    const store = this.#store;
    const before = store.token(name);
    if (entry === undefined && before === undefined) return missing(`there is no token ${describe(name)}`);
    if (before === undefined && store.count("tokens") >= MAX_TOKENS)
      return allUsed(`the catalog has ${MAX_TOKENS} tokens`);
    if (isSame(entry, before)) return { version: 1, value: entry };
    const isThere = (policy: string) => this.#tableOf(policy) !== undefined;
    const refusal = entry && tokenRefusal(entry, isThere, () => policyNames(this.#store));
    if (refusal !== undefined) return refusal;
    const version = store.writeToken(name, entry);
    this.#addToAudit(by, `token ${name}`, before && withoutHash(before), entry && withoutHash(entry));
    return { version, value: null };
  }

  /** Replaces the catalog by a document, up to the first refusal. */
  #import(by: string, document: CatalogDocument): WriteResult {
    for (const answer of this.#importSteps(by, document)) if (isRefusal(answer)) return answer;
    return { version: this.#store.revision, value: null };
  }

  *#importSteps(by: string, { policies, overrides, tokens, candidates = {} }: CatalogDocument) {
    const store = this.#store;
    const gone = store.policies().filter(({ name, fields }) => fields && !Object.hasOwn(policies, name));
    const overridesGone = store
      .allOverrides()
      .map(({ value }) => value)
      .filter(({ policy, pattern }) => !Object.hasOwn(ownOf(overrides, policy) ?? {}, pattern));
    const revoked = store.tokens().filter(({ name }) => !Object.hasOwn(tokens, name));
    // A changing candidate is deleted first: it need not fit the new policy.
    for (const { value } of store.candidates())
      if (!isSame(ownOf(candidates, value.policy), value.fields))
        yield this.#writeCandidate(by, value.policy, undefined);
    for (const { policy, pattern } of overridesGone)
      yield this.#writeOverride(by, policy, pattern, undefined);
    for (const { name } of gone) yield placed(["policies", name], this.#writePolicy(by, name, undefined));
    for (const { name } of revoked) yield this.#writeToken(by, name, undefined);
    for (const [name, fields] of Object.entries(policies))
      yield placed(["policies", name], this.#writePolicy(by, name, fields));
    for (const [policy, its] of Object.entries(overrides))
      for (const [pattern, fields] of Object.entries(its))
        yield placed(["overrides", policy, pattern], this.#writeOverride(by, policy, pattern, fields));
    for (const policy of Object.keys(overrides)) {
      const refusal = lengthsRefusal(store.overrideCounts(policy));
      if (refusal !== undefined) yield placed(["overrides", policy], refusal);
    }
    for (const [policy, fields] of Object.entries(candidates))
      yield placed(["candidates", policy], this.#writeCandidate(by, policy, fields));
    for (const [name, entry] of Object.entries(tokens))
      yield placed(["tokens", name], this.#writeToken(by, name, entry));
  }

  #addToAudit(by: string, target: string, before: Table | undefined, after: Table | undefined): void {
    this.#store.addToAudit(readClockMs(), by, target, before, after);
  }
}

/** A page of the items found, one more than fit if there is a next page. */
function pageOf<Item>(found: readonly Item[], cursorOf: (item: Item) => string): Page<Item> {
  const items = found.slice(0, PAGE);
  const last = found.length > PAGE ? items.at(-1) : undefined;
  return { items, ...(last !== undefined && { next: cursorOf(last) }) };
}

/** Makes room, so it is never refused for want of room. */
function isDeletion(write: CatalogChange): boolean {
  return ("fields" in write && write.fields === null) || (write.kind === "token" && write.entry === null);
}

/** The audit log has each token's rights, but not its hash. */
function withoutHash(entry: Table): Table {
  const { sha256: _, ...others } = entry;
  return others;
}

function isSame(one: Table | undefined, other: Table | undefined): boolean {
  return one !== undefined && other !== undefined && JSON.stringify(one) === JSON.stringify(other);
}

function ownOf<Value>(table: Readonly<Record<string, Value>>, name: string): Value | undefined {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}
