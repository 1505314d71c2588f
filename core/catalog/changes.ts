/** What the catalog tells those who decide. Sent: never rename a field. */
import type { OverrideFields, Table } from "./table.ts";

/** A policy's place in the catalog. Its version rises with each change of it, or of an override for its keys. */
export interface PolicyChange {
  readonly name: string;
  readonly version: number;
  /** Absent: the deployment's file says what it is, or it is gone. */
  readonly fields?: Table;
  /** What decides the same calls beside it. Absent: nothing does. */
  readonly candidate?: { readonly version: number; readonly fields: Table };
}

/** An override, by its policy and its pattern. */
export interface OverrideChange {
  readonly policy: string;
  readonly pattern: string;
  /** Absent: it is gone. */
  readonly fields?: OverrideFields;
}

/** A token that was issued at run time. There is no more of it than its hash. */
export interface TokenChange {
  readonly name: string;
  /** As in the secret API_TOKENS. Absent: it was revoked. */
  readonly entry?: Table;
}

/** All that has changed since a revision. */
export interface CatalogChanges {
  /** Rises with each write. */
  readonly revision: number;
  /** Whether this is all there is: what the reader had before is gone. */
  readonly isWhole: boolean;
  readonly policies: readonly PolicyChange[];
  readonly overrides: readonly OverrideChange[];
  readonly tokens: readonly TokenChange[];
}
