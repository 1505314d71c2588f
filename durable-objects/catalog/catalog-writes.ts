import type { CatalogDocument, Refusal, Write, WriteCall } from "../../core/catalog/calls.ts";
import type { Table } from "../../core/catalog/overrides.ts";
import { WILDCARD } from "../../core/catalog/patterns.ts";
import type { Candidates } from "./candidates.ts";
import type { CatalogStore, CatalogTables } from "./catalog-store.ts";
import { isRefusal } from "./checked-writes.ts";
import { SingleWrites, type WriteResult, type WritesParts } from "./single-writes.ts";

/** Ends a transaction that is not to be: what it wrote is gone. */
class EndedImport extends Error {
  readonly answer: WriteResult | Refusal;

  constructor(answer: WriteResult | Refusal) {
    super("the transaction ends");
    this.answer = answer;
  }
}

/** Writes to the catalog: checks, then changes all of it or nothing, with a line in the audit log for each change. */
export class CatalogWrites {
  readonly #tables: CatalogTables;
  readonly #store: CatalogStore;
  readonly #single: SingleWrites;
  readonly #candidates: Candidates;
  readonly #nowMs: () => number;

  constructor(tables: CatalogTables, parts: WritesParts, candidates: Candidates) {
    this.#tables = tables;
    this.#store = parts.store;
    this.#single = new SingleWrites(parts);
    this.#candidates = candidates;
    this.#nowMs = parts.nowMs;
  }

  /** The pattern as it is stored; `undefined`: it is none of this policy. */
  patternOf(policy: string, given: string): string | undefined {
    return this.#single.patternOf(policy, given);
  }

  /** Makes a write, if its conditions hold and what it says is allowed. */
  write({ write, by, keyPrefix, ifMatch, ifNoneMatch, isDryRun }: WriteCall): WriteResult | Refusal {
    const { version, isThere } = this.#stateOf(write);
    const isMatch =
      ifMatch === undefined || ifMatch.includes(String(version)) || (isThere && ifMatch.includes("*"));
    if (!isMatch)
      return changed(
        `its entity tag is "${version}", and not ${ifMatch.map((tag) => `"${tag}"`).join(" or ")}`,
      );
    if (ifNoneMatch === true && isThere)
      return changed(`it is there already, with the entity tag "${version}"`);
    try {
      return this.#tables.atomically(() => {
        const answer = this.#make(write, by, keyPrefix);
        if (isRefusal(answer) || isDryRun === true) throw new EndedImport(answer);
        return answer;
      });
    } catch (error) {
      if (error instanceof EndedImport) return error.answer;
      throw error;
    }
  }

  /** Takes away the overrides that have ended. */
  endOverrides(): void {
    const nowMs = this.#nowMs();
    const ended = this.#store.endedOverrides(nowMs);
    if (ended.length === 0) return;
    this.#tables.atomically(() => {
      for (const { policy, pattern, fields } of ended)
        this.#single.putOverride("its expiresAt", policy, pattern, undefined, fields);
    });
  }

  /** What conditions are about: whether a read answers with something, and which entity tag that has. */
  #stateOf(write: Write): { readonly version: number; readonly isThere: boolean } {
    if (write.kind === "catalog") return { version: this.#store.revision, isThere: true };
    if (write.kind !== "policy") {
      const version = this.#versionOf(write);
      return { version, isThere: version > 0 };
    }
    // What the file says is there with the version 0, and a version is kept of what is gone.
    const isThere = this.#single.baseOf(write.name) !== undefined;
    return { version: isThere ? (this.#store.policy(write.name)?.ownVersion ?? 0) : 0, isThere };
  }

  /** The version of what is nowhere but in the catalog; 0: there is nothing. */
  #versionOf(write: Exclude<Write, { readonly kind: "catalog" | "policy" }>): number {
    if (write.kind === "token") return this.#store.token(write.name) === undefined ? 0 : 1;
    if (write.kind !== "override") return this.#candidates.of(write.policy)?.version ?? 0;
    const pattern = this.#single.patternOf(write.policy, write.pattern);
    return pattern === undefined ? 0 : (this.#store.override(write.policy, pattern)?.version ?? 0);
  }

  #make(write: Write, by: string, keyPrefix: string | undefined): WriteResult | Refusal {
    const [single, candidates] = [this.#single, this.#candidates];
    switch (write.kind) {
      case "policy":
        return this.#writePolicy(by, write.name, write.fields ?? undefined);
      case "override":
        return this.#writeOneOverride(by, write.policy, write.pattern, write.fields ?? undefined, keyPrefix);
      case "token":
        return single.writeToken(by, write.name, write.entry ?? undefined);
      case "candidate":
        return candidates.write(by, write.policy, write.fields ?? undefined, single);
      case "promotion":
        return candidates.promote(by, write.policy, single);
      case "catalog":
        return this.#import(by, write.document);
      default:
        return write satisfies never;
    }
  }

  /** A policy that is gone takes its candidate with it, and one that stays has to fit it. */
  #writePolicy(by: string, name: string, fields: Table | undefined): WriteResult | Refusal {
    const after = fields ?? this.#single.fileOf(name);
    const isTried = this.#candidates.of(name) !== undefined;
    if (isTried && after === undefined) this.#candidates.write(by, name, undefined, this.#single);
    const written = this.#single.writePolicy(by, name, fields);
    return isRefusal(written) ? written : (this.#candidates.misfitOf(name, after) ?? written);
  }

  #writeOneOverride(
    by: string,
    policy: string,
    pattern: string,
    fields: Table | undefined,
    keyPrefix: string | undefined,
  ): WriteResult | Refusal {
    const isNew = this.#store.override(policy, this.patternOf(policy, pattern) ?? "") === undefined;
    const write = () => this.#writeOverride(by, policy, pattern, fields);
    const written =
      isNew && keyPrefix !== undefined ? this.#single.writePart(policy, keyPrefix, write) : write();
    if (isRefusal(written) || !isNew || !pattern.includes(WILDCARD)) return written;
    return this.#single.crowdedBy(policy) ?? written;
  }

  /** An override has to fit what is tried beside its policy, too. */
  #writeOverride(
    by: string,
    policy: string,
    pattern: string,
    fields: Table | undefined,
  ): WriteResult | Refusal {
    const written = this.#single.writeOverride(by, policy, pattern, fields);
    if (isRefusal(written) || fields === undefined) return written;
    return this.#candidates.overrideMisfitOf(policy, pattern, fields) ?? written;
  }

  /** Makes the catalog what a document says: what is not in it is taken away. It ends with the first refusal. */
  #import(by: string, document: CatalogDocument): WriteResult | Refusal {
    for (const answer of this.#importing(by, document)) if (isRefusal(answer)) return answer;
    return { version: this.#store.revision, value: null };
  }

  *#importing(
    by: string,
    { policies, overrides, tokens, candidates = {} }: CatalogDocument,
  ): Generator<WriteResult | Refusal> {
    const gone = this.#store
      .policies()
      .filter(({ name, fields }) => fields !== undefined && !Object.hasOwn(policies, name));
    const others = this.#store
      .allOverrides()
      .filter(({ policy, pattern }) => !isIn(overrides, policy, pattern));
    const revoked = this.#store.tokens().filter(({ name }) => !Object.hasOwn(tokens, name));
    // One that changes is taken away first: it need not fit what its policy becomes.
    for (const { policy, fields } of this.#candidates.all())
      if (!Object.hasOwn(candidates, policy) || JSON.stringify(candidates[policy]) !== JSON.stringify(fields))
        yield this.#candidates.write(by, policy, undefined, this.#single);
    for (const { policy, pattern } of others)
      yield this.#single.writeOverride(by, policy, pattern, undefined);
    for (const { name } of gone) yield placed(["policies", name], this.#writePolicy(by, name, undefined));
    for (const { name } of revoked) yield this.#single.writeToken(by, name, undefined);
    for (const [name, fields] of Object.entries(policies))
      yield placed(["policies", name], this.#writePolicy(by, name, fields));
    for (const [policy, its] of Object.entries(overrides))
      for (const [pattern, fields] of Object.entries(its))
        yield placed(["overrides", policy, pattern], this.#writeOverride(by, policy, pattern, fields));
    for (const policy of Object.keys(overrides)) {
      const crowded = this.#single.crowdedBy(policy);
      if (crowded !== undefined) yield placed(["overrides", policy], crowded);
    }
    for (const [policy, fields] of Object.entries(candidates))
      yield placed(["candidates", policy], this.#candidates.write(by, policy, fields, this.#single));
    for (const [name, entry] of Object.entries(tokens))
      yield placed(["tokens", name], this.#single.writeToken(by, name, entry));
  }
}

/** A refusal that says where in a document it is. */
function placed(place: readonly string[], answer: WriteResult | Refusal): WriteResult | Refusal {
  if (!isRefusal(answer)) return answer;
  const where = place.join(".");
  const { violations = [{ path: [], detail: answer.detail }] } = answer;
  return {
    ...answer,
    detail: `${where}: ${answer.detail}`,
    violations: violations.map(({ path, detail }) => ({
      path: [...place, ...path],
      detail: `${where}: ${detail}`,
    })),
  };
}

function isIn(overrides: CatalogDocument["overrides"], policy: string, pattern: string): boolean {
  return Object.hasOwn(overrides, policy) && Object.hasOwn(overrides[policy] ?? {}, pattern);
}

const changed = (detail: string): Refusal => ({ refused: "changed", detail });
