/** The answers of the limiter, as far as the dashboard reads them: /openapi.json has all. */

/** An error: RFC 9457. */
export interface Problem {
  readonly type: string;
  readonly title: string;
  readonly status: number;
  readonly detail: string;
  readonly errors?: readonly { readonly pointer: string; readonly detail: string }[];
}

/** `GET /v1/token`. */
export interface OwnToken {
  readonly name: string;
  readonly scopes: readonly string[];
  readonly policies?: readonly string[];
  readonly keyPrefix?: string;
}

/** A rule in `GET /v1/policies`: further fields are its algorithm's. */
export interface RuleDescription {
  readonly name: string;
  readonly algorithm: string;
  readonly [field: string]: string | number | boolean;
}

/** One policy of `GET /v1/policies`. */
export interface PolicyDescription {
  readonly name: string;
  readonly rules: readonly RuleDescription[];
  readonly objects: "per-key" | number;
  readonly shadow: boolean;
  readonly fair?: true;
  readonly keyKind: "text" | "ip";
  readonly pool?: string;
}

/** `GET /v1/policies/{policy}`: its fields, and these. */
export interface PolicyInForce {
  readonly policy: string;
  readonly version: number;
  readonly source: "file" | "catalog";
  readonly overrides: number;
  /** After a write, or its check. */
  readonly removedPlans?: readonly string[];
  readonly [field: string]: unknown;
}

export interface Override {
  readonly policy: string;
  readonly pattern: string;
  readonly version: number;
  readonly blocked?: true;
  readonly unlimited?: true;
  readonly multiply?: number;
  readonly startsAt?: string;
  readonly expiresAt?: string;
  readonly note?: string;
  readonly [field: string]: unknown;
}

export interface RuleDecision {
  readonly name: string;
  readonly success: boolean;
  readonly limit: number;
  readonly remaining: number;
  readonly resetAfterMs: number;
  readonly retryAfterMs: number | null;
  readonly reason: string;
}

/** Of a key whose groups share its limit. */
export interface GroupsReport {
  readonly active: number;
  readonly busiest?: readonly {
    readonly group: string;
    readonly limit: number;
    readonly remaining: number;
  }[];
}

/** `GET /v1/policies/{policy}/keys/{key}`. */
export interface KeyReport {
  readonly success: boolean;
  readonly key: string;
  readonly limit: number;
  readonly remaining?: number;
  readonly resetAfterMs?: number;
  readonly retryAfterMs?: number | null;
  readonly reason: string;
  readonly source: string;
  readonly rules: readonly RuleDecision[];
  readonly override?: string;
  readonly plan?: string;
  readonly outstanding: number;
  readonly holds: number;
  readonly leases: number;
  readonly reclaimed: number;
  readonly queueLength: number;
  readonly longestWaitMs: number;
  readonly groups?: GroupsReport;
}

/** One key of `GET /v1/policies/{policy}/keys`. */
export interface ListedKey {
  readonly key: string;
  readonly limit: number;
  readonly remaining: number;
  readonly resetAfterMs: number;
  readonly outstanding: number;
  readonly holds: number;
  readonly leases: number;
}

/** A step of `GET /v1/stats`. */
export interface HistoryPoint {
  readonly at: string;
  readonly admitted: number;
  readonly denied: number;
  readonly degraded: number;
  readonly plans?: Readonly<Record<string, { readonly admitted: number; readonly denied: number }>>;
}

/** One key of `GET /v1/stats/keys`. */
export interface TopKey {
  readonly key: string;
  readonly count: number;
  readonly error: number;
  readonly plan?: string;
}

/** One group of `GET /v1/stats/groups`. */
export interface TopGroup extends Omit<TopKey, "key" | "plan"> {
  readonly group: string;
}

/** `GET /v1/policies/{policy}/candidate`. */
export interface Candidate {
  readonly policy: string;
  readonly candidate: Readonly<Record<string, unknown>>;
  readonly since: string;
  readonly version: number;
  readonly compared?: {
    readonly calls: number;
    readonly admittedByBoth: number;
    readonly deniedByBoth: number;
    readonly deniedByPolicyAlone: number;
    readonly deniedByCandidateAlone: number;
    readonly undecided: number;
  };
  readonly keys?: readonly TopKey[];
}

/** A change in `GET /v1/audit`. */
export interface AuditEntry {
  readonly id: number;
  readonly at: string;
  readonly by: string;
  readonly target: string;
  readonly before: unknown;
  readonly after: unknown;
}
