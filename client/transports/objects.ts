import type { Time } from "../../core/clock.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { AcquireCall, AnswerText, IdleCall, Returned } from "../../core/protocol/messages.ts";
import type { LimiterMethods } from "../../core/protocol/object-methods.ts";
import { objectName } from "./object-names.ts";

/** A reservation that has ended, to be settled with the object of its key. */
export interface Ending {
  readonly policy: Policy;
  readonly returned: Returned;
}

/** The object's methods as a caller has them: every call is a message. */
export type LimiterStub = {
  [Method in keyof LimiterMethods]: (
    ...args: Parameters<LimiterMethods[Method]>
  ) => Promise<Awaited<ReturnType<LimiterMethods[Method]>>>;
} & { fetch(url: string, init: RequestInit): Promise<Response> };

/** The binding OBJECTS, as far as it is used; the runtime's own type loses the unions of what comes back. */
export interface LimiterNamespace {
  getByName(name: string, options?: { readonly locationHint?: DurableObjectLocationHint }): LimiterStub;
}

/**
 * Asks a key's object. The one place where a level beneath that throws, hangs or is overloaded becomes an
 * answer, `undefined`, and the limiter client makes of it what the policy says. There is no retry
 * here: the runtime repeats what never reached the object, and anything else may have been counted.
 */
export class Objects {
  readonly #namespace: LimiterNamespace;
  readonly #time: Time;

  constructor(namespace: LimiterNamespace, time: Time) {
    this.#namespace = namespace;
    this.#time = time;
  }

  /**
   * A call that waits is a request, which ends with its caller; and with its deadline, so that nothing is granted
   * late.
   */
  wait<Answer>(
    policy: Policy,
    key: string,
    path: string,
    message: AcquireCall | IdleCall,
    read: (text: AnswerText) => Answer,
    signal?: AbortSignal,
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
    return this.ask(policy, key, call, message.waitMs, () => stop.abort());
  }

  /** Asks, and before that settles a reservation that has ended. One stub delivers in order. */
  askAfter<Answer>(
    returned: Returned | undefined,
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<Answer>,
    waitMs = 0,
  ): Promise<{ readonly answer: Answer } | undefined> {
    if (returned === undefined) return this.ask(policy, key, call, waitMs);
    const settleAndCall = async (object: LimiterStub) => {
      const settled = quietly(object.giveBack(policy.name, [returned]));
      const answer = await call(object);
      await settled;
      return answer;
    };
    return this.ask(policy, key, settleAndCall, waitMs);
  }

  /** The object's answer; `undefined` when it failed or took longer than the policy's deadline. */
  async ask<Answer>(
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<Answer>,
    waitMs = 0,
    onDeadline: () => void = () => undefined,
  ): Promise<{ readonly answer: Answer } | undefined> {
    try {
      const deadlineMs = policy.deadlineMs + waitMs;
      return { answer: await this.#inTime(call(this.objectOf(policy, key)), deadlineMs, onDeadline) };
    } catch (error) {
      console.warn(`policy ${policy.name}: no answer from the object: ${String(error)}`);
      return undefined;
    }
  }

  /** A call that is not waited for any longer may still be carried out; its answer is dropped. */
  #inTime<Answer>(call: Promise<Answer>, deadlineMs: number, onDeadline: () => void): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const cancel = this.#time.after(deadlineMs, () => {
        onDeadline();
        reject(new Error(`deadline of ${deadlineMs} ms passed`));
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

  /** A new stub each time: one that has thrown stays broken, and none may cross requests. */
  objectOf(policy: Policy, key: string): LimiterStub {
    const hint = policy.region?.locationHint;
    const name = objectName(policy, key);
    return hint === undefined
      ? this.#namespace.getByName(name)
      : this.#namespace.getByName(name, { locationHint: hint });
  }
}

/** What is not settled counts as used: that need not fail the call it comes with. */
async function quietly(settled: Promise<void>): Promise<void> {
  try {
    await settled;
  } catch (error) {
    console.warn(`units were not given back: ${String(error)}`);
  }
}

/** Settles reservations that have ended: one message for all of an object. What does not arrive counts as used. */
export async function giveBack(objects: Objects, endings: readonly Ending[]): Promise<void> {
  const byObject = Map.groupBy(endings, ({ policy, returned }) => objectName(policy, returned.key));
  await Promise.all(
    [...byObject.values()].map(async (each) => {
      const [first] = each;
      if (first === undefined) return;
      const { policy, returned } = first;
      const all = each.map((ending) => ending.returned);
      await objects.ask(policy, returned.key, (object) => object.giveBack(policy.name, all));
    }),
  );
}
