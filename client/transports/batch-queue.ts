/**
 * The calls of one isolate to one object, sent in batches. If no batch is in flight, this request sends the
 * queue; calls that come meanwhile go with the next batch.
 *
 * The sending request may end at any moment: its client leaves, or the runtime ends it. So requests share
 * only plain data, and each polls by its own timer for an answer (its wake may be lost), the sender's end,
 * and its deadline. Calls of ended requests are dropped. Calls of a failed batch may have been charged, so
 * they are not sent again.
 */
import { orTimeout, type Time } from "../../core/clock.ts";
import type { UnsupportedProtocol } from "../../core/protocol/answers.ts";
import {
  type BatchedAnswer,
  type BatchedCall,
  MAX_BATCH_LENGTH,
  MAX_BATCHED,
} from "../../core/protocol/messages.ts";
import type { Full } from "../../core/protocol/problems.ts";

/** A batch in flight delays the next by this at most: the cost of an ended sender or slow object. */
export const POLL_MS = 25;
/** The interval at which a sent call polls for its answer, in case its wake is lost. */
const ANSWER_POLL_MS = 250;
/** After this many batches, or this time, another request sends. An invocation may make 50 calls. */
const MAX_MESSAGES = 32;
const MAX_SENDING_MS = 1_000;
/** How long calls to an object without batches go alone. A deployment takes minutes. */
const ALONE_MS = 10_000;

/** Node 20 has no Promise.withResolvers. */
interface Step {
  readonly promise: Promise<void>;
  readonly resolve: () => void;
}

interface Sender {
  sinceMs: number;
  /** Resolves when that has been answered, if the sender still lives. */
  step: Step;
}

const OBJECT_BOUNDS: MessageBounds = { maxCalls: MAX_BATCHED, maxLength: MAX_BATCH_LENGTH };

export class BatchQueue<Answer extends object | null = BatchedAnswer> {
  readonly #bounds: MessageBounds;
  readonly #queued = new Set<QueuedCall<Answer>>();
  #sender: Sender | undefined;
  #aloneUntilMs = -Infinity;

  constructor(bounds = OBJECT_BOUNDS) {
    this.#bounds = bounds;
  }

  /** Whether calls for this object go alone, because it does not know batches. */
  isForAlone(nowMs: number): boolean {
    return nowMs < this.#aloneUntilMs;
  }

  get queued(): number {
    return this.#queued.size;
  }

  /** Whether it can be dropped. Calls of ended requests may be left in it. */
  isIdle(nowMs: number): boolean {
    for (const { untilMs } of this.#queued) if (nowMs <= untilMs) return false;
    return !this.isForAlone(nowMs) && this.#isFree(nowMs);
  }

  /** Makes a call: this request or another sends it, and its deadline ends it. */
  async post(call: BatchedCall, request: Sending<Answer>): Promise<QueuedAnswer<Answer>> {
    const { time, deadlineMs } = request;
    let leftMs = deadlineMs;
    const posted = new QueuedCall<Answer>(call, time.nowMs() + deadlineMs);
    this.#queued.add(posted);
    while (posted.state !== "ended" && leftMs > 0) {
      if (posted.state === "queued" && this.#isFree(time.nowMs())) void this.#send(request);
      const maxMs = posted.state === "queued" ? POLL_MS : ANSWER_POLL_MS;
      leftMs -= await this.#step(posted, time, Math.min(maxMs, leftMs));
    }
    const { answer } = posted;
    this.#queued.delete(posted);
    posted.end(undefined);
    return { answer, leftMs: Math.max(0, leftMs) };
  }

  /**
   * Waits up to `ms` for the answer or the sender's next step, and returns the time waited. It awaits the
   * sender's promise: settling a promise of this request elsewhere would continue in the other request.
   */
  async #step({ step }: QueuedCall<Answer>, time: Time, ms: number): Promise<number> {
    const sinceMs = time.nowMs();
    let isOver = false;
    const after: Time["after"] = (afterMs, work) =>
      time.after(afterMs, () => {
        isOver = true;
        work();
      });
    const next = step ?? this.#sender?.step.promise ?? new Promise(() => undefined);
    await orTimeout(next, { nowMs: () => time.nowMs(), after }, ms);
    // The clock may have been set meanwhile.
    return isOver ? ms : Math.min(ms, Math.max(0, time.nowMs() - sinceMs));
  }

  #isFree(nowMs: number): boolean {
    if (this.#sender === undefined) return true;
    const underWayMs = nowMs - this.#sender.sinceMs;
    // Requests may read slightly different times. A clock further behind was put back.
    return Math.abs(underWayMs) >= POLL_MS;
  }

  async #send({ time, send, inBackground }: Sending<Answer>): Promise<void> {
    const beganMs = time.nowMs();
    const sender: Sender = { sinceMs: beganMs, step: newStep() };
    this.#sender = sender;
    let end: (() => void) | undefined;
    const keep = () => {
      if (end === undefined) inBackground(new Promise<void>((done) => (end = done)));
    };
    // All calls made in this turn of the event loop go together, e.g. those of one request.
    await Promise.resolve();
    for (let messages = 0; messages < MAX_MESSAGES && this.#sender === sender; messages += 1) {
      const nowMs = time.nowMs();
      const calls = nowMs - beganMs > MAX_SENDING_MS ? [] : this.#take(nowMs, sender);
      if (calls.length === 0) break;
      sender.sinceMs = nowMs;
      // A request that sends only its own call is kept alive by its own wait.
      if (calls.length > 1) keep();
      const answers = await send(calls);
      if (this.#queued.size > 0) keep();
      const isList = answers !== undefined && "length" in answers;
      if (answers !== undefined && !isList) this.#aloneUntilMs = time.nowMs() + ALONE_MS;
      for (const [index, posted] of calls.entries()) posted.end(isList ? answers[index] : answers);
      if (this.#queued.size === 0) break;
      const { step } = sender;
      sender.step = newStep();
      step.resolve();
      // Requests that were answered together call again together: these calls join the batch.
      await new Promise<void>((done) => time.after(0, done));
    }
    if (this.#sender === sender) this.#sender = undefined;
    sender.step.resolve();
    end?.();
  }

  /** Takes the calls for the next batch. Calls of ended requests are dropped, uncharged. */
  #take(nowMs: number, { step }: Sender): QueuedCall<Answer>[] {
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
      posted.step = step.promise;
      calls.push(posted);
    }
    return calls;
  }
}

function newStep(): Step {
  let resolve = () => {};
  const promise = new Promise<void>((done) => (resolve = done));
  return { promise, resolve };
}

/** The most queues, at about 200 bytes each plus their calls. Calls to further objects go alone. */
const MAX_QUEUES = 4_096;
/** At that number, the interval at which queues of ended requests are swept. */
const SWEEP_MS = 1_000;

/** The queues of one isolate by object name. An object has one only during calls to it. */
export class BatchQueues {
  readonly #queues = new Map<string, BatchQueue>();
  #sweptMs = -Infinity;

  get size(): number {
    return this.#queues.size;
  }

  /** The queue for calls to an object; `undefined`: a call goes alone. */
  open(name: string, nowMs: number): BatchQueue | undefined {
    const known = this.#queues.get(name);
    if (known !== undefined) return known.isForAlone(nowMs) ? undefined : known;
    if (this.#queues.size >= MAX_QUEUES) this.#sweep(nowMs);
    if (this.#queues.size >= MAX_QUEUES) return undefined;
    const queue = new BatchQueue();
    this.#queues.set(name, queue);
    return queue;
  }

  /** A call has ended: drops its queue if it is idle. */
  release(name: string, nowMs: number): void {
    if (this.#queues.get(name)?.isIdle(nowMs) === true) this.#queues.delete(name);
  }

  #sweep(nowMs: number): void {
    if (nowMs >= this.#sweptMs && nowMs < this.#sweptMs + SWEEP_MS) return;
    this.#sweptMs = nowMs;
    for (const name of this.#queues.keys()) this.release(name, nowMs);
  }
}

/** The sending parts of a request; no other request uses them. */
export interface Sending<Answer = BatchedAnswer> {
  readonly time: Time;
  readonly deadlineMs: number;
  /** Sends calls in one message, on its own stub; `undefined`: no answer. It does not reject. */
  readonly send: (
    calls: readonly QueuedCall<Answer>[],
  ) => Promise<readonly Answer[] | UnsupportedProtocol | Full | undefined>;
  readonly inBackground: (work: Promise<unknown>) => void;
}

/** The answer to a call; `undefined`: none. `leftMs` is the rest of its deadline. */
export interface QueuedAnswer<Answer = BatchedAnswer> {
  readonly answer: Answer | UnsupportedProtocol | Full | undefined;
  readonly leftMs: number;
}

/** A call that waits to be sent, or for its answer. */
export class QueuedCall<Answer = BatchedAnswer> {
  readonly call: BatchedCall;
  readonly untilMs: number;
  state: "queued" | "sent" | "ended" = "queued";
  /** Settles when its batch has been answered, if the sender still lives. */
  step: Promise<void> | undefined;
  answer: QueuedAnswer<Answer>["answer"];
  #text: string | undefined;

  constructor(call: BatchedCall, untilMs: number) {
    this.call = call;
    this.untilMs = untilMs;
  }

  get text(): string {
    this.#text ??= JSON.stringify(this.call);
    return this.#text;
  }

  /** An upper bound on the UTF-8 bytes of the text. */
  get length(): number {
    return ASCII.test(this.text) ? this.text.length : 3 * this.text.length;
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
