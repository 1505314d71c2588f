/** The calls of the catalog's object, and their answers. Sent: never rename a field. */
import type { Violation } from "../violations.ts";

export type Table = Readonly<Record<string, unknown>>;

/** The fields of an override: those of rules, or one of `multiply`, `blocked` and `unlimited`. */
export type OverrideFields = Table;

/** `null` deletes. */
export type CatalogChange =
  | { readonly kind: "policy"; readonly name: string; readonly fields: Table | null }
  | {
      readonly kind: "override";
      readonly policy: string;
      readonly pattern: string;
      readonly fields: OverrideFields | null;
    }
  | { readonly kind: "token"; readonly name: string; readonly entry: Table | null }
  | { readonly kind: "candidate"; readonly policy: string; readonly fields: Table | null }
  | { readonly kind: "promotion"; readonly policy: string }
  | { readonly kind: "catalog"; readonly document: CatalogDocument };

export interface Conditions {
  /** Entity tags, one of which must match. Absent: any version. */
  readonly ifMatch?: readonly string[] | undefined;
  /** Only if it does not exist yet. */
  readonly ifNoneMatch?: true | undefined;
  readonly isDryRun?: true | undefined;
}

export interface WriteCall extends Conditions {
  readonly write: CatalogChange;
  readonly by: string;
  /** The prefix of the caller's keys: a part of each bound is reserved for other callers. */
  readonly keyPrefix?: string | undefined;
}

/** A value with the version of its entity tag; 0: never written. */
export interface Versioned<Value> {
  readonly version: number;
  readonly value: Value;
}

export interface Written extends Versioned<unknown> {
  /** Plans that the policy had before. Calls that name one are refused from now on. Absent: none was removed. */
  readonly removedPlans?: readonly string[];
}

/** Why a call was rejected: nothing changed. */
export interface Refusal {
  readonly refused: "missing" | "not-allowed" | "changed" | "full";
  readonly detail: string;
  readonly violations?: readonly Violation[];
}

export interface PolicyInCatalog {
  readonly name: string;
  readonly source: "file" | "catalog";
  readonly fields: Table;
  readonly overrides: number;
}

export interface CandidateInCatalog {
  readonly policy: string;
  readonly fields: Table;
  readonly sinceMs: number;
}

export interface CandidateAnswer {
  readonly policy: string;
  readonly version: number;
  readonly candidate: Table;
  readonly since: string;
}

export interface Comparison {
  readonly calls: number;
  readonly admittedByBoth: number;
  readonly deniedByBoth: number;
  readonly deniedByPolicyAlone: number;
  readonly deniedByCandidateAlone: number;
  /** Calls that one of them could not decide. */
  readonly undecided: number;
}

/** A candidate with its statistics, or without if they are unavailable. */
export type ComparedCandidate = CandidateAnswer & {
  readonly compared?: Comparison;
  /** The keys with the most denials by the candidate alone, in this hour and the last one. */
  readonly keys?: readonly { readonly key: string; readonly count: number; readonly error: number }[];
};

export interface OverrideInCatalog {
  readonly policy: string;
  readonly pattern: string;
  readonly fields: OverrideFields;
}

export type PolicyAnswer = Table &
  Omit<PolicyInCatalog, "fields" | "name"> &
  Pick<Written, "removedPlans"> & { readonly policy: string; readonly version: number };

export type OverrideAnswer = Table & Omit<OverrideInCatalog, "fields"> & { readonly version: number };

/** A page of a list. `next` is the cursor of the next page; absent: this is the last. */
export interface Page<Item> {
  readonly items: readonly Item[];
  readonly next?: string;
}

/** A change: `null` before a creation and after a deletion. */
export interface AuditEntry {
  readonly id: number;
  readonly at: string;
  readonly by: string;
  readonly target: string;
  readonly before: unknown;
  readonly after: unknown;
}

/** The catalog as one document, without the deployment's file. */
export interface CatalogDocument {
  readonly policies: Readonly<Record<string, Table>>;
  readonly overrides: Readonly<Record<string, Readonly<Record<string, OverrideFields>>>>;
  readonly tokens: Readonly<Record<string, Table>>;
  readonly candidates?: Readonly<Record<string, Table>>;
}

export interface TokenInCatalog {
  readonly name: string;
  readonly entry: Table;
}

export interface CatalogMethods {
  /**
   * All changes after a revision; everything, if that is unknown or long ago, or after 0.
   * @param wanted the page of a snapshot that the reader wants next. Absent: an isolate of an earlier version asks, which
   * gets everything in one answer. An object of an earlier version ignores it.
   */
  changes(since: number, wanted?: WantedPage): Promise<CatalogChanges>;
  write(call: WriteCall): Promise<Written | Refusal>;
  /** @param isHinted whether a refusal may name the most similar policy: its caller may use all of them */
  policy(name: string, isHinted?: boolean): Promise<Versioned<PolicyInCatalog> | Refusal>;
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
/** The largest catalog, in bytes of its document: 10,000 overrides of 800 bytes. */
export const MAX_CATALOG_BYTES = 8 * 2 ** 20;

/* Changes, as isolates read them. */

/** A changed policy. Its version rises with each change of the policy or an override of its keys. */
export interface PolicyChange {
  readonly name: string;
  readonly version: number;
  /** Absent: the deployment's file defines it, or it was deleted. */
  readonly fields?: Table;
  readonly candidate?: { readonly version: number; readonly fields: Table };
}

export interface OverrideChange {
  readonly policy: string;
  readonly pattern: string;
  /** Absent: it was deleted. */
  readonly fields?: OverrideFields;
}

interface TokenChange {
  readonly name: string;
  /** As in the secret API_TOKENS. Absent: it was revoked. */
  readonly entry?: Table;
}

export interface CatalogChanges {
  readonly revision: number;
  /** True: this is everything, and replaces what the reader had. */
  readonly isWhole: boolean;
  readonly policies: readonly PolicyChange[];
  readonly overrides: readonly OverrideChange[];
  readonly tokens: readonly TokenChange[];
  /** The reader has to read this first. Then these changes, which came after it, apply too. */
  readonly snapshot?: SnapshotPage | SnapshotEntry;
}

export interface WantedPage {
  /** The snapshot's. Empty: any snapshot, which may be read from Workers KV. */
  readonly id: string;
  readonly page: number;
}

/**
 * A page of everything at one revision. All pages together are the JSON of `CatalogChanges`. If the wanted snapshot is
 * gone, this is the first page of another one, and the reader begins again.
 */
export interface SnapshotPage extends WantedPage {
  /** How many pages there are. */
  readonly pages: number;
  readonly text: string;
}

/** Workers KV has the text of all pages, under the id. */
type SnapshotEntry = Pick<SnapshotPage, "id">;

export const ANY_SNAPSHOT: WantedPage = { id: "", page: 0 };
