import type { Time } from "../../core/clock.ts";
import type { HeldPolicy } from "../../core/policies/held-policy.ts";
import type { AnswerText } from "../../core/protocol/answers.ts";
import { isForAlone, type BatchedCall, type MadeAnswer } from "../../core/protocol/batches.ts";
import type { AcquireCall, IdleCall, LimitCall, Returned } from "../../core/protocol/messages.ts";
import { objectName } from "../../core/protocol/object-names.ts";
import type { Outboxes } from "./outboxes.ts";
import type { Sending } from "./posted-call.ts";
import { askAlone, quietly, sendTogether } from "./sent-calls.ts";
import { within, type LimiterNamespace, type LimiterStub } from "./stubs.ts";

export type { LimiterNamespace, LimiterStub } from "./stubs.ts";

/** Where calls wait to travel together, and the runtime's `waitUntil` for whoever sends them. */
export interface Together extends Pick<Sending, "inBackground"> {
  readonly outboxes: Outboxes;
}

/**
 * Asks a key's object. When the object throws, hangs or is overloaded, the answer here is `undefined`, and the
 * limiter client does what the policy says. Nothing is retried here: the runtime repeats a call that never reached
 * the object, and any other call may have been counted.
 */
export class Objects {
  readonly #namespace: LimiterNamespace;
  readonly #time: Time;
  readonly #together: Together | undefined;

  /** @param together absent: each call goes alone */
  constructor(namespace: LimiterNamespace, time: Time, together?: Together) {
    this.#namespace = namespace;
    this.#time = time;
    this.#together = together;
  }

  /**
   * Makes a call that may travel with others for the same object. The answer is as of `ask`; `null`: the call only gave
   * units back. A call to a pool takes time, and others would wait for its answer, so it goes alone.
   */
  async call<Read extends MadeAnswer>(
    policy: HeldPolicy,
    key: string,
    call: BatchedCall,
    waitMs = 0,
  ): Promise<{ readonly answer: Read } | undefined> {
    const name = objectName(policy, key);
    const together = policy.pool === undefined ? this.#together : undefined;
    const outbox = together?.outboxes.open(name, this.#time.nowMs());
    const alone = (leftMs: number) =>
      this.askByName(
        policy,
        name,
        async (object) => (await askAlone(object, call)) as Read,
        leftMs - policy.deadlineMs,
      );
    const deadlineMs = policy.deadlineMs + waitMs;
    if (together === undefined || outbox === undefined) return alone(deadlineMs);
    const { answer, leftMs } = await outbox.post(call, {
      time: this.#time,
      deadlineMs,
      inBackground: together.inBackground,
      // Each of these has its own deadline.
      send: async (calls) => await this.#sendTogether(policy, name, calls).catch(unanswered(policy)),
    });
    together.outboxes.letGo(name, this.#time.nowMs());
    if (answer === undefined) return leftMs > 0 ? undefined : unanswered(policy)(overdue(deadlineMs));
    if (answer !== null && isForAlone(answer)) return alone(leftMs);
    if (answer !== null && "failed" in answer) return unanswered(policy)(answer.failed);
    return { answer: answer as Read };
  }

  /** It is async so that a stub which cannot be made is a failure as any other. */
  async #sendTogether(policy: HeldPolicy, name: string, calls: Parameters<typeof sendTogether>[1]) {
    return await sendTogether(this.#objectBy(policy, name), calls);
  }

  /**
   * Makes a call that may wait. It is a request and not an RPC, so that it ends with its caller. It also ends at its
   * deadline, so that nothing is granted late. A reservation that has ended is given back first, on the same stub.
   */
  wait<Answer>(
    policy: HeldPolicy,
    key: string,
    path: string,
    message: AcquireCall | IdleCall | LimitCall,
    read: (text: AnswerText) => Answer,
    {
      signal,
      returned = [],
    }: { readonly signal?: AbortSignal | undefined; readonly returned?: readonly Returned[] },
  ): Promise<{ readonly answer: Answer } | undefined> {
    const stop = new AbortController();
    if (signal?.aborted === true) stop.abort();
    signal?.addEventListener("abort", () => stop.abort());
    const call = async (object: LimiterStub) => {
      const init = { method: "POST", body: JSON.stringify(message), signal: stop.signal };
      const response = await object.fetch(`https://object/${path}`, init);
      if (!response.ok) throw new Error(`the object answered ${response.status}`);
      return read(await response.text());
    };
    return this.ask(policy, key, settling(policy, returned, call), message.waitMs, () => stop.abort());
  }

  /** Gives back reservations that have ended, then asks. Both go over one stub, which delivers in order. */
  askAfter<Answer>(
    returned: readonly Returned[],
    policy: HeldPolicy,
    key: string,
    call: (object: LimiterStub) => Promise<Answer>,
    waitMs = 0,
  ): Promise<{ readonly answer: Answer } | undefined> {
    return this.ask(policy, key, settling(policy, returned, call), waitMs);
  }

  /**
   * The object's answer; `undefined`: the object failed, or took longer than the policy's deadline and `waitMs`
   * together.
   *
   * @param waitMs milliseconds; below 0, so much of the deadline is over already
   */
  ask<Answer>(
    policy: HeldPolicy,
    key: string,
    call: (object: LimiterStub) => Promise<Answer>,
    waitMs = 0,
    onDeadline?: () => void,
  ): Promise<{ readonly answer: Answer } | undefined> {
    return this.askByName(policy, objectName(policy, key), call, waitMs, onDeadline);
  }

  /** The same for the object of the policy that has this name. */
  async askByName<Answer>(
    policy: HeldPolicy,
    name: string,
    call: (object: LimiterStub) => Promise<Answer>,
    waitMs: number,
    onDeadline: () => void = () => undefined,
  ): Promise<{ readonly answer: Answer } | undefined> {
    try {
      const deadlineMs = policy.deadlineMs + waitMs;
      return { answer: await this.#inTime(call(this.#objectBy(policy, name)), deadlineMs, onDeadline) };
    } catch (error) {
      return unanswered(policy)(error);
    }
  }

  /** Waits for the call until the deadline. After that the object may still carry it out; the answer is dropped. */
  #inTime<Answer>(call: Promise<Answer>, deadlineMs: number, onDeadline: () => void): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const cancel = this.#time.after(deadlineMs, () => {
        onDeadline();
        reject(overdue(deadlineMs));
      });
      call.then(
        (answer) => {
          cancel();
          resolve(answer);
        },
        (error: unknown) => {
          cancel();
          reject(error);
        },
      );
    });
  }

  /** A new stub for each call: a stub that has thrown stays broken, and a stub may not be used by another request. */
  objectOf(policy: HeldPolicy, key: string): LimiterStub {
    return this.#objectBy(policy, objectName(policy, key));
  }

  #objectBy(policy: HeldPolicy, name: string): LimiterStub {
    const hint = policy.locationHint ?? policy.region?.locationHint;
    return within(this.#namespace, policy).getByName(name, hint && { locationHint: hint });
  }
}

/** The call, before which a reservation that has ended is given back. */
function settling<Answer>(
  policy: HeldPolicy,
  returned: readonly Returned[],
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

/** The one place at which a failure becomes the value that there is no answer. */
function unanswered({ name }: HeldPolicy): (error: unknown) => undefined {
  return (error) => {
    console.warn(`policy ${name}: no answer from the object: ${String(error)}`);
    return undefined;
  };
}

function overdue(deadlineMs: number): Error {
  return new Error(`deadline of ${deadlineMs} ms passed`);
}
