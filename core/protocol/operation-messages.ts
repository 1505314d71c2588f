/** The messages about holds, leases and charges, in the rules of messages.ts. */
import type { Outcome } from "../algorithms/algorithm.ts";
import type { Cost } from "../policies/policy.ts";
import type { OfKey, UnitsCall } from "./messages.ts";

export interface RefundCall extends OfKey {
  readonly units: Cost;
  readonly idempotencyKey: string;
  readonly charge: string;
}

/** Requests a lease. It gets the units of rules that lease; units of other rules are used at once. */
export interface AcquireCall extends UnitsCall {
  readonly cost: Cost;
  readonly ttlMs: number;
  /** The longest wait in the queue. */
  readonly waitMs: number;
  /** The random id of the lease, from the sender: it can end the lease even if the answer is lost. */
  readonly id: string;
  readonly idempotencyKey?: string;
  /** How long the lease survives its broken connection or link. Absent: it ends at once. */
  readonly graceMs?: number | undefined;
  /** Takes over the lease with this id (socket: `RESUMING_PROTOCOL`, link: `LINK_PROTOCOL`). */
  readonly resume?: string | undefined;
  /** The longest time between two `ping` on the socket. Absent: unlimited. */
  readonly pingWithinMs?: number | undefined;
  /** The lease ends after this time unless `confirm` comes: the caller may have left while it waited. */
  readonly confirmWithinMs?: number;
}

/** How a call ended (`EndedLease` in core/algorithms/algorithm.ts). */
export interface LeaseReport {
  /** Absent: `ok`. */
  readonly outcome?: Outcome | undefined;
  /** The duration of the call. Absent: the time since the grant, by the object's clock. */
  readonly durationMs?: number | undefined;
}

export interface ReleaseCall extends OfKey, LeaseReport {
  readonly id: string;
  /** This link to the holder ended: the lease ends if it still belongs to this link. Absent: the holder ends it. */
  readonly link?: string | undefined;
  /** The delay of the end (`LINK_PROTOCOL`). Absent: none. */
  readonly graceMs?: number | undefined;
}

/** The values of a report. */
export const OUTCOMES = ["ok", "ignore", "dropped"] as const satisfies readonly Outcome[];
export const MAX_DURATION_MS = 2_147_483_647;

export interface IdleCall extends OfKey {
  readonly waitMs: number;
}

/** Sets units aside for `ttlMs`, until the caller settles them with its usage. */
export interface HoldCall extends UnitsCall {
  /** The random part of its id. Absent: the object generates one. */
  readonly id?: string;
  readonly cost: Cost;
  readonly ttlMs: number;
  readonly idempotencyKey?: string;
  /** A part of a call on several keys. `waitMs`: the longest wait for other such calls. `request`: the call. */
  readonly provisional?: { readonly waitMs: number; readonly request: string };
}

/** A call on a hold, a lease or a charge that is answered at once. */
export type OperationCall =
  | ({ readonly op: "hold" } & HoldCall)
  | ({ readonly op: "settle"; readonly id: string; readonly used: Cost } & OfKey)
  | ({ readonly op: "cancel"; readonly id: string } & OfKey)
  | ({ readonly op: "lease" } & AcquireCall)
  | ({ readonly op: "renew"; readonly id: string; readonly ttlMs?: number | undefined } & OfKey)
  | ({ readonly op: "release" } & ReleaseCall)
  | ({ readonly op: "refund"; readonly charge?: string } & Omit<RefundCall, "charge">);

export type AcquireParams = Omit<AcquireCall, "policy" | "key" | "protocol">;
export type ReleaseParams = Omit<ReleaseCall, "policy" | "key" | "protocol">;
export type HoldParams = Omit<HoldCall, "policy" | "key" | "protocol">;
