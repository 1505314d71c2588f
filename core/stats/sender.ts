/**
 * When an isolate sends what it has counted, and what.
 *
 * What it counts is sent 10 s after the first of it, so there is one message in 10 s at most, and one under way. Each
 * message has a number. As long as it has no answer, nobody knows whether it was counted: it is sent again as it is, with
 * the same number, and what was counted since waits for the next. So nothing is counted twice, and nothing is lost but
 * what an isolate has not sent when it is thrown away.
 *
 * Any request may be ended at any moment, so nothing here waits for a promise of another one: a message counts as lost
 * when its time is over.
 */
import type { Time } from "../clock.ts";
import { orTimeout } from "../clock.ts";
import type { StatsMessage } from "./messages.ts";
import type { Tally } from "./tally.ts";

/** There is one message in so many milliseconds at most, unless tests bind another interval. */
export const SEND_EVERY_MS = 10_000;
/** A message without an answer counts as lost when the next one is due and so many milliseconds have passed. */
const LATE_MS = 2_000;
/** How often it is checked at the end of a process whether a message is still under way. */
const POLL_MS = 25;
/** After so long a message is not sent again, in milliseconds: the object forgets senders later (ledger.ts). */
export const SENT_AGAIN_MS = 600_000;

interface UnansweredMessage {
  readonly message: StatsMessage;
  readonly sinceMs: number;
}

/** Sends what one isolate counts. */
export class StatsSender {
  readonly #tally: Tally;
  readonly #makeId: () => string;
  readonly #onLost: (error: unknown) => void;
  /** There is one message in so many milliseconds at most. */
  readonly everyMs: number;
  readonly #deadlineMs: number;
  #id = "";
  #number = 0;
  #unanswered: UnansweredMessage | undefined;
  /** From this instant on the next message may be sent. */
  #nextMs = -Infinity;
  #underWayUntilMs = -Infinity;

  /**
   * @param makeId makes a random id; called for the first message, since start-up has no randomness
   * @param onLost is told why a message has no answer
   */
  constructor(
    tally: Tally,
    makeId: () => string,
    onLost: (error: unknown) => void = () => undefined,
    everyMs = SEND_EVERY_MS,
  ) {
    this.#onLost = onLost;
    this.everyMs = everyMs;
    this.#deadlineMs = everyMs + LATE_MS;
    this.#tally = tally;
    this.#makeId = makeId;
  }

  /** Whether somebody has to see to the next message: 10 s have passed since somebody did. */
  isDue(nowMs: number): boolean {
    // A clock that was put back by much would keep everything here.
    return nowMs >= this.#nextMs || nowMs < this.#nextMs - 2 * this.everyMs;
  }

  /** Sees to the next message: it is sent at once, or after 10 s together with what comes until then. */
  async begin(time: Time, push: (message: StatsMessage) => Promise<void>, afterMs: number): Promise<void> {
    this.#nextMs = time.nowMs() + this.everyMs;
    if (afterMs > 0) await new Promise<void>((done) => time.after(afterMs, done));
    await this.send(time, push);
  }

  /** Sends what there is, now. It never throws. Returns whether nothing is left to be sent. */
  async send(time: Time, push: (message: StatsMessage) => Promise<void>): Promise<boolean> {
    const nowMs = time.nowMs();
    if (this.#isUnderWay(nowMs)) return false;
    const message = this.#nextMessage(nowMs);
    if (message === undefined) return true;
    this.#underWayUntilMs = nowMs + this.#deadlineMs;
    let isAnswered = false;
    const answered = (async () => {
      await push(message);
      isAnswered = true;
    })().catch(this.#onLost);
    await orTimeout(answered, time, this.#deadlineMs);
    // It may have come late, and another message may be under way by now.
    if (this.#unanswered?.message !== message) return false;
    this.#underWayUntilMs = -Infinity;
    if (isAnswered) this.#unanswered = undefined;
    return isAnswered;
  }

  /** Sends all that there is: the process is about to end. It never throws. */
  async sendAll(time: Time, push: (message: StatsMessage) => Promise<void>): Promise<void> {
    // First what has no answer, then what has been counted since. Another request may be sending either.
    for (let messages = 0; messages < 2; messages += 1) {
      while (this.#isUnderWay(time.nowMs())) await new Promise<void>((done) => time.after(POLL_MS, done));
      await this.send(time, push);
    }
  }

  #isUnderWay(nowMs: number): boolean {
    return nowMs < this.#underWayUntilMs && this.#underWayUntilMs - nowMs <= this.#deadlineMs;
  }

  #nextMessage(nowMs: number): StatsMessage | undefined {
    const unanswered = this.#unanswered;
    if (unanswered !== undefined && Math.abs(nowMs - unanswered.sinceMs) < SENT_AGAIN_MS)
      return unanswered.message;
    this.#unanswered = undefined;
    const content = this.#tally.take();
    if (content === undefined) return undefined;
    if (this.#id === "") this.#id = this.#makeId();
    this.#number += 1;
    const message = { ...content, sender: this.#id, number: this.#number };
    this.#unanswered = { message, sinceMs: nowMs };
    return message;
  }
}
