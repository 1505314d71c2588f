import { type Time, type Attempts, DeadlineError, inTime, overdue } from "../../core/clock.ts";
import { type LocationHint, type PolicyView, publicName } from "../../core/policies/policy.ts";
import type { AnswerText } from "../../core/protocol/answers.ts";
import type { AcquireCall, IdleCall, LimitCall, GiveBackMessage } from "../../core/protocol/calls.ts";
import {
  STALE,
  type BatchedCall,
  type BatchedAnswer,
  type CallAnswer,
} from "../../core/protocol/messages.ts";
import { objectName, regionalName } from "../../core/protocol/names.ts";
import type { Counter } from "../../core/stats/tally.ts";
import { type BatchQueues, type Overloaded, OVERLOADED_TEXT, type Sending } from "./batch-queue.ts";
import {
  type Failure,
  FailureLog,
  askAlone,
  isOverloaded,
  isRepeatable,
  mayPass,
  type LimiterNamespace,
  type LimiterStub,
  quietly,
  isEnding,
  isForAlone,
  isKnownAgain,
  sendTwice,
  within,
} from "./send-batch.ts";

export type { LimiterNamespace, LimiterStub } from "./send-batch.ts";

interface Together extends Pick<Sending, "inBackground"> {
  readonly queues: BatchQueues;
}

/** An answer; `undefined`: the object failed, or exceeded its deadline. */
export type Reply<Answer> = { readonly answer: Answer } | undefined;

interface AskOptions extends Pick<Attempts, "onDeadline"> {
  /** The call takes effect once, however often it is made, so a failed attempt may be repeated. */
  readonly isRepeatable?: boolean | undefined;
  readonly kind?: MessageKind;
  /** Milliseconds added to the policy's deadline; negative: that part is already over. */
  readonly waitMs?: number | undefined;
  /** Ended reservations, which are returned before the call on the same stub: it delivers in order. */
  readonly returned?: readonly GiveBackMessage[] | undefined;
  /** It ends a claim, which frees units: it is sent although the object is overloaded. */
  readonly isEnd?: boolean;
  /** Where the object is to be near. Absent: as the policy says. */
  readonly region?: LocationHint | undefined;
  /** Aborted when the caller has left: what ends with it is no failure of the object. */
  readonly signal?: AbortSignal | undefined;
}

/**
 * Calls to a key's object. If it throws, hangs or is overloaded, the answer is `undefined`, and the policy's
 * `onFailure` applies. A call that reached the object may have been counted, so it is repeated only if it
 * takes effect once: see send-batch.ts.
 */
export class Objects {
  /** An invocation may have six waiting connections. Two are left for the request's own calls. */
  readonly mostAtOnce = 4;
  readonly #namespace: LimiterNamespace;
  readonly #time: Time;
  readonly #together: Together | undefined;
  readonly #counter: MessageCounter | undefined;
  readonly #failures: FailureLog;

  /** @param together absent: each call is sent alone */
  constructor(namespace: LimiterNamespace, time: Time, together?: Together, reports: MessageReports = {}) {
    this.#namespace = namespace;
    this.#time = time;
    this.#together = together;
    this.#counter = reports.counter;
    this.#failures = new FailureLog(time, reports.unanswered ?? warn);
  }

  /** Makes a call as `ask`, possibly in a batch, except to a slow pool. `null`: it only returned units. */
  async call<Read extends CallAnswer>(
    policy: PolicyView,
    key: string,
    call: BatchedCall,
    waitMs = 0,
    region?: LocationHint,
  ): Promise<Reply<Read>> {
    const name = nameIn(policy, key, region);
    const { operation } = call;
    const isEnd = operation !== undefined && isEnding(operation);
    const together = policy.pool === undefined ? this.#together : undefined;
    const queue = together?.queues.open(name, this.#time.nowMs());
    // In a batch they are said once.
    const { terms } = policy;
    const byItself =
      operation && terms !== undefined ? { ...call, operation: { ...operation, terms } } : call;
    const alone = (leftMs: number) =>
      this.askByName(policy, name, async (object) => madeIn<Read>(await askAlone(object, byItself)), {
        waitMs: leftMs - policy.deadlineMs,
        isRepeatable: isRepeatable(call),
        isEnd,
        region,
      });
    const deadlineMs = policy.deadlineMs + waitMs;
    if (together === undefined || queue === undefined) return alone(deadlineMs);
    const { answer, leftMs } = await queue.post(call, {
      time: this.#time,
      deadlineMs,
      inBackground: together.inBackground,
      // Each of these has its own deadline.
      send: async (calls, message) => {
        if (isKnownAgain(calls, policy.terms)) message.number ??= together.queues.departures.nextNumber();
        return await counted(this.#counter, this.#time, "batch", () =>
          sendTwice(
            () => this.#objectBy(policy, name, region),
            calls,
            this.#time,
            policy.terms,
            (each, nowMs) => together.queues.departures.stamp(each, nowMs, message.number),
            (paceMs) => {
              queue.congestion.follow(paceMs, this.#time.nowMs());
              this.#counter?.lasted("object_pace_seconds", [publicName(policy.name)], paceMs);
            },
          ),
        ).catch((error: unknown) =>
          isOverloaded(error) ? REFUSED : this.unanswered(policy, error, calls.length),
        );
      },
    });
    together.queues.release(name, this.#time.nowMs());
    if (answer === undefined) return leftMs > 0 ? undefined : this.unanswered(policy, overdue(deadlineMs));
    if (answer !== null && "overloaded" in answer)
      return isEnd && answer !== REFUSED ? alone(leftMs) : this.unanswered(policy, OVERLOADED_TEXT);
    // An object of an older version only takes back the units that come with an operation.
    if (answer === null ? operation !== undefined : isForAlone(answer)) return alone(leftMs);
    if (answer !== null && "failed" in answer) {
      if (answer.failed === STALE) together.queues.departures.restart();
      return this.unanswered(policy, answer.failed);
    }
    this.#failures.flush();
    return { answer: answer as Read };
  }

  /**
   * Makes a call as a request instead of an RPC, so that it ends with its caller, and at its deadline, so
   * that nothing is granted late.
   */
  wait<Answer>(
    policy: PolicyView,
    key: string,
    path: string,
    message: AcquireCall | IdleCall | LimitCall,
    read: (text: AnswerText) => Answer,
    { signal, returned }: Pick<AskOptions, "returned" | "signal">,
  ): Promise<Reply<Answer>> {
    const stop = new AbortController();
    if (signal?.aborted === true) stop.abort();
    signal?.addEventListener("abort", () => stop.abort());
    const call = async (object: LimiterStub) => {
      const init = { method: "POST", body: JSON.stringify(message), signal: stop.signal };
      const response = await object.fetch(`https://object/${path}`, init);
      if (!response.ok) throw new Error(`the object answered ${response.status}`);
      return read(await response.text());
    };
    // A call that only reads, or that has an idempotency key, takes effect once.
    const { idempotencyKey } = message as { readonly idempotencyKey?: string };
    const isTwice = path === "idle" || idempotencyKey !== undefined;
    const attempts = { isRepeatable: isTwice, onDeadline: () => stop.abort(), signal };
    return this.ask(policy, key, call, { ...attempts, waitMs: message.waitMs, returned, kind: "wait" });
  }

  /** The object's answer, within the policy's deadline plus `waitMs`. */
  ask<Answer>(
    policy: PolicyView,
    key: string,
    call: (object: LimiterStub) => Promise<Answer>,
    { returned = [], ...options }: AskOptions = {},
  ): Promise<Reply<Answer>> {
    return this.askByName(policy, objectName(policy, key), settling(policy, returned, call), options);
  }

  /** `ask` for the policy's object of this name. */
  async askByName<Answer>(
    policy: PolicyView,
    name: string,
    call: (object: LimiterStub) => Promise<Answer>,
    {
      waitMs = 0,
      kind = "single",
      isEnd,
      isRepeatable: isTwice,
      onDeadline,
      region,
      signal,
    }: AskOptions = {},
  ): Promise<Reply<Answer>> {
    const queues = this.#together?.queues;
    const sentMs = this.#time.nowMs();
    const deadlineMs = policy.deadlineMs + waitMs;
    if (isEnd !== true && queues?.find(name)?.congestion.admits(sentMs, deadlineMs) === false)
      return this.unanswered(policy, OVERLOADED_TEXT);
    try {
      // A stub that has thrown stays broken, so each attempt has its own.
      const attempt = async () => await call(this.#objectBy(policy, name, region));
      const mayRepeat = isTwice === true ? mayPass : undefined;
      const send = () => inTime(this.#time, deadlineMs, attempt, { mayRepeat, onDeadline });
      const answer = await counted(this.#counter, this.#time, kind, send);
      const congestion = queues?.find(name)?.congestion;
      // How long a call waited for its turn says nothing of the round trip.
      if (kind === "wait") congestion?.restore();
      else congestion?.answered(this.#time.nowMs() - sentMs, deadlineMs);
      this.#failures.flush();
      return { answer };
    } catch (error) {
      if (signal?.aborted === true) return undefined;
      const nowMs = this.#time.nowMs();
      if (isOverloaded(error) || error instanceof DeadlineError)
        queues?.open(name, nowMs)?.congestion.miss(nowMs, isOverloaded(error));
      return this.unanswered(policy, error);
    }
  }

  /** A new stub for each call: other requests may not use it, and after a throw it stays broken. */
  objectOf(policy: PolicyView, key: string): LimiterStub {
    return this.#objectBy(policy, objectName(policy, key));
  }

  /** The one place at which a failure becomes "no answer". */
  unanswered({ name }: PolicyView, error?: unknown, calls = 1): undefined {
    const cause = String(error);
    this.#failures.note(error === undefined ? undefined : cause, calls, name);
  }

  #objectBy(policy: PolicyView, name: string, region?: LocationHint): LimiterStub {
    const hint = region ?? policy.locationHint ?? policy.region?.locationHint;
    return within(this.#namespace, policy).getByName(name, hint && { locationHint: hint });
  }
}

/** The object was asked, and is overloaded: what was sent to it is not sent again. */
const REFUSED: Overloaded = { overloaded: true };

/** @throws Error when the call failed there */
function madeIn<Read extends CallAnswer>(answer: BatchedAnswer): Read {
  if (answer !== null && "failed" in answer) throw new Error(answer.failed);
  return answer as Read;
}

/** @param region present: the key's object there */
function nameIn(policy: PolicyView, key: string, region: LocationHint | undefined): string {
  const home = objectName(policy, key);
  return region === undefined ? home : regionalName(home, region);
}

function settling<Answer>(
  policy: PolicyView,
  returned: readonly GiveBackMessage[],
  call: (object: LimiterStub) => Promise<Answer>,
): (object: LimiterStub) => Promise<Answer> {
  if (returned.length === 0) return call;
  return async (object) => {
    const given = quietly(object.giveBack(policy.name, returned));
    const answer = await call(object);
    await given;
    return answer;
  };
}

function warn({ cause, calls, seconds }: Failure, policy: string): void {
  const since = seconds === undefined ? "" : ` for ${calls} calls in the last ${seconds} s`;
  console.warn(`policy ${policy}: no answer from the object${since}: ${cause}`);
}

type MessageCounter = Pick<Counter, "add" | "lasted">;

interface MessageReports {
  readonly counter?: MessageCounter | undefined;
  /** Reports calls without an answer. Absent: on the console. */
  readonly unanswered?: (failure: Failure, policy: string) => void;
}

/** Kinds of messages in the counts: several calls, one call, or one that may wait. */
type MessageKind = "batch" | "single" | "wait";

async function counted<Answer>(
  counter: MessageCounter | undefined,
  time: Time,
  kind: MessageKind,
  send: () => Promise<Answer>,
): Promise<Answer> {
  if (counter === undefined) return await send();
  const sinceMs = time.nowMs();
  counter.add("object_messages", [kind]);
  try {
    const answer = await send();
    if (kind !== "wait") counter.lasted("object_latency_seconds", [kind], time.nowMs() - sinceMs);
    return answer;
  } catch (error) {
    counter.add("object_unanswered", [kind]);
    throw error;
  }
}
