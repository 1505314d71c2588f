/** An object's answers to the messages of clients (isolates). Fields are only added, as optional; never renamed. */
import type { DenialReason, Rate, Share } from "../algorithms/algorithm.ts";
import type { Cost } from "../policies/policy.ts";
import type { Full } from "./problems.ts";

export interface RuleDecision {
  readonly name: string;
  readonly success: boolean;
  /** The most units that can be admitted at once; of an adaptive rule the present value. */
  readonly limit: number;
  /** The largest cost that would be admitted now. */
  readonly remaining: number;
  /** Under `minInterval`: the units left of the quota, even if a call would come too soon. */
  readonly quotaRemaining?: number;
  /** Milliseconds until all units are back if no call comes. 2 ** 51 and more, 71,000 years: they never are. */
  readonly resetAfterMs: number;
  /** 0 when admitted; when denied the exact wait for this cost; `null`: never admitted. */
  readonly retryAfterMs: number | null;
  readonly reason: "ok" | DenialReason;
  /** When admitted: how long the caller should wait before it proceeds. Absent: not at all. */
  readonly delayMs?: number;
  /** The part of the call's group, where groups share the rule. */
  readonly share?: Share;
  /** Of a refund: the whole units that came back. Absent: it names none of this rule, or that is unknown. */
  readonly refunded?: number;
}

export interface Decided {
  readonly rules: readonly RuleDecision[];
  /** Of an answer to an earlier call: the plan that decided it, with its own limits (`withCallLimits`). Absent: that of the call. */
  readonly plan?: string;
  /** Why a call that would wait was denied, if not only by a rule. */
  readonly reason?: "wait-timeout" | "queue-full";
  readonly waitedMs?: number;
  readonly lease?: Lease;
  readonly hold?: Hold;
  readonly reserved?: Reserved;
  /** Present if a call of cost 1 would be denied now: its decisions. Older objects send it with a reservation. */
  readonly next?: readonly RuleDecision[];
  /** How long the denial lasts unless a refund, reset or other policy lifts it. Absent: held units may return. */
  readonly firmForMs?: number;
  /** While answers have the same one, the object has lifted no denial (`Epochs`). Absent: it may have. */
  readonly epoch?: string;
  /** How long the holder denies this cost by itself, longer than the denial lasts: the object gets too many messages. */
  readonly quietMs?: number;
  /** A hold was denied only because calls on several keys hold units, which end soon. */
  readonly isContended?: boolean;
  /** The denial of an `Attempt` is stored for this round. `isEarlier`: it was stored before. */
  readonly deniedIn?: { readonly round: number; readonly isEarlier?: true };
  readonly source?: "pool" | "fallback";
}

/** Between client and object, `id` is only the random part; callers get a `claimId`. */
export interface Lease {
  readonly id: string;
  /** Rises with every lease of the key, so a protected resource can reject an expired holder. */
  readonly fencingToken: number;
  readonly expiresAfterMs: number;
  /** Callers only: the lease ends after this time unless it is renewed. Present on request. */
  readonly confirmWithinMs?: number;
}

/** Units that are set aside for a caller; `id` as in `Lease`. */
export interface Hold {
  readonly id: string;
  readonly units: Cost;
  readonly expiresAfterMs: number;
}

/** The idempotency key was used for another request: `request` describes it. */
export interface Conflict {
  readonly conflict: { readonly request: string };
}

/** The call was shed because the machines behind the policy are too busy. */
export interface Shed {
  readonly restoredInMs: number;
}

export interface SheddingLevel {
  readonly level: number;
  readonly troubleMs: number;
  /** The mean of the reports and the age of the last one; `null`: there is none. */
  readonly utilization: number | null;
  readonly reportedAgoMs: number;
  /** When the object began to count, by its own clock. Senders need not repeat what it sent since. */
  readonly sinceMs: number;
}

export interface Released {
  readonly released: true;
}

/** The lease is known to its holder alone (`SlotsCall`), which hands it over within a second: ask again. */
export interface Young {
  readonly young: true;
}

/** The answer to a `SlotsCall`. */
export interface Slots {
  readonly slots: {
    /** The name of the object's memory of the key. */
    readonly memory: string;
    /** Absent: another memory answers, which has applied nothing. */
    readonly given?: GivenSlots;
  };
}

export interface GivenSlots {
  /** Slots given beside the kept ones. */
  readonly more: number;
  /** The object did not know the holder: it has these slots alone, and none of its leases goes on. */
  readonly isNew: boolean;
  /** The key was reset so long ago: leases granted before are over. Its slots go on. Absent: it was not. */
  readonly resetAgoMs?: number;
  /** All waits for the key were ended so long ago. Absent: they were not, or the object is of an older version. */
  readonly waitsEndedAgoMs?: number;
  /** How long the holder may lease slots, from when it asked. */
  readonly lifeMs: number;
  /** When to ask again. */
  readonly paceMs: number;
  /** The same, while it has no lease to hand over. Absent: `paceMs`. */
  readonly restMs?: number;
  /** The longest of its leases. */
  readonly ttlMs: number;
  /** The tokens of its next leases, from the first (included) to the last (not included). */
  readonly tokens: readonly number[];
  /** Leases of it that ended elsewhere. They are named until the holder has heard of them. */
  readonly ended: readonly string[];
  /** Callers wait: a slot that is free goes home, and serves nobody before. */
  readonly isHome: boolean;
  /** The most slots that it may keep, beside those in use: its part, if holders need more than there are. */
  readonly most: number;
  /** Slots that are left at the object. */
  readonly remaining: number;
  /** Until all slots are free that this holder does not have, if nobody comes. Absent: the object is of an older version. */
  readonly resetAfterMs?: number;
}

export interface Missing {
  readonly missing: true;
}

/** The object only knows the protocol up to this version. The message changed nothing. */
export interface UnsupportedProtocol {
  readonly unsupported: { readonly protocol: number };
}

export interface Reserved {
  /** The lifetime of the units: as requested, or shorter. */
  readonly ttlMs: number;
  /** The object did not know the holder's units (after a crash, for example): it may not spend the kept ones. */
  readonly isNew: boolean;
  readonly units: Readonly<Record<string, number>>;
  /**
   * By rule, a bucket of the holder's own, which is cut from the object's, for `ttlMs` or until the next answer; `units` are
   * those that it has more now. Absent: it has units alone.
   */
  readonly buckets?: Readonly<Record<string, Bucket>>;
  /** The key has so many holders that this one asks the object in its region from now on. */
  readonly asksRegion?: true | undefined;
  /**
   * Of a client: for so long its isolate decides its calls, by what it holds itself. Of the key's many clients this one's part
   * is too small to be held.
   */
  readonly servedMs?: number | undefined;
  /** Of a region's object: so many holders were sent there, also those that have not come yet. */
  readonly sentThere?: number | undefined;
  /** By rule: what the holder may report until the next message. Older objects omit it. */
  readonly prospects?: Readonly<Record<string, Prospect>>;
}

export interface Bucket {
  /** How fast units come. */
  readonly rate: Rate;
  /** The most units in it. If that is less than the holder has kept, it gives up the rest with its next message. */
  readonly most: number;
}

export interface Prospect {
  /** Milliseconds until all units are back if no call comes, but holders use all they have. */
  readonly resetAfterMs: number;
  /** Growth of `remaining` after each equal part of `ttlMs` if no units are taken. Absent: none. */
  readonly gains?: readonly number[];
}

/** The object in a region does not decide this call: the key's home object does. */
export interface AskHome {
  readonly askHome: true;
}
export const ASK_HOME: AskHome = { askHome: true };

export type Answer = Decided | Conflict | Missing | Full | AskHome | { readonly shed: Shed };

/** An answer as JSON text. A nested object instead costs a tenth of the entire call. */
export type AnswerText = string;

/** The answer to `peek`: the decision for a cost of 1, and the present holders and waiters. */
export interface Peeked extends Decided {
  /** Units that isolates and callers hold, leased units included. */
  readonly outstanding: number;
  readonly holds: number;
  readonly leases: number;
  readonly reclaimed: number;
  readonly queueLength: number;
  readonly longestWaitMs: number;
  /** Isolates and clients that hold units or want some; of a pool, those of the region. Older objects omit it. */
  readonly holders?: number;
  /** The plan that the key has. Absent: none, or the object is older. */
  readonly plan?: string;
  readonly shedding?: SheddingReport;
  /** Of the first rule that groups share. Absent: none is shared, or the object is older. */
  readonly groups?: GroupsReport;
}

export interface GroupsReport {
  /** How many are active. */
  readonly active: number;
  /** Those that owe most, with their parts. Callers without the scope admin do not see them. */
  readonly busiest?: readonly Pick<Share, "group" | "limit" | "remaining">[];
}

export interface SheddingReport {
  /** From 0 to 1; `null`: no recent report. */
  readonly utilization: number | null;
  /** By priority: the chance, from 0 to 1, that a call is shed. */
  readonly chances: Readonly<Record<string, number>>;
}

export interface ListedKey {
  readonly key: string;
  readonly limit: number;
  readonly remaining: number;
  readonly resetAfterMs: number;
  readonly outstanding: number;
  readonly holds: number;
  readonly leases: number;
}

export interface KeyList {
  readonly keys: readonly ListedKey[];
  readonly hasMore: boolean;
}

export interface KeyCount {
  readonly count: number;
}
