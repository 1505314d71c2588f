/**
 * The calls on a key as clients (isolates) send them to its object. Old and new versions exchange them during a rollout:
 * fields are only added, as optional, never renamed (messages.ts).
 */
import type { Outcome } from "../algorithms/algorithm.ts";
import type { Cost, LocationHint, NamingPlan, PolicyRevision } from "../policies/policy.ts";
import type { Reports } from "../shedding/load-shedder.ts";
import type { Lease, Shed, SheddingLevel } from "./answers.ts";

/** Absent: version 1, whose senders sent no version. */
export interface Versioned {
  readonly protocol?: number;
  /** The sender's rules of the policy as text (durable-objects/keys/versions.ts). */
  readonly terms?: string | undefined;
  /** The version in force for the key, as known to the sender. Absent: that of the deployment's file. */
  readonly inForce?: PolicyRevision | undefined;
  /** Another object forwarded the call: these objects may have the key, by its knowledge. */
  readonly mayBeAt?: readonly string[];
}

export interface OfKey extends Versioned {
  readonly policy: string;
  readonly key: string;
  /** Calls of one caller have bounds of their own. */
  readonly caller?: string;
  /** Whose call it is, where groups share a rule (core/algorithms/fair/fair.ts). */
  readonly group?: string | undefined;
  /** A hash of the caller that names the group: those of one caller have a bound. */
  readonly namedBy?: string | undefined;
}

/**
 * Decides on a cost, and reserves units for a holder (an isolate) to spend without a message. Counts are totals since
 * the holder began, and `turn` rises with each message: lost, late and repeated messages do no harm.
 */
export interface ReserveCall extends UnitsCall {
  /** 0: no caller waits for a decision. */
  readonly cost: Cost;
  readonly holder: string;
  readonly turn: number;
  /** The lifetime of the units. The holder counts from before it sends, so it stops first. */
  readonly ttlMs: number;
  /** The holder is a region's object, which has so many holders. */
  readonly holders?: number | undefined;
  /**
   * The holder takes a bucket of its own (`Reserved.buckets`). `true`: the object is far. `false`: if holders are many.
   */
  readonly takesBucket?: boolean | undefined;
  /** Calls already wait for units, so granted units are used at once. */
  readonly isShort: boolean;
  readonly rules: Readonly<Record<string, Reserving>>;
  /** Of a call that is sent alone. */
  readonly sent?: Sent | undefined;
}

export interface Reserving {
  readonly used: number;
  /** Units that the holder keeps; it returns all others. */
  readonly kept: number;
  /** The units that the holder needs, the kept ones included. */
  readonly wanted: number;
  /** The units that its calls need in a second. Absent: of an older version, or the rule cannot be cut. */
  readonly demand?: number | undefined;
  /** The rate of its bucket, if it has one; then `kept` is the most units in it. */
  readonly rate?: number | undefined;
  /** The units in it now. Absent: of an older version. */
  readonly level?: number | undefined;
  /** Of its bucket: the units that it returns unused. */
  readonly left?: number | undefined;
}

export interface GiveBackMessage {
  readonly key: string;
  readonly holder: string;
  readonly turn: number;
  readonly used: Readonly<Record<string, number>>;
  /** `Reserving.left`. */
  readonly left?: Readonly<Record<string, number>> | undefined;
  /** The units are of the object in this region. */
  readonly region?: LocationHint | undefined;
}

export interface UnitsCall extends OfKey {
  /** The sender shed the call: it is answered only if it was answered before. */
  readonly shed?: Shed | undefined;
  /** One of the policy's priorities. Absent: the usual one. */
  readonly priority?: string | undefined;
  /** Present: the receiver is the key's object in this region (durable-objects/regions/). */
  readonly region?: LocationHint | undefined;
  /** Of a client: it may leave its calls to its isolate (`Reserved.servedMs`), which is this holder. */
  readonly servedBy?: string | undefined;
  /** The holder may ask an object in its region instead (`Reserved.asksRegion`). */
  readonly mayAskRegion?: true | undefined;
  /** The region of a holder that may ask its object, or of that object. Absent: of an older version. */
  readonly near?: LocationHint | undefined;
  /** Part of a batch, which must not wait: it is refused instead. */
  readonly isBatched?: true | undefined;
  /** Of a call in a batch: for how long its caller waited for it when that was sent. */
  readonly leftMs?: number | undefined;
}

/** What a key's rules depend on beside the key: calls of other plans, priorities and groups see other ones. */
export interface SeenBy extends Pick<UnitsCall, "priority" | "group" | "namedBy">, NamingPlan {
  /** Above 0: while it waits, units come at the rate of its own plan, whatever others name for the key. */
  readonly waitMs?: number;
}

/** The most checks of a call that takes all of their costs or none, or that of one. */
export const MAX_CHECKS = 16;

/** Decides on a cost, and takes it if every rule admits it. */
export interface LimitCall extends UnitsCall {
  readonly cost: Cost;
  readonly idempotencyKey?: string | undefined;
  /** The longest wait for its turn. Absent: no wait. */
  readonly waitMs?: number;
  /** The units are taken in any case; missing ones become a debt. */
  readonly force?: true | undefined;
  /** Present: one check of a call that charges the first check that admits (`ATTEMPT_PROTOCOL`). */
  readonly attempt?: Attempt | undefined;
}

/**
 * A check of a call with an idempotency key that charges the first check that admits. A denial is stored too: when the
 * call comes again, the check denies again, so that no check before a charged one is charged.
 */
export interface Attempt {
  /** The call as text, which idempotency compares. */
  readonly request: string;
  /** A denial of an earlier round is decided again. A round begins when all checks have denied in the one before. */
  readonly round: number;
  /** An override blocks the key: the denial is stored, and nothing is decided. */
  readonly isBlocked?: true;
}

/** Sets what a key has used. Held units are not changed. */
export interface SetCall extends OfKey {
  /** A number is for every rule that counts a rate. A rule without its unit in an object is not changed. */
  readonly used: Cost;
}

export interface SheddingCall extends OfKey {
  readonly reports: Reports;
  /** The last level that the sender received, for an object that lost its memory. */
  readonly known?: KnownLevel;
}

export interface KnownLevel extends SheddingLevel {
  readonly agoMs: number;
}

export type LimitParams = Omit<LimitCall, "policy" | "key">;
export type SetParams = Omit<SetCall, "policy" | "key" | "protocol">;

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
  /** It also waits in its isolate, for the slots of the holder with this mark. */
  readonly mark?: string;
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

/** What the holder of a lease with a handle can call. */
export interface LeaseHandle {
  /** Moves the lease's end to `ttlMs` from now. @throws an error of status 404 when the lease has ended */
  readonly renew?: (call?: { readonly ttlMs?: number }) => Promise<Lease>;
  /** Ends the lease with a report. @throws an error of status 404 when the lease has ended */
  readonly release?: (report?: LeaseReport) => Promise<void>;
}

/** A call on a lease. */
interface MayBeYoung extends OfKey {
  /** The sender is not the holder of the lease, which may not have handed it over yet (`SlotsCall`). */
  readonly mayBeYoung?: true | undefined;
}

export interface ReleaseCall extends MayBeYoung, LeaseReport {
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

/**
 * Takes slots of a key, which the holder (an isolate) leases by itself. The call says all that the holder has, and `turn`
 * rises with each: lost, late and repeated messages do no harm.
 */
export interface SlotsCall extends OfKey {
  readonly holder: string;
  readonly turn: number;
  /** The last turn of which the holder has heard the answer. */
  readonly heard: number;
  /** As in the last answer. An object that has lost its memory since applies nothing, and says its new name. */
  readonly memory?: string | undefined;
  /** The slots that it keeps, those of its own leases included; it returns all others. */
  readonly kept: number;
  /** Those of its own leases. */
  readonly leased: number;
  /** The slots that it needs, the kept ones included. */
  readonly wanted: number;
  /**
   * The slots that it needs if it may be silent for so long while it has no lease to hand over. Its calls are too rare for
   * a message each pace. Absent: they are not, or it was refused before.
   */
  readonly rest?: { readonly units: number; readonly ms: number } | undefined;
  /** The longest of its own leases, until the answer to its next message. */
  readonly ttlMs: number;
  /** Leases that are the object's from now on, with their slots. They are named until an answer is heard. */
  readonly handed: readonly HandedLease[];
  /** Since the holder began. */
  readonly granted: number;
  readonly released: number;
}

export interface HandedLease {
  readonly id: string;
  readonly units: number;
  readonly ttlMs: number;
  readonly leftMs: number;
  /** Since its grant. Absent: an older build granted it. */
  readonly heldMs?: number | undefined;
  readonly fencingToken: number;
  readonly caller?: string | undefined;
}

export interface Settling {
  readonly id: string;
  readonly used: Cost;
  /** Units in `used` that no rule counts any more. A hold that was taken without them is answered as a missing one. */
  readonly had?: readonly string[];
}

/** A call on a hold, a lease, a charge or slots that is answered at once. */
export type OperationCall =
  | ({ readonly op: "slots" } & SlotsCall)
  | ({ readonly op: "hold" } & HoldCall)
  | ({ readonly op: "settle" } & Settling & OfKey)
  | ({ readonly op: "cancel"; readonly id: string } & OfKey)
  | ({ readonly op: "lease" } & AcquireCall)
  | ({ readonly op: "renew"; readonly id: string; readonly ttlMs?: number | undefined } & MayBeYoung)
  | ({ readonly op: "release" } & ReleaseCall)
  | ({ readonly op: "refund"; readonly charge?: string } & Omit<RefundCall, "charge">);

export type AcquireParams = Omit<AcquireCall, "policy" | "key" | "protocol">;
export type HoldParams = Omit<HoldCall, "policy" | "key" | "protocol">;

export interface KeysCall extends Versioned {
  readonly policy: string;
  readonly prefix?: string;
  /** Only keys after this one, in the order of their bytes. */
  readonly after?: string;
  readonly most?: number;
}

/** When a message was sent. */
export interface Sent {
  /** Names the sender. One whose clock is set back takes another name. */
  readonly from: string;
  /** Of the message: one that comes again is answered as before. Absent: none comes again. */
  readonly number?: number | undefined;
  /** By the sender's clock. */
  readonly atMs: number;
  /** For each call, how long its caller waits from then on. */
  readonly leftMs: readonly number[];
}
