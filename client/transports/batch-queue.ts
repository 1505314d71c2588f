/**
 * The calls of one isolate to one object, sent in batches. If no batch is in flight, this request sends the
 * queue; calls that come meanwhile go with the next batch, or with a further one as soon as that is full.
 *
 * The sending request may end at any moment: its client leaves, or the runtime ends it. So requests share
 * only plain data and latches, and each looks by its own timer for an answer (its wake may be lost), the sender's
 * end, and its deadline. Calls of ended requests are dropped. A batch that is overdue is sent again with its number, by
 * which the object knows it. Calls of one that failed may have been charged, so they are not sent again.
 */
import { Latch, randomId, type Time } from "../../core/clock.ts";
import type { UnsupportedProtocol } from "../../core/protocol/answers.ts";
import {
  Departures,
  type BatchedAnswer,
  type BatchedCall,
  MAX_BATCH_LENGTH,
  MAX_BATCHED,
} from "../../core/protocol/messages.ts";
import type { Full } from "../../core/protocol/problems.ts";
import { CongestionControl } from "./congestion-control.ts";

/** After this many batches, or this time, another request sends. An invocation may make 50 calls. */
const MAX_MESSAGES = 32;
const MAX_SENDING_MS = 1_000;
/** How often one message is sent: of ten that are lost on either way, one in a thousand has no answer then. */
const MAX_SENDS = 3;
/** How long calls to an object without batches go alone. A deployment takes minutes. */
const ALONE_MS = 10_000;

/** After so many calls went together, the first call within this time waits for others: 32 callers sent 1 and 31 calls. */
const MIN_TOGETHER = 4;
const AGAIN_MS = 20;

interface Sender {
  /** When the batch in flight was sent, and after how long it is overdue, so that another request may send. */
  sinceMs: number;
  overdueMs: number;
  /** The number of the batch in flight; -1 before the first. */
  batch: number;
  /**
   * By number, for the batch in flight and those that the queue will take: opened when the batch has been answered, if
   * the sender still lives. So a call wakes up for its own batch, and not for each one.
   */
  readonly steps: Latch[];
}

const OBJECT_BOUNDS: MessageBounds = { maxCalls: MAX_BATCHED, maxLength: MAX_BATCH_LENGTH };

export class BatchQueue<Answer extends object | null = BatchedAnswer> {
  /** How fast messages are sent to the object. */
  readonly congestion: CongestionControl;
  readonly #bounds: MessageBounds;
  readonly #queued = new Set<QueuedCall<Answer>>();
  #sender: Sender | undefined;
  #count = 0;
  /** Until when each message in flight is not overdue. */
  #flights: number[] = [];
  #aloneUntilMs = -Infinity;
  #gathersUntilMs = 0;

  constructor(bounds = OBJECT_BOUNDS, congestion = new CongestionControl()) {
    this.#bounds = bounds;
    this.congestion = congestion;
  }

  /** Whether calls for this object go alone, because it does not know batches. */
  isForAlone(nowMs: number): boolean {
    return nowMs < this.#aloneUntilMs;
  }

  /** Whether a full message is queued. */
  get #isFilled(): boolean {
    return this.#queued.size >= this.#bounds.maxCalls;
  }

  get queued(): number {
    return this.#queued.size;
  }

  /** Whether it can be dropped. Calls of ended requests may be left in it. */
  isIdle(nowMs: number): boolean {
    for (const { untilMs } of this.#queued) if (nowMs <= untilMs) return false;
    return !this.isForAlone(nowMs) && nowMs >= this.#gathersUntilMs && this.#isFree(nowMs);
  }

  /** Makes a call: this request or another sends it, and its deadline ends it. */
  async post(call: BatchedCall, request: Sending<Answer>): Promise<QueuedAnswer<Answer>> {
    const { time, deadlineMs } = request;
    const isLate = this.congestion.untilNextMs(time.nowMs()) >= deadlineMs;
    if (isLate || !this.congestion.admits(time.nowMs(), deadlineMs))
      return { answer: OVERLOADED, leftMs: deadlineMs };
    let leftMs = deadlineMs;
    const posted = new QueuedCall<Answer>(call, time.nowMs() + deadlineMs, (this.#count += 1));
    this.#queued.add(posted);
    while (posted.state !== "ended" && leftMs > 0) {
      if (posted.state === "queued" && this.#isFree(time.nowMs())) void this.#send(request, call);
      const maxMs = posted.state === "queued" ? this.#pollMs(posted, time.nowMs()) : leftMs;
      leftMs -= await (posted.step ?? this.#stepOf(posted)).wait(time, Math.min(maxMs, leftMs));
      if (posted.state === "queued" && this.congestion.isPaused(time.nowMs())) posted.end(OVERLOADED);
    }
    this.#queued.delete(posted);
    posted.end(undefined);
    const isOver = posted.answer === undefined && time.nowMs() > posted.untilMs;
    return { answer: posted.answer, leftMs: isOver ? 0 : Math.max(0, leftMs) };
  }

  /** The answer to the batch that will take this queued call, if no call ahead of it leaves. */
  #stepOf({ number }: QueuedCall<Answer>): Latch {
    const { steps = [], batch = 0 } = this.#sender ?? {};
    return steps[Math.min(batch + 1 + this.#batchesAhead(number), steps.length - 1)] ?? new Latch();
  }

  /** When a queued call looks whether the sender has ended: the first in the queue sooner than those behind it. */
  #pollMs({ number }: QueuedCall<Answer>, nowMs: number): number {
    return (
      Math.max(1, this.#untilFreeMs(nowMs)) + this.#batchesAhead(number) * (this.#sender?.overdueMs ?? 0)
    );
  }

  #batchesAhead(number: number): number {
    const [first] = this.#queued;
    return Math.floor((number - (first?.number ?? number)) / this.#bounds.maxCalls);
  }

  #isFree(nowMs: number): boolean {
    return this.#untilFreeMs(nowMs) <= 0 || this.#isFull(nowMs);
  }

  /** Whether a full message waits, which another request may send at once: a far object would be called too rarely. */
  #isFull(nowMs: number): boolean {
    if (!this.#isFilled || this.#sender?.batch === -1 || this.congestion.untilNextMs(nowMs) > 0) return false;
    this.#flights = this.#flights.filter((untilMs) => nowMs < untilMs);
    return this.#flights.length < this.congestion.maxFlights;
  }

  /** When another request may send, if the batch in flight is not answered. */
  #untilFreeMs(nowMs: number): number {
    const nextMs = this.congestion.untilNextMs(nowMs);
    if (this.#sender === undefined) return nextMs;
    const { sinceMs, overdueMs } = this.#sender;
    // Requests may read slightly different times. A clock further behind was put back.
    return Math.max(nextMs, overdueMs - Math.abs(nowMs - sinceMs));
  }

  async #send(
    { time, send, inBackground, deadlineMs }: Sending<Answer>,
    { limit, reserve, operation }: BatchedCall,
  ): Promise<void> {
    const beganMs = time.nowMs();
    const overdueMs = this.congestion.overdueMs(beganMs, deadlineMs);
    const sender: Sender = { sinceMs: beganMs, overdueMs, batch: -1, steps: [] };
    this.#sender = sender;
    this.#extend(sender);
    let end: (() => void) | undefined;
    const keep = () => {
      if (end === undefined) inBackground(new Promise<void>((done) => (end = done)));
    };
    // All calls made in this turn of the event loop go together, e.g. those of one request.
    await (beganMs < this.#gathersUntilMs && this.#gather(time));
    while (sender.batch + 1 < MAX_MESSAGES && this.#sender === sender) {
      const nowMs = time.nowMs();
      sender.batch += 1;
      this.#extend(sender);
      const calls = nowMs - beganMs > MAX_SENDING_MS ? [] : this.#take(nowMs, sender);
      if (calls.length === 0) break;
      sender.sinceMs = nowMs;
      sender.overdueMs = this.congestion.overdueMs(nowMs, deadlineMs);
      const flightMs = nowMs + sender.overdueMs;
      this.#flights.push(flightMs);
      // A request that sends only its own call is kept alive by its own wait.
      if (calls.length > 1) keep();
      const { answers, isAgain } = await this.#deliver(calls, sender, { time, deadlineMs, send });
      this.#note(answers, isAgain, time.nowMs(), nowMs, deadlineMs);
      const flight = this.#flights.indexOf(flightMs);
      if (flight >= 0) this.#flights.splice(flight, 1);
      if (this.#queued.size > 0) keep();
      if (calls.length >= MIN_TOGETHER) this.#gathersUntilMs = time.nowMs() + AGAIN_MS;
      const isList = answers !== undefined && "length" in answers;
      for (const [index, posted] of calls.entries()) posted.end(isList ? answers[index] : answers);
      if (this.#queued.size === 0 || this.congestion.untilNextMs(time.nowMs()) > 0) break;
      // A request that gives back units does so to many objects: it is not to send the calls of others to each.
      if (!(limit ?? reserve ?? operation)) break;
      sender.steps[sender.batch]?.open();
      await this.#gather(time);
    }
    if (this.#sender === sender) this.#sender = undefined;
    for (const step of sender.steps) step.open();
    end?.();
  }

  /** Requests that were answered together call again together: their calls join the batch. */
  #gather(time: Time): Promise<void> {
    return new Promise((done) => time.after(this.#isFilled ? 0 : this.congestion.gatherMs, done));
  }

  /** Sends a message, and again each time it is overdue while its calls wait, if the object then answers it as before. */
  #deliver(
    calls: readonly QueuedCall<Answer>[],
    sender: Sender,
    { time, deadlineMs, send }: Pick<Sending<Answer>, "time" | "deadlineMs" | "send">,
  ): Promise<{ readonly answers: Replied<Answer>; readonly isAgain: boolean }> {
    return new Promise((done) => {
      const message: Message = {};
      let sends = 0;
      let stop: (() => void) | undefined;
      const attempt = (): void => {
        const sentMs = time.nowMs();
        sends += 1;
        // If this request ends, nobody knows whether the object is slow, so nothing is counted as missed.
        stop = time.after(sender.overdueMs, () => {
          const nowMs = time.nowMs();
          // One message is missed once, however often it was sent: the object may only be slow.
          if (sends === 1) this.congestion.missMessage(sentMs, nowMs);
          const isAwaited = calls.some(({ state, untilMs }) => state === "sent" && nowMs < untilMs);
          const mayRepeat = message.number !== undefined && sends < MAX_SENDS;
          if (!mayRepeat || !isAwaited || this.congestion.isPaused(nowMs)) return;
          sender.sinceMs = nowMs;
          sender.overdueMs = Math.min(
            deadlineMs,
            sender.overdueMs + this.congestion.overdueMs(nowMs, deadlineMs),
          );
          attempt();
        });
        void send(calls, message).then((answers) => {
          stop?.();
          done({ answers, isAgain: sends > 1 });
        });
      };
      attempt();
    });
  }

  /** A step for the batch in flight, and for each that the queue will take. */
  #extend({ batch, steps }: Sender): void {
    const last = batch + 1 + Math.ceil(this.#queued.size / this.#bounds.maxCalls);
    while (steps.length <= Math.min(last, MAX_MESSAGES)) steps.push(new Latch());
  }

  #note(answers: object | undefined, isAgain: boolean, nowMs: number, sentMs: number, maxMs: number): void {
    if (answers === undefined) return;
    if ("overloaded" in answers) this.congestion.miss(nowMs, true);
    // Nobody knows which of its messages was answered (Karn's algorithm).
    else if (isAgain) this.congestion.restore();
    else {
      const isUsed = this.#isFilled && this.#flights.length >= this.congestion.maxFlights;
      this.congestion.answered(nowMs - sentMs, maxMs, isUsed);
    }
    if ("unsupported" in answers || "full" in answers) this.#aloneUntilMs = nowMs + ALONE_MS;
  }

  /** Takes the calls for the next batch. Calls of ended requests are dropped, uncharged. */
  #take(nowMs: number, { steps, batch }: Sender): QueuedCall<Answer>[] {
    const calls: QueuedCall<Answer>[] = [];
    const { maxCalls, maxLength } = this.#bounds;
    const isAlone = this.#queued.size === 1;
    let length = 1;
    for (const posted of this.#queued) {
      if (nowMs > posted.untilMs) {
        this.#queued.delete(posted);
        posted.end(undefined);
        continue;
      }
      if (!isAlone) length += posted.length + 1;
      if (calls.length === maxCalls || (calls.length > 0 && length > maxLength)) break;
      this.#queued.delete(posted);
      posted.state = "sent";
      posted.step = steps[batch];
      calls.push(posted);
    }
    return calls;
  }
}

/** The most queues, at about 200 bytes each plus their calls. Calls to further objects go alone. */
const MAX_QUEUES = 4_096;
/** At that number, the interval at which queues of ended requests are swept. */
const SWEEP_MS = 1_000;

/** The queues of one isolate by object name. A near object that answers has one only during calls to it. */
export class BatchQueues {
  readonly #queues = new Map<string, BatchQueue>();
  readonly #congestion = new CongestionControl();
  readonly #onPause: (() => void) | undefined;
  /** When this isolate's messages were sent. */
  readonly departures = new Departures(randomId);
  #sweptMs = -Infinity;

  /** @param onPause called when an object is overloaded, or has answered nothing in time */
  constructor(onPause?: () => void) {
    this.#onPause = onPause;
  }

  get size(): number {
    return this.#queues.size;
  }

  /** The queue of an object, if there is one: it knows how fast it answers. */
  find(name: string): BatchQueue | undefined {
    return this.#queues.get(name);
  }

  /** The queue for calls to an object; `undefined`: a call goes alone. */
  open(name: string, nowMs: number): BatchQueue | undefined {
    const known = this.#queues.get(name);
    if (known !== undefined) return known.isForAlone(nowMs) ? undefined : known;
    if (this.#queues.size >= MAX_QUEUES) this.#sweep(nowMs);
    if (this.#queues.size >= MAX_QUEUES) return undefined;
    const queue = new BatchQueue(OBJECT_BOUNDS, new CongestionControl(this.#congestion, this.#onPause));
    this.#queues.set(name, queue);
    return queue;
  }

  /** A call has ended: drops its queue if it is idle, and what it knows of its object need not be kept. */
  release(name: string, nowMs: number): void {
    const queue = this.#queues.get(name);
    if (queue?.congestion.isUsual === true && queue.isIdle(nowMs)) this.#queues.delete(name);
  }

  #sweep(nowMs: number): void {
    if (Math.abs(nowMs - this.#sweptMs) < SWEEP_MS) return;
    this.#sweptMs = nowMs;
    for (const [name, queue] of this.#queues) if (queue.isIdle(nowMs)) this.#queues.delete(name);
  }
}

/** `undefined`: no answer. */
type Replied<Answer> = readonly Answer[] | UnsupportedProtocol | Full | Overloaded | undefined;

/** Sent again with the same number, it has no other effect. Absent: it may have. */
export interface Message {
  number?: number | undefined;
}

/** The sending parts of a request; no other request uses them. */
export interface Sending<Answer = BatchedAnswer> {
  readonly time: Time;
  readonly deadlineMs: number;
  /** Sends calls in one message, on its own stub. It does not reject. */
  readonly send: (calls: readonly QueuedCall<Answer>[], message: Message) => Promise<Replied<Answer>>;
  readonly inBackground: (work: Promise<unknown>) => void;
}

/** The answer to a call; `undefined`: none. `leftMs` is the rest of its deadline, by the clock if a timer was late. */
export interface QueuedAnswer<Answer = BatchedAnswer> {
  readonly answer: Answer | UnsupportedProtocol | Full | Overloaded | undefined;
  readonly leftMs: number;
}

/** The object is overloaded: the runtime says so, or it has answered nothing in time. The call may not have been sent. */
export interface Overloaded {
  readonly overloaded: true;
}

export const OVERLOADED: Overloaded = { overloaded: true };
export const OVERLOADED_TEXT = "it is overloaded: calls are not sent for a while";

/** A call that waits to be sent, or for its answer. */
export class QueuedCall<Answer = BatchedAnswer> {
  readonly call: BatchedCall;
  readonly untilMs: number;
  /** Rises with each call of the queue. */
  readonly number: number;
  state: "queued" | "sent" | "ended" = "queued";
  /** Opened when its batch has been answered, if the sender still lives. */
  step: Latch | undefined;
  answer: QueuedAnswer<Answer>["answer"];
  #text: string | undefined;

  constructor(call: BatchedCall, untilMs: number, number = 0) {
    this.call = call;
    this.untilMs = untilMs;
    this.number = number;
  }

  get text(): string {
    this.#text ??= JSON.stringify(this.call);
    return this.#text;
  }

  /** An upper bound on the UTF-8 bytes of the text. */
  get length(): number {
    return this.text.length * (ASCII.test(this.text) ? 1 : 3);
  }

  end(answer: QueuedAnswer<Answer>["answer"]): void {
    if (this.state === "ended") return;
    this.state = "ended";
    this.answer = answer;
  }
}

export interface MessageBounds {
  readonly maxCalls: number;
  /** Characters of all calls as JSON text. One outside ASCII counts as three, the most bytes it may take. */
  readonly maxLength: number;
}

/** JSON text has no control characters. */
const ASCII = /^[ -~]*$/;
