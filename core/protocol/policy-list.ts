/** The policies of a deployment, as callers see them. The schema for OpenAPI is in worker/calls/policy-list-schema.ts. */
import type { HeaderStyle } from "../policies/header-styles.ts";

/** A rule. What else it says is its algorithm's: limits in units, durations in milliseconds. */
export interface ListedRule {
  readonly name: string;
  readonly algorithm: string;
  readonly [figure: string]: string | number | boolean;
}

/** A policy. Durations are in milliseconds. */
export interface ListedPolicy {
  readonly name: string;
  readonly rules: readonly ListedRule[];
  readonly onFailure: "closed" | "open" | "local";
  readonly deadlineMs: number;
  readonly objects: "per-key" | number;
  readonly maxWaitMs: number;
  readonly maxWaiters: number;
  readonly reservationTtlMs: number;
  readonly denialTtlMs: number;
  readonly shadow: boolean;
  readonly keyKind: "text" | "ip";
  readonly priorities: readonly string[];
  readonly defaultPriority: string;
  /** The styles in which headers tell of the limits. Absent: an older limiter. */
  readonly headers?: readonly HeaderStyle[];
}

/** What `policies` answers. */
export interface PolicyList {
  readonly policies: readonly ListedPolicy[];
}
