/**
 * The messages from clients (isolates) to an object. Old and new versions exchange them during a rollout: fields are
 * only added, as optional, never renamed. A change that an older object would misread needs a higher `PROTOCOL`.
 */
import type { Cost, LocationHint, PolicyRevision } from "../policies/policy.ts";
import type { Reports } from "../shedding/load-shedder.ts";
import type {
  Answer,
  AnswerText,
  Lease,
  Released,
  Shed,
  SheddingLevel,
  UnsupportedProtocol,
} from "./answers.ts";
import type { OperationCall } from "./operation-messages.ts";

/** An object answers `unsupported` to unknown versions. Methods with plain arguments keep version 1. */
export const PROTOCOL = 1;

/** The version of a `limit` that waits. Objects of version 1 would read it as the test for an idle key. */
export const WAITING_PROTOCOL = 2;

/** The version of a batch, sent by `reserve`, which objects of lower versions refuse by value. */
export const BATCH_PROTOCOL = 3;

/** The version of a socket that resumes a lease. Objects of lower versions would grant a second lease. */
export const RESUMING_PROTOCOL = 5;

/** The version of a lease whose link may break. Objects of lower versions would end it, or grant a second one. */
export const LINK_PROTOCOL = 6;

/** The version of a call on a key's object in a region. Objects of lower versions would decide it by the whole limit. */
export const REGION_PROTOCOL = 7;

/** The highest known version. 4 is `MOVE_PROTOCOL`. */
export const KNOWN_PROTOCOL = REGION_PROTOCOL;

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
  /** The holder may ask an object in its region instead (`Reserved.asksRegion`). */
  readonly mayAskRegion?: true | undefined;
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
  readonly demand?: number;
  /** The rate of its bucket, if it has one; then `kept` is the most units in it. */
  readonly rate?: number;
  /** The units in it now. Absent: of an older version. */
  readonly level?: number;
  /** Of its bucket: the units that it returns unused. */
  readonly left?: number;
}

export interface GiveBackMessage {
  readonly key: string;
  readonly holder: string;
  readonly turn: number;
  readonly used: Readonly<Record<string, number>>;
  /** `Reserving.left`. */
  readonly left?: Readonly<Record<string, number>>;
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
  /** Part of a batch, which must not wait: it is refused instead. */
  readonly isBatched?: true | undefined;
}

/** Decides on a cost, and takes it if every rule admits it. */
export interface LimitCall extends UnitsCall {
  readonly cost: Cost;
  readonly idempotencyKey?: string | undefined;
  /** The longest wait for its turn. Absent: no wait. */
  readonly waitMs?: number;
  /** The units are taken in any case; missing ones become a debt. */
  readonly force?: true | undefined;
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

export function unsupportedOf({ protocol = 1 }: Versioned): UnsupportedProtocol | undefined {
  return protocol > KNOWN_PROTOCOL ? { unsupported: { protocol: KNOWN_PROTOCOL } } : undefined;
}

export interface KeysCall extends Versioned {
  readonly policy: string;
  readonly prefix?: string;
  /** Only keys after this one, in the order of their bytes. */
  readonly after?: string;
  readonly most?: number;
}

/* Several calls in one message of plain JSON, decided in one turn. A call fails alone. */

/** The most calls in one message. A decision takes some 20 µs, so an object needs under 10 ms. */
export const MAX_BATCHED = 256;
/** The most UTF-16 units of a message: enough for that many calls with keys of usual length. */
export const MAX_BATCH_LENGTH = 2 ** 17;

/** A call of a batch: its messages by the names of their methods, in this order. */
export interface BatchedCall {
  readonly giveBack?: { readonly policy: string; readonly returned: readonly GiveBackMessage[] };
  readonly limit?: LimitCall;
  readonly reserve?: ReserveCall;
  readonly operation?: OperationCall;
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

export interface Batch extends Versioned {
  readonly calls: string;
  readonly sent?: Sent | undefined;
}

/** The call threw. It may have been charged. */
export interface Failed {
  readonly failed: string;
}

/** `null`: the call only returned units. */
export type MadeAnswer = Answer | null;

/** A reply to a message that says when it was sent, if the object is behind: answers, and when it wants the next message. */
export interface PacedReply<Answers> {
  readonly answers: Answers;
  /** The time until the next message, in milliseconds. */
  readonly paceMs: number;
}

export function unpaced<Answered extends object>(
  reply: Answered | PacedReply<Answered>,
  onPace?: (paceMs: number) => void,
): Answered {
  if (!("paceMs" in reply)) return reply;
  onPace?.(reply.paceMs);
  return reply.answers;
}

export type BatchedAnswer = MadeAnswer | Lease | Released | UnsupportedProtocol | Failed;

export function batchText(answers: readonly AnswerText[]): AnswerText {
  return `[${answers.join(",")}]`;
}

/*
 * How late a message arrives. A call whose caller has stopped waiting must not be decided: it would be charged for nothing,
 * and an object that has fallen behind would only fall further behind. Two machines' clocks cannot be compared, but the
 * difference between them is the same for all messages of a sender. So a message is late by as much as its difference is
 * larger than the smallest one of that sender.
 */

/** The answer to a call that was not decided: as one that failed, which all versions know. */
export const STALE = "the caller has stopped waiting: not decided";

/** Whether the call takes something for a caller. Units that are returned are taken in however late they come. */
function isForCaller({ limit, reserve, operation }: BatchedCall): boolean {
  const takes = operation?.op === "hold" || operation?.op === "lease";
  return takes || limit !== undefined || (reserve !== undefined && reserve.cost !== 0);
}

/** JSON has no Infinity. */
const MAX_LEFT_MS = 3_600_000;

/** The sending side of an isolate or process. */
export class Departures {
  readonly #makeId: () => string;
  #from = "";
  #number = 0;

  /** @param makeId not called at start-up, when a worker has no randomness */
  constructor(makeId: () => string) {
    this.#makeId = makeId;
  }

  stamp(calls: readonly { readonly untilMs: number }[], nowMs: number, number?: number): Sent {
    if (this.#from === "") this.#from = this.#makeId();
    const leftMs = calls.map(({ untilMs }) => Math.min(Math.max(0, Math.ceil(untilMs - nowMs)), MAX_LEFT_MS));
    return { from: this.#from, atMs: nowMs, leftMs, ...(number !== undefined && { number }) };
  }

  /** Of a message that may come again. */
  nextNumber(): number {
    return (this.#number += 1);
  }

  /** A call came back as stale although its caller waits: this clock was set back, or the other one forward. */
  restart(): void {
    this.#from = "";
  }
}

interface Sender {
  sinceMs: number;
  leastMs: number;
  /** The smallest difference of the period before this one. */
  beforeMs: number;
}

/** After two such periods a smallest difference is forgotten, since clocks drift. */
const PERIOD_MS = 30_000;
/** The most senders, at about 150 bytes each. Messages of further ones count as in time. */
const MAX_SENDERS = 4_096;
/** Clocks are read in whole milliseconds. */
const ROUNDING_MS = 1;

const SMOOTHING = 32;
/** An object that is so late is behind. */
const BEHIND_MS = 250;
/** After it stood still messages are later than its queue is long. */
const MAX_QUEUE_MS = 1_000;
/** An object takes some 1,000 messages a second on Cloudflare, and 800 without a queue. */
export const MESSAGE_MS = 1.25;

/** The receiving side. */
export class Arrivals {
  readonly #senders = new Map<string, Sender>();
  /** The smoothed lateness of all messages. */
  #lateMs = 0;

  get size(): number {
    return this.#senders.size;
  }

  /**
   * The time until a sender's next message, if messages come late since they wait for each other: the object has time for
   * its queue, and then for one of each sender. 0: at any time.
   */
  get paceMs(): number {
    if (this.#lateMs < BEHIND_MS) return 0;
    return Math.round(MESSAGE_MS * this.#senders.size + Math.min(MAX_QUEUE_MS, this.#lateMs));
  }

  /** Notes a message. @returns for a call at an index, whether its caller has stopped waiting */
  note(sent: Sent | undefined, nowMs: number): (call: BatchedCall, index: number) => boolean {
    if (sent === undefined) return () => false;
    const lateMs = this.#latenessOf(sent, nowMs) - ROUNDING_MS;
    this.#lateMs += (lateMs - this.#lateMs) / SMOOTHING;
    return (call, index) => lateMs > (sent.leftMs[index] ?? Infinity) && isForCaller(call);
  }

  #latenessOf({ from, atMs }: Sent, nowMs: number): number {
    const differenceMs = nowMs - atMs;
    const sender = this.#senders.get(from) ?? { sinceMs: nowMs, leastMs: Infinity, beforeMs: Infinity };
    if (nowMs < sender.sinceMs || nowMs >= sender.sinceMs + PERIOD_MS) {
      sender.beforeMs = sender.leastMs;
      sender.leastMs = Infinity;
      sender.sinceMs = nowMs;
      // Those that were heard of last are at the end.
      this.#senders.delete(from);
    }
    sender.leastMs = Math.min(sender.leastMs, differenceMs);
    this.#senders.set(from, sender);
    if (this.#senders.size > MAX_SENDERS) this.#forgetOldest();
    return differenceMs - Math.min(sender.leastMs, sender.beforeMs);
  }

  /** A sender asks another object from now on: no time is kept for its messages. */
  forget(from: string): void {
    this.#senders.delete(from);
  }

  #forgetOldest(): void {
    const [oldest = ""] = this.#senders.keys();
    this.#senders.delete(oldest);
  }
}
