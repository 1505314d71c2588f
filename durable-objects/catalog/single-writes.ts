import {
  MAX_OVERRIDES,
  MAX_POLICIES,
  MAX_TOKENS,
  type Refusal,
  type Versioned,
} from "../../core/catalog/calls.ts";
import {
  MAX_BEGINNING_LENGTHS,
  MAX_END_LENGTHS,
  MAX_MULTI_WILDCARD,
} from "../../core/catalog/override-index.ts";
import type { Table } from "../../core/catalog/overrides.ts";
import type { AuditLog, CatalogStore } from "./catalog-store.ts";
import {
  checkedOverride,
  checkedPolicy,
  checkedToken,
  isRefusal,
  type Base,
  type Deployed,
} from "./checked-writes.ts";

/** What a write answers. */
export type WriteResult = Versioned<unknown>;

/** What writes are made with. */
export interface WritesParts {
  readonly store: CatalogStore;
  readonly audit: AuditLog;
  readonly deployed: Deployed;
  readonly nowMs: () => number;
}

/** What callers with and without a prefix share. */
const SHARED_BOUNDS = [
  ["overrides", MAX_OVERRIDES, "overrides"],
  ["manifold", MAX_MULTI_WILDCARD, "patterns with more than one *"],
  ["beginnings", MAX_BEGINNING_LENGTHS, "lengths before the first *"],
  ["ends", MAX_END_LENGTHS, "lengths after the last *"],
] as const;

/** Writes one thing: a policy, an override or a token. A refusal may come after some rows were written: it ends the transaction. */
export class SingleWrites {
  readonly #store: CatalogStore;
  readonly #audit: AuditLog;
  readonly #deployed: Deployed;
  readonly #nowMs: () => number;

  constructor({ store, audit, deployed, nowMs }: WritesParts) {
    this.#store = store;
    this.#audit = audit;
    this.#deployed = deployed;
    this.#nowMs = nowMs;
  }

  /** The pattern as it is stored; `undefined`: it is none of this policy. */
  patternOf(policy: string, given: string): string | undefined {
    const base = this.baseOf(policy);
    const checked = base && checkedOverride(policy, base, given, { blocked: true });
    return checked === undefined || isRefusal(checked) ? undefined : checked.pattern;
  }

  /** `fields` is undefined where it is taken away, here and below. */
  writePolicy(by: string, name: string, fields: Table | undefined): WriteResult | Refusal {
    const before = this.#store.policy(name);
    const base = { fields: this.#deployed.tables.get(name), last: before?.fields ?? before?.last };
    if (fields === undefined && before?.fields === undefined)
      return base.fields === undefined
        ? missing(`there is no policy ${JSON.stringify(name)}`)
        : { version: before?.ownVersion ?? 0, value: null };
    if (fields !== undefined) {
      const refused = checkedPolicy(name, base, fields);
      if (refused !== undefined) return refused;
      if (isSame(fields, before?.fields)) return { version: before?.ownVersion ?? 0, value: fields };
      if (before?.fields === undefined && this.#store.count("policies") >= MAX_POLICIES)
        return full(`the catalog has ${MAX_POLICIES} policies, which are all that it may have`);
    }
    const after = fields ?? base.fields;
    const misfit = after && this.misfitOf(name, after);
    if (misfit !== undefined) return misfit;
    // Nothing is left of which a key could have other figures.
    if (after === undefined)
      for (const each of this.#store.overridesAfter(name, "", MAX_OVERRIDES))
        this.putOverride(by, name, each.pattern, undefined, each.fields);
    const version = this.#store.writePolicy(name, fields);
    this.#audit.add(this.#nowMs(), by, `policy ${name}`, before?.fields, fields);
    return { version, value: fields ?? null };
  }

  /** The refusal of a policy under which one of its overrides would mean nothing any more. */
  misfitOf(name: string, fields: Table): Refusal | undefined {
    for (const { pattern, fields: override } of this.#store.overridesAfter(name, "", MAX_OVERRIDES)) {
      const checked = checkedOverride(name, { fields }, pattern, override);
      if (isRefusal(checked))
        return {
          refused: "not-allowed",
          detail: `the override ${JSON.stringify(pattern)} of the policy would not fit it any more: ${checked.detail}`,
        };
    }
    return undefined;
  }

  writeOverride(by: string, policy: string, given: string, fields: Table | undefined): WriteResult | Refusal {
    const base = this.baseOf(policy);
    if (base === undefined) return missing(`there is no policy ${JSON.stringify(policy)}`);
    const checked = checkedOverride(policy, base, given, fields ?? { blocked: true }, this.#nowMs());
    if (isRefusal(checked)) return checked;
    const { pattern, endsAtMs } = checked;
    const before = this.#store.override(policy, pattern);
    if (fields === undefined && before === undefined)
      return missing(`there is no override ${JSON.stringify(pattern)}`);
    if (isSame(fields, before?.fields))
      return { version: before?.version ?? 0, value: { policy, pattern, fields } };
    if (before === undefined && this.#store.count("overrides") >= MAX_OVERRIDES)
      return full(`the catalog has ${MAX_OVERRIDES} overrides, which are all that it may have`);
    if (
      before === undefined &&
      checked.isManifold &&
      this.#store.overrideCounts(policy).manifold >= MAX_MULTI_WILDCARD
    )
      return full(
        `the policy has ${MAX_MULTI_WILDCARD} patterns with more than one *, which are all that it may have`,
      );
    const version = this.putOverride(by, policy, pattern, fields, before?.fields, endsAtMs);
    return { version, value: { policy, pattern, fields: fields ?? null } };
  }

  /** The refusal of patterns that have too many lengths, each of which costs every call of the policy a look. */
  crowdedBy(policy: string): Refusal | undefined {
    const { beginnings, ends } = this.#store.overrideCounts(policy);
    const [where, most] =
      beginnings > MAX_BEGINNING_LENGTHS
        ? ["before their first", MAX_BEGINNING_LENGTHS]
        : ["after their last", ends > MAX_END_LENGTHS ? MAX_END_LENGTHS : Infinity];
    if (most === Infinity) return undefined;
    return full(
      `the policy's patterns have texts of ${most} lengths ${where} *, which are all that they may have`,
    );
  }

  /**
   * Writes an override for somebody who may use some keys only, and refuses it when more of a bound would be taken by
   * patterns of those keys than is left for others.
   */
  writePart(policy: string, keyPrefix: string, write: () => WriteResult | Refusal): WriteResult | Refusal {
    const before = this.#store.overrideCounts(policy, keyPrefix);
    const written = write();
    const own = this.#store.overrideCounts(policy, keyPrefix);
    const all = this.#store.overrideCounts(policy);
    for (const [what, most, words] of SHARED_BOUNDS)
      if (own[what] > before[what] && own[what] + all[what] > most + 1 && !isRefusal(written))
        return full(
          `keys that begin with ${JSON.stringify(keyPrefix)} have as much as is left for others of the ${most} ${words} that there may be: a token with this prefix adds no more`,
        );
    return written;
  }

  putOverride(
    by: string,
    policy: string,
    pattern: string,
    fields: Table | undefined,
    before: Table | undefined,
    endsAtMs?: number,
  ): number {
    const version = this.#store.writeOverride(policy, pattern, fields, endsAtMs);
    this.#audit.add(this.#nowMs(), by, `override ${policy} ${pattern}`, before, fields);
    return version;
  }

  writeToken(by: string, name: string, entry: Table | undefined): WriteResult | Refusal {
    const before = this.#store.token(name);
    if (entry === undefined && before === undefined)
      return missing(`there is no token ${JSON.stringify(name)}`);
    if (before === undefined && this.#store.count("tokens") >= MAX_TOKENS)
      return full(`the catalog has ${MAX_TOKENS} tokens, which are all that it may have`);
    if (isSame(entry, before)) return { version: 1, value: entry };
    const isThere = (policy: string) => this.baseOf(policy) !== undefined;
    const refused = entry && checkedToken(entry, isThere, () => this.#names());
    if (refused !== undefined) return refused;
    const version = this.#store.writeToken(name, entry);
    this.#audit.add(this.#nowMs(), by, `token ${name}`, withoutHash(before), withoutHash(entry));
    return { version, value: null };
  }

  /** What the deployment's file says of a policy, which is left of it when the catalog's is taken away. */
  fileOf(name: string): Table | undefined {
    return this.#deployed.tables.get(name);
  }

  /** The names of all policies that there are. */
  #names(): string[] {
    const written = this.#store.policies().filter(({ fields }) => fields !== undefined);
    return [...this.#deployed.tables.keys(), ...written.map(({ name }) => name)];
  }

  /** What overrides of a policy are put into; `undefined`: there is no such policy. */
  baseOf(name: string): Base | undefined {
    const fields = this.#store.policy(name)?.fields ?? this.#deployed.tables.get(name);
    return fields && { fields };
  }
}

/** The audit log says who may what, and not by which secret. */
function withoutHash(entry: Table | undefined): Table | undefined {
  if (entry === undefined) return undefined;
  const { sha256: _, ...others } = entry;
  return others;
}

function isSame(one: Table | undefined, other: Table | undefined): boolean {
  return one !== undefined && other !== undefined && JSON.stringify(one) === JSON.stringify(other);
}

const missing = (detail: string): Refusal => ({ refused: "missing", detail });
const full = (detail: string): Refusal => ({ refused: "full", detail });
