/// <reference lib="esnext.disposable" preserve="true" />
/** The catalog over the service binding, as its callers see it. */
import type {
  AuditEntry,
  CandidateAnswer,
  CatalogDocument,
  ComparedCandidate,
  OverrideAnswer,
  OverrideFields,
  PolicyAnswer,
  Table,
} from "../../core/catalog/calls.ts";

/** Conditions of a write: `ifMatch` is the expected version, or 0 if there is none yet. */
export interface CatalogConditions {
  readonly ifMatch?: number;
  readonly dryRun?: boolean;
}

export interface WholeCatalog {
  readonly version: number;
  readonly value: CatalogDocument;
}

/** Changes at run time. A refused call throws a `LimiterError`. `using` disposes of the stub. */
export interface CatalogService extends Disposable {
  policy(name: string): Promise<PolicyAnswer>;
  putPolicy(name: string, fields: Table, conditions?: CatalogConditions): Promise<PolicyAnswer>;
  deletePolicy(name: string, conditions?: CatalogConditions): Promise<void>;
  override(policy: string, pattern: string): Promise<OverrideAnswer>;
  /** A page of 100; `cursor` in the answer requests the next. */
  overrides(policy: string, cursor?: string): Promise<{ overrides: OverrideAnswer[]; cursor?: string }>;
  putOverride(
    policy: string,
    pattern: string,
    fields: OverrideFields,
    conditions?: CatalogConditions,
  ): Promise<OverrideAnswer>;
  deleteOverride(policy: string, pattern: string, conditions?: CatalogConditions): Promise<void>;
  candidate(policy: string): Promise<ComparedCandidate>;
  putCandidate(policy: string, fields: Table, conditions?: CatalogConditions): Promise<CandidateAnswer>;
  deleteCandidate(policy: string, conditions?: CatalogConditions): Promise<void>;
  promoteCandidate(policy: string, conditions?: CatalogConditions): Promise<PolicyAnswer>;
  tokens(): Promise<{ tokens: readonly (Table & { readonly name: string })[] }>;
  issueToken(fields: Table): Promise<Table & { readonly token: string }>;
  revokeToken(name: string): Promise<void>;
  read(): Promise<WholeCatalog>;
  write(document: CatalogDocument, conditions?: CatalogConditions): Promise<WholeCatalog>;
  audit(cursor?: string): Promise<{ entries: readonly AuditEntry[]; cursor?: string }>;
}
