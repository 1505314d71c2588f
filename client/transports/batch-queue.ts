/**
 * The calls of one isolate for one object. They travel together: one goes at once, and those that come while its
 * message is under way go with the next.
 *
 * Whoever finds that nobody sends becomes the sender, for itself and for the others. Its request may end at any moment:
 * its client leaves, or the runtime ends it, and then none of its code runs any more. So requests share plain data only,
 * and whoever waits has timers of its own, by which it looks: is there an answer (a wake can get lost when the request
 * that gives it ends just then), does somebody send, is the deadline over. Whoever leaves is not sent any more.
 *
 * A message that fails has no answers. Its calls may have been charged, so nobody sends them again.
 */
import { orTimeout, type Time } from "../../core/clock.ts";
import type { UnsupportedProtocol } from "../../core/protocol/answers.ts";
import {
  type BatchedAnswer,
  type BatchedCall,
  isForAlone,
  MAX_BATCH_LENGTH,
  MAX_BATCHED,
} from "../../core/protocol/messages.ts";
import type { Full } from "../../core/protocol/problems.ts";

/**
 * A message that has been under way for so long holds up nobody: whoever waits sends the next one. It is all that a
 * call loses when the sender's request ends, and the most that a far object's slow answers add to the calls behind it.
 */
export const LOOK_MS = 25;
/** Whoever's call has been sent looks for its answer so often, should its wake get lost. */
const ANSWER_LOOK_MS = 250;
/** A sender goes on for so many messages, or so long, then another one sends: an invocation may make 50 calls only. */
const MAX_MESSAGES = 32;
const MAX_SENDING_MS = 1_000;
/** After an object did not know batches, calls for it go alone for so long. A deployment takes minutes. */
const ALONE_MS = 10_000;

/** Settles when a message has been answered. */
interface Step {
  readonly promise: Promise<void>;
  readonly resolve: () => void;
}

/** Whoever sends. */
interface Sender {
  /** When its last message left. */
  sinceMs: number;
  /** Settles when that has been answered, if the sender still lives. */
  step: Step;
}

const OBJECT_BOUNDS: MessageBounds = { mostCalls: MAX_BATCHED, mostLength: MAX_BATCH_LENGTH };

export class BatchQueue<Answer extends object | null = BatchedAnswer> {
  readonly #bounds: MessageBounds;
  /** In order of arrival. */
  readonly #queued = new Set<QueuedCall<Answer>>();
  /** Whoever sends, and since when its last message has been under way. */
  #sender: Sender | undefined;
  #aloneUntilMs = -Infinity;

  constructor(bounds = OBJECT_BOUNDS) {
    this.#bounds = bounds;
  }

  /** Whether calls for this object go alone, because it does not know batches. */
  isForAlone(nowMs: number): boolean {
    return nowMs < this.#aloneUntilMs;
  }

  /** How many calls wait to be sent. */
  get queued(): number {
    return this.#queued.size;
  }

  /** Whether nothing is lost when it is forgotten. Calls of requests that have ended may be left in it. */
  isIdle(nowMs: number): boolean {
    for (const { untilMs } of this.#queued) if (nowMs <= untilMs) return false;
    return !this.isForAlone(nowMs) && this.#isFree(nowMs);
  }

  /** Makes a call: it is sent by this request or by another, and ends with its deadline at the latest. */
  async post(call: BatchedCall, request: Sending<Answer>): Promise<QueuedAnswer<Answer>> {
    const { time, deadlineMs } = request;
    let leftMs = deadlineMs;
    const posted = new QueuedCall<Answer>(call, time.nowMs() + deadlineMs);
    this.#queued.add(posted);
    while (posted.state !== "ended" && leftMs > 0) {
      if (posted.state === "queued" && this.#isFree(time.nowMs())) void this.#send(request);
      const mostMs = posted.state === "queued" ? LOOK_MS : ANSWER_LOOK_MS;
      leftMs -= await this.#step(posted, time, Math.min(mostMs, leftMs));
    }
    const { answer } = posted;
    this.#queued.delete(posted);
    posted.end(undefined);
    return { answer, leftMs: Math.max(0, leftMs) };
  }

  /**
   * Waits for the answer to the call's message, or for the sender's next step, for `ms` milliseconds at most. Returns how
   * long that was. The promise is the sender's own: one of this request that another request settled would go on in that
   * other request.
   */
  async #step({ step }: QueuedCall<Answer>, time: Time, ms: number): Promise<number> {
    const sinceMs = time.nowMs();
    let isOver = false;
    const watch: Time = {
      nowMs: () => time.nowMs(),
      after: (afterMs, work) =>
        time.after(afterMs, () => {
          isOver = true;
          work();
        }),
    };
    await orTimeout(step ?? this.#sender?.step.promise ?? new Promise(() => undefined), watch, ms);
    // The clock may have been set meanwhile.
    return isOver ? ms : Math.min(ms, Math.max(0, time.nowMs() - sinceMs));
  }

  #isFree(nowMs: number): boolean {
    if (this.#sender === undefined) return true;
    const underWayMs = nowMs - this.#sender.sinceMs;
    // Requests may read slightly different times. A clock that is so far behind was put back.
    return Math.abs(underWayMs) >= LOOK_MS;
  }

  /** Sends what is queued, until nothing is. */
  async #send({ time, send, inBackground }: Sending<Answer>): Promise<void> {
    const beganMs = time.nowMs();
    const sender: Sender = { sinceMs: beganMs, step: newStep() };
    this.#sender = sender;
    let end: (() => void) | undefined;
    const keep = () => {
      if (end === undefined) inBackground(new Promise<void>((done) => (end = done)));
    };
    // All calls that this turn of the event loop makes go together: those of one request, for example.
    await Promise.resolve();
    for (let messages = 0; messages < MAX_MESSAGES && this.#sender === sender; messages += 1) {
      const nowMs = time.nowMs();
      const calls = nowMs - beganMs > MAX_SENDING_MS ? [] : this.#take(nowMs, sender);
      if (calls.length === 0) break;
      sender.sinceMs = nowMs;
      // A request that sends only its own call is kept by its own wait. It ends when that is answered.
      if (calls.length > 1) keep();
      const answers = await send(calls);
      if (this.#queued.size > 0) keep();
      if (answers !== undefined && !isList(answers)) this.#aloneUntilMs = time.nowMs() + ALONE_MS;
      for (const [index, posted] of calls.entries())
        posted.end(answers === undefined || !isList(answers) ? answers : answers[index]);
      if (this.#queued.size === 0) break;
      const { step } = sender;
      sender.step = newStep();
      step.resolve();
      // Requests that were answered together call again together: those calls go with these.
      await new Promise<void>((done) => time.after(0, done));
    }
    if (this.#sender === sender) this.#sender = undefined;
    sender.step.resolve();
    end?.();
  }

  /** Takes the calls for the next message. Those whose requests have ended are left out: nobody is charged for them. */
  #take(nowMs: number, { step }: Sender): QueuedCall<Answer>[] {
    const calls: QueuedCall<Answer>[] = [];
    const { mostCalls, mostLength } = this.#bounds;
    const isAlone = this.#queued.size === 1;
    let length = 1;
    for (const posted of this.#queued) {
      if (nowMs > posted.untilMs) {
        this.#queued.delete(posted);
        posted.end(undefined);
        continue;
      }
      if (!isAlone) length += posted.length + 1;
      if (calls.length === mostCalls || (calls.length > 0 && length > mostLength)) break;
      this.#queued.delete(posted);
      posted.state = "sent";
      posted.step = step.promise;
      calls.push(posted);
    }
    return calls;
  }
}

function isList<Answer>(
  answers: readonly Answer[] | UnsupportedProtocol | Full,
): answers is readonly Answer[] {
  return !isForAlone(answers);
}

/** Node 20 has no Promise.withResolvers. */
function newStep(): Step {
  let resolve = () => {};
  const promise = new Promise<void>((done) => (resolve = done));
  return { promise, resolve };
}

/** The most outboxes, at about 200 bytes each and what waits in them. Calls for further objects go alone. */
const MAX_OUTBOXES = 4_096;
/** When there are so many, those that requests have left behind are looked for no more often than this. */
const SWEEP_MS = 1_000;

/** The outboxes of one isolate by the names of their objects. An object has one only while calls for it are made. */
export class BatchQueues {
  readonly #outboxes = new Map<string, BatchQueue>();
  #sweptMs = -Infinity;

  get size(): number {
    return this.#outboxes.size;
  }

  /** The outbox for calls to an object; `undefined`: a call goes alone. */
  open(name: string, nowMs: number): BatchQueue | undefined {
    const known = this.#outboxes.get(name);
    if (known !== undefined) return known.isForAlone(nowMs) ? undefined : known;
    if (this.#outboxes.size >= MAX_OUTBOXES) this.#sweep(nowMs);
    if (this.#outboxes.size >= MAX_OUTBOXES) return undefined;
    const outbox = new BatchQueue();
    this.#outboxes.set(name, outbox);
    return outbox;
  }

  /** A call has ended: an outbox that nobody needs is forgotten. */
  release(name: string, nowMs: number): void {
    if (this.#outboxes.get(name)?.isIdle(nowMs) === true) this.#outboxes.delete(name);
  }

  #sweep(nowMs: number): void {
    if (nowMs >= this.#sweptMs && nowMs < this.#sweptMs + SWEEP_MS) return;
    this.#sweptMs = nowMs;
    for (const name of this.#outboxes.keys()) this.release(name, nowMs);
  }
}

/** What a request brings with it. None of it is used by another request. */
export interface Sending<Answer = BatchedAnswer> {
  readonly time: Time;
  readonly deadlineMs: number;
  /** Sends calls in one message, on a stub of its own; `undefined`: there is no answer. It does not reject. */
  readonly send: (
    calls: readonly QueuedCall<Answer>[],
  ) => Promise<readonly Answer[] | UnsupportedProtocol | Full | undefined>;
  readonly inBackground: (work: Promise<unknown>) => void;
}

/** What came of a call; `undefined`: no answer. `leftMs` is what is left of its deadline: 0 when that is over. */
export interface QueuedAnswer<Answer = BatchedAnswer> {
  readonly answer: Answer | UnsupportedProtocol | Full | undefined;
  readonly leftMs: number;
}

/** A call that waits to be sent, or for its answer. */
export class QueuedCall<Answer = BatchedAnswer> {
  readonly call: BatchedCall;
  /** From then on nobody waits for it. */
  readonly untilMs: number;
  state: "queued" | "sent" | "ended" = "queued";
  /** Settles when the message has been answered in which it was sent, if the sender still lives. */
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

  /** At least as many as the bytes of the text in UTF-8. */
  get length(): number {
    return ASCII.test(this.text) ? this.text.length : 3 * this.text.length;
  }

  /** Ends the call with its answer. */
  end(answer: QueuedAnswer<Answer>["answer"]): void {
    if (this.state === "ended") return;
    this.state = "ended";
    this.answer = answer;
  }
}

/** How much goes in one message at most. */
export interface MessageBounds {
  readonly mostCalls: number;
  /** Of all calls as JSON text, where a character that is not ASCII counts three times: as many bytes as it may take. */
  readonly mostLength: number;
}

/** JSON text has no control characters. */
const ASCII = /^[ -~]*$/;
