/** What calls over the service binding may say, as callers give it. */
import type { Cost } from "../../core/protocol/cost.ts";

/** A call. `policy` may be left out when the binding's `props` have it. */
export type Call<Fields> = Fields & Regional & { readonly policy?: string; readonly key: string };
export interface Regional {
  /**
   * For a policy with a pool, the region to ask. By default it is where this isolate is, as far as an HTTP request
   * has told.
   */
  readonly region?: string;
}
export interface Idempotent {
  readonly idempotencyKey?: string;
}
export interface Prioritised {
  readonly priority?: string;
}
/** Of a policy, the keys with a prefix, from a cursor on. */
export type Listing = Partial<Record<"policy" | "prefix" | "cursor", string>>;
export interface Reporting {
  /** How busy the caller's machine is, from 0 to 1. */
  readonly utilization?: number;
}
export type Charging = Prioritised &
  Reporting & {
    readonly cost?: Cost;
    readonly refundable?: boolean;
    readonly waitMs?: number;
    readonly force?: boolean;
  };
