import type { Refusal, Versioned } from "../../core/catalog/calls.ts";
import type { Table } from "../../core/catalog/overrides.ts";
import { parsePolicy } from "../../core/policies/parse-policies.ts";
import { type CatalogTables, type Row, textIn } from "./catalog-store.ts";
import { checkedOverride, checkedPolicy, isRefusal, notAllowed } from "./checked-writes.ts";
import type { SingleWrites, WritesParts } from "./single-writes.ts";

/** What is stored of a policy that is tried. */
export interface StoredCandidate {
  readonly policy: string;
  readonly version: number;
  readonly fields: Table;
  readonly sinceMs: number;
}

/** The policies that are tried beside those in force: one each. */
export class Candidates {
  readonly #tables: CatalogTables;
  readonly #parts: WritesParts;

  constructor(tables: CatalogTables, parts: WritesParts) {
    this.#tables = tables;
    this.#parts = parts;
  }

  /** The candidate of a policy. */
  of(policy: string): StoredCandidate | undefined {
    const row = this.#tables.one("SELECT * FROM candidates WHERE policy = ?", policy);
    return row && candidateOf(row);
  }

  all(): StoredCandidate[] {
    return this.#tables.all("SELECT * FROM candidates ORDER BY policy").map(candidateOf);
  }

  /** Sets a policy's candidate, or takes it away (`undefined`). */
  write(
    by: string,
    policy: string,
    fields: Table | undefined,
    single: SingleWrites,
  ): Versioned<unknown> | Refusal {
    const { store, audit, nowMs } = this.#parts;
    const before = this.of(policy);
    const base = single.baseOf(policy);
    if (base === undefined) return missing(`there is no policy ${JSON.stringify(policy)}`);
    if (fields === undefined && before === undefined) return noCandidate(policy);
    if (fields !== undefined) {
      const refusal =
        checkedPolicy(policy, { fields: single.fileOf(policy), last: base.fields }, fields) ??
        this.misfitOf(policy, base.fields, fields) ??
        single.misfitOf(policy, fields);
      if (refusal !== undefined) return refusal;
      if (JSON.stringify(fields) === JSON.stringify(before?.fields))
        return { version: before?.version ?? 0, value: before };
    }
    const sinceMs = nowMs();
    const version = store.touch(policy);
    if (fields === undefined) this.#tables.run("DELETE FROM candidates WHERE policy = ?", policy);
    else
      this.#tables.run(
        "INSERT OR REPLACE INTO candidates (policy, version, fields, since_ms) VALUES (?, ?, ?, ?)",
        policy,
        version,
        JSON.stringify(fields),
        sinceMs,
      );
    audit.add(sinceMs, by, `candidate ${policy}`, before?.fields, fields);
    return { version, value: { policy, fields: fields ?? null, sinceMs } };
  }

  /** The refusal of fields of a policy that its candidate would not fit: it decides the same calls. */
  misfitOf(policy: string, fields: Table | undefined, tried = this.of(policy)?.fields): Refusal | undefined {
    if (fields === undefined || tried === undefined || leases(policy, fields) === leases(policy, tried))
      return undefined;
    const detail =
      "a policy and its candidate must both have a concurrency rule, or none: they decide the same calls";
    return notAllowed([{ path: [], detail }]);
  }

  /** The refusal of an override that the policy's candidate could not have: it could not be promoted, or written back. */
  overrideMisfitOf(policy: string, pattern: string, override: Table): Refusal | undefined {
    const fields = this.of(policy)?.fields;
    const checked = fields && checkedOverride(policy, { fields }, pattern, override);
    if (checked === undefined || !isRefusal(checked)) return undefined;
    const { violations = [] } = checked;
    return notAllowed(
      violations.map(({ path, detail }) => ({
        path,
        detail: `the override would not fit the candidate of the policy: ${detail}`,
      })),
    );
  }

  /** Makes the candidate the policy: from then on there is no candidate. */
  promote(by: string, policy: string, single: SingleWrites): Versioned<unknown> | Refusal {
    const candidate = this.of(policy);
    if (candidate === undefined) return noCandidate(policy);
    const ended = this.write(by, policy, undefined, single);
    return "refused" in ended ? ended : single.writePolicy(by, policy, candidate.fields);
  }
}

function leases(name: string, fields: Table | undefined): boolean {
  const policy = parsePolicy(name, fields);
  return !("problems" in policy) && policy.lease !== undefined;
}

function candidateOf(row: Row): StoredCandidate {
  return {
    policy: textIn(row, "policy"),
    version: Number(row["version"]),
    fields: JSON.parse(textIn(row, "fields")) as Table,
    sinceMs: Number(row["since_ms"]),
  };
}

const missing = (detail: string): Refusal => ({ refused: "missing", detail });
const noCandidate = (policy: string) => missing(`the policy ${JSON.stringify(policy)} has no candidate`);
