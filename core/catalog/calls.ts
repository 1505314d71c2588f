/** The calls of the catalog's object, and what it answers. Sent: never rename a field. */
import type { Violation } from "../violations.ts";

/** A table of `wrangler.toml`, as JSON. */
export type Table = Readonly<Record<string, unknown>>;

/** The fields of an override: those of rules, or one of `multiply`, `blocked` and `unlimited`. */
export type OverrideFields = Table;

/** What is written: `null` deletes. */
export type Write =
  | { readonly kind: "policy"; readonly name: string; readonly fields: Table | null }
  | {
      readonly kind: "override";
      readonly policy: string;
      readonly pattern: string;
      readonly fields: OverrideFields | null;
    }
  | { readonly kind: "token"; readonly name: string; readonly entry: Table | null }
  | { readonly kind: "candidate"; readonly policy: string; readonly fields: Table | null }
  /** The candidate becomes the policy. */
  | { readonly kind: "promotion"; readonly policy: string }
  | { readonly kind: "catalog"; readonly document: CatalogDocument };

/** The conditions of a write. */
export interface Conditions {
  /** Entity tags, one of which must be that of what is there. Absent: whatever is there. */
  readonly ifMatch?: readonly string[] | undefined;
  /** Only where nothing is yet. */
  readonly ifNoneMatch?: true | undefined;
  /** Only checks. */
  readonly isDryRun?: true | undefined;
}

/** A write, and the conditions under which it is made. */
export interface WriteCall extends Conditions {
  readonly write: Write;
  /** The caller, as the audit log names it. */
  readonly by: string;
  /** Present where the caller may use only keys that begin with this: then others keep a part of each bound. */
  readonly keyPrefix?: string | undefined;
}

/** A thing in the catalog, with the version that its entity tag has. 0: it was never written. */
export interface Versioned<Value> {
  readonly version: number;
  readonly value: Value;
}

/** Why a call was refused: nothing has changed. */
export interface Refusal {
  readonly refused: "missing" | "not-allowed" | "changed" | "full";
  readonly detail: string;
  readonly violations?: readonly Violation[];
}

/** A policy, as it is in force for keys without an override. */
export interface PolicyInCatalog {
  readonly name: string;
  /** `file`: as in wrangler.toml. */
  readonly source: "file" | "catalog";
  readonly fields: Table;
  /** The number of its overrides. */
  readonly overrides: number;
}

/** A policy that is tried beside the one in force. */
export interface CandidateInCatalog {
  readonly policy: string;
  readonly fields: Table;
  /** When it was set, in milliseconds since 1970. */
  readonly sinceMs: number;
}

/** A candidate as callers see it. */
export interface CandidateAnswer {
  readonly policy: string;
  readonly version: number;
  readonly candidate: Table;
  /** When it was set, as RFC 3339 writes it. */
  readonly since: string;
}

/** What a policy and its candidate decided of the same calls. */
export interface Comparison {
  /** Calls of which both decided. */
  readonly calls: number;
  readonly admittedByBoth: number;
  readonly deniedByBoth: number;
  readonly deniedByPolicyAlone: number;
  readonly deniedByCandidateAlone: number;
  /** Calls of which one of them could not decide. */
  readonly undecided: number;
}

/** A candidate, and what became of it; without the statistics, only the candidate. */
export type ComparedCandidate = CandidateAnswer & {
  readonly compared?: Comparison;
  /** The keys that the candidate alone denied most, in this hour and the last one. */
  readonly keys?: readonly { readonly key: string; readonly count: number; readonly error: number }[];
};

/** An override, with its pattern as it is stored. */
export interface OverrideInCatalog {
  readonly policy: string;
  readonly pattern: string;
  readonly fields: OverrideFields;
}

/** A policy as callers see it: its fields, and where they are from. */
export type PolicyAnswer = Table &
  Omit<PolicyInCatalog, "fields" | "name"> & { readonly policy: string; readonly version: number };

/** An override as callers see it. */
export type OverrideAnswer = Table & Omit<OverrideInCatalog, "fields"> & { readonly version: number };

/** A page of a list. `next` begins the next one; absent: this is the last. */
export interface Page<Item> {
  readonly items: readonly Item[];
  readonly next?: string;
}

/** Who changed what. `null`: there was nothing, or is nothing. */
export interface AuditEntry {
  readonly id: number;
  /** RFC 3339. */
  readonly at: string;
  readonly by: string;
  /** What was written, such as `policy api` or `override api customer:7`. */
  readonly target: string;
  readonly before: unknown;
  readonly after: unknown;
}

/** All of the catalog, as one document, without what is in the file. */
export interface CatalogDocument {
  readonly policies: Readonly<Record<string, Table>>;
  /** By policy and pattern. */
  readonly overrides: Readonly<Record<string, Readonly<Record<string, OverrideFields>>>>;
  /** By name, with hashes of the tokens. */
  readonly tokens: Readonly<Record<string, Table>>;
  /** By the policy's name. Absent: there are none. */
  readonly candidates?: Readonly<Record<string, Table>>;
}

/** A token that was issued, without its hash. */
export interface TokenInCatalog {
  readonly name: string;
  readonly entry: Table;
}

/** The methods of the catalog's object. Each answers a value, or a refusal. */
export interface CatalogMethods {
  /** All changes after a revision; after 0: everything. */
  changes(since: number): Promise<CatalogChanges>;
  write(call: WriteCall): Promise<Versioned<unknown> | Refusal>;
  policy(name: string): Promise<Versioned<PolicyInCatalog> | Refusal>;
  candidate(policy: string): Promise<Versioned<CandidateInCatalog> | Refusal>;
  override(policy: string, pattern: string): Promise<Versioned<OverrideInCatalog> | Refusal>;
  overrides(policy: string, after?: string): Promise<Page<Versioned<OverrideInCatalog>> | Refusal>;
  tokens(): Promise<readonly TokenInCatalog[]>;
  document(): Promise<Versioned<CatalogDocument>>;
  audit(before?: number): Promise<Page<AuditEntry>>;
}

export const MAX_POLICIES = 1_000;
export const MAX_OVERRIDES = 10_000;
export const MAX_TOKENS = 1_000;
/** The longest table of a policy, an override or a token, as JSON. */
export const MAX_TABLE_LENGTH = 16_384;

/* Changes, as isolates read them. */

/** A policy that has changed. Its version rises with each change of it, or of an override for its keys. */
export interface PolicyChange {
  readonly name: string;
  readonly version: number;
  /** Absent: the deployment's file defines it, or it was deleted. */
  readonly fields?: Table;
  readonly candidate?: { readonly version: number; readonly fields: Table };
}

/** An override, by its policy and its pattern. */
export interface OverrideChange {
  readonly policy: string;
  readonly pattern: string;
  /** Absent: it was deleted. */
  readonly fields?: OverrideFields;
}

/** A token that was issued at run time, as its hash. */
export interface TokenChange {
  readonly name: string;
  /** As in the secret API_TOKENS. Absent: it was revoked. */
  readonly entry?: Table;
}

/** All that has changed since a revision. */
export interface CatalogChanges {
  /** Rises with each write. */
  readonly revision: number;
  /** Whether this is everything: what the reader had before is void. */
  readonly isWhole: boolean;
  readonly policies: readonly PolicyChange[];
  readonly overrides: readonly OverrideChange[];
  readonly tokens: readonly TokenChange[];
}
