/**
 * The messages from clients (isolates) to an object: their versions, calls in one message, and how late one comes. Old and
 * new versions exchange them during a rollout: fields are only added, as optional, never renamed. A change that an older
 * object would misread needs a higher `PROTOCOL`.
 */
import type { Answer, AnswerText, Lease, Released, Slots, UnsupportedProtocol, Young } from "./answers.ts";
import type { GiveBackMessage, LimitCall, OperationCall, ReserveCall, Sent, Versioned } from "./calls.ts";

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

/** The version of a `limit` with an `Attempt`. Objects of lower versions would not store its denial. */
export const ATTEMPT_PROTOCOL = 8;

/** The highest known version. 4 is `MOVE_PROTOCOL`. */
export const KNOWN_PROTOCOL = ATTEMPT_PROTOCOL;

export function unsupportedOf({ protocol = 1 }: Versioned): UnsupportedProtocol | undefined {
  return protocol > KNOWN_PROTOCOL ? { unsupported: { protocol: KNOWN_PROTOCOL } } : undefined;
}

/* Slots of a key that a holder leases by itself (`SlotsCall`). */

/** How often a holder asks, until the object wants to hear of it more rarely. */
export const PACE_MS = 500;
/** The longest lease of a holder: its slot is taken for so long after the holder has gone. Longer ones are the object's. */
export const MAX_YOUNG_MS = 10_000;
/** The longest time for which a holder may be silent: see `SlotsCall.rest`. */
export const MAX_REST_MS = 15_000;

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

/** The answer to a call of a batch that was made. */
export type CallAnswer = MadeAnswer | Lease | Released | Slots | Young;

export type BatchedAnswer = CallAnswer | UnsupportedProtocol | Failed;

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
    return (call, index) => {
      const leftMs = sent.leftMs[index] ?? Infinity;
      // A message that comes again has calls that nobody waits for any more.
      return (leftMs <= 0 || lateMs > leftMs) && isForCaller(call);
    };
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
