/**
 * How late a message arrives. A call whose caller has stopped waiting must not be decided: it would be charged for nothing,
 * and an object that has fallen behind would only fall further behind. Two machines' clocks cannot be compared, but the
 * difference between them is the same for all messages of a sender. So a message is late by as much as its difference is
 * larger than the smallest one of that sender.
 */
import type { BatchedCall, Sent } from "./messages.ts";

/** The answer to a call that was not decided: as one that failed, which all versions know. */
export const STALE = "the caller has stopped waiting: not decided";

/** Whether the call takes something for a caller. Units that are returned are taken in however late they come. */
function isForCaller({ limit, reserve }: BatchedCall): boolean {
  return limit !== undefined || (reserve !== undefined && reserve.cost !== 0);
}

/** JSON has no Infinity. */
const MAX_LEFT_MS = 3_600_000;

/** The sending side of an isolate or process. */
export class Departures {
  readonly #makeId: () => string;
  #from = "";

  /** @param makeId not called at start-up, when a worker has no randomness */
  constructor(makeId: () => string) {
    this.#makeId = makeId;
  }

  stamp(calls: readonly { readonly untilMs: number }[], nowMs: number): Sent {
    if (this.#from === "") this.#from = this.#makeId();
    const leftMs = calls.map(({ untilMs }) => Math.min(Math.max(0, Math.ceil(untilMs - nowMs)), MAX_LEFT_MS));
    return { from: this.#from, atMs: nowMs, leftMs };
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

/** The receiving side. */
export class Arrivals {
  readonly #senders = new Map<string, Sender>();

  get size(): number {
    return this.#senders.size;
  }

  /** Notes a message. @returns for a call at an index, whether its caller has stopped waiting */
  note(sent: Sent | undefined, nowMs: number): (call: BatchedCall, index: number) => boolean {
    if (sent === undefined) return () => false;
    const lateMs = this.#lateMs(sent, nowMs) - ROUNDING_MS;
    return (call, index) => lateMs > (sent.leftMs[index] ?? Infinity) && isForCaller(call);
  }

  #lateMs({ from, atMs }: Sent, nowMs: number): number {
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

  #forgetOldest(): void {
    const [oldest = ""] = this.#senders.keys();
    this.#senders.delete(oldest);
  }
}
