/** One isolate whose requests call one object, in virtual time. */
import { BatchQueue, type Message, type QueuedCall } from "../../client/transports/batch-queue.ts";
import type { Answers } from "../../client/transports/send-batch.ts";
import type { Time } from "../../core/clock.ts";
import { type BatchedCall, MAX_BATCHED } from "../../core/protocol/messages.ts";
import { VirtualTime } from "../simulation/virtual-time.ts";

export const DEADLINE_MS = 300;

/** A mistake that is made on purpose. */
export interface Breakage {
  readonly answers?: (answers: Answers) => Answers;
  /** Takes a request's clock, and gives one that does not do all of its timers. */
  readonly clock?: (time: Time) => Time;
}

/** A law that does not hold. */
export class BrokenLaw extends Error {}
export function law(holds: boolean, text: string): void {
  if (!holds) throw new BrokenLaw(text);
}

export const callOf = (key: string): BatchedCall => ({ limit: { policy: "api", key, cost: 1 } });
const keyOf = ({ call }: Pick<QueuedCall, "call">) => call.limit?.key ?? "";

/** One isolate whose requests call one object. */
export class History {
  // Long chains of promises have to settle between two instants.
  readonly time = new VirtualTime(() => new Promise((done) => setImmediate(done)));
  readonly queue = new BatchQueue();
  readonly messages: { readonly atMs: number; readonly keys: readonly string[] }[] = [];
  /** By number, of messages that may come again. */
  readonly numbered: string[] = [];
  again = 0;
  readonly sent = new Set<string>();
  readonly left = new Set<string>();
  answered = 0;
  unanswered = 0;
  died = 0;
  open = 0;
  readonly #breakage: Breakage;
  readonly #mayRepeat: boolean;

  constructor(breakage: Breakage = {}, mayRepeat = false) {
    this.#breakage = breakage;
    this.#mayRepeat = mayRepeat;
  }

  /** A request with one call, that may end after `diesAfterMs`. `fate` is how its messages fare, if it sends any. */
  call(
    key: string,
    fate: () => { backMs?: number; isFailed?: boolean },
    diesAfterMs = Infinity,
  ): Promise<void> {
    const startMs = this.time.nowMs;
    const isGone = () => this.time.nowMs >= startMs + diesAfterMs;
    const clock = this.time.clock({ ms: 0 }, isGone);
    const time = this.#breakage.clock?.(clock) ?? clock;
    this.open += 1;
    if (diesAfterMs < Infinity)
      this.time.at(startMs + diesAfterMs, () => {
        if (this.left.has(key)) return;
        this.left.add(key);
        this.died += 1;
        this.open -= 1;
      });
    const send = (calls: readonly QueuedCall[], message: Message) =>
      this.#send(calls, fate(), isGone, message);
    return this.queue
      .post(callOf(key), { time, deadlineMs: DEADLINE_MS, send, inBackground: () => undefined })
      .then(({ answer }) => {
        if (isGone()) return;
        this.left.add(key);
        this.open -= 1;
        const tookMs = this.time.nowMs - startMs;
        law(tookMs <= DEADLINE_MS, `a call took ${tookMs} ms`);
        if (answer === undefined || (answer !== null && "overloaded" in answer)) this.unanswered += 1;
        else {
          this.answered += 1;
          law(JSON.stringify(answer).includes(`"${key}"`), `${key} got the answer ${JSON.stringify(answer)}`);
        }
      });
  }

  #send(
    calls: readonly QueuedCall[],
    { backMs, isFailed = false }: { backMs?: number; isFailed?: boolean },
    isGone: () => boolean,
    message: Message,
  ): Promise<Answers | undefined> {
    const keys = calls.map(keyOf);
    this.messages.push({ atMs: this.time.nowMs, keys });
    law(keys.length <= MAX_BATCHED, "too many calls in a message");
    const { number } = message;
    if (number !== undefined) {
      law(this.numbered[number] === keys.join(), `message ${number} came again with other calls`);
      this.again += 1;
    } else
      for (const key of keys) {
        law(!this.sent.has(key), `${key} was sent twice`);
        this.sent.add(key);
      }
    if (this.#mayRepeat && number === undefined) message.number = this.numbered.push(keys.join()) - 1;
    return new Promise((done) => {
      if (backMs === undefined) return;
      this.time.at(this.time.nowMs + backMs, () => {
        if (isGone()) return;
        const answers: Answers = keys.map((key) => ({ rules: [], key }) as never);
        done(isFailed ? undefined : (this.#breakage.answers?.(answers) ?? answers));
      });
    });
  }
}

/** Calls one after the other, each answered after `backMs`: the round trip is then known. */
export function warm(history: History, backMs: number, calls = 20): number {
  for (let call = 0; call < calls; call += 1)
    history.time.at(call * 2 * backMs, () => void history.call(`warm-${call}`, () => ({ backMs })));
  return calls * 2 * backMs;
}
