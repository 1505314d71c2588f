import type { Time } from "../../core/clock.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { AnswerText } from "../../core/protocol/answers.ts";
import type { AcquireCall, IdleCall, LimitCall, Returned } from "../../core/protocol/messages.ts";
import type { LimiterMethods } from "../../core/protocol/object-methods.ts";
import { objectName } from "./object-names.ts";

/** A reservation that has ended. The object of its key has to be told. */
export interface Ending {
  readonly policy: Policy;
  readonly returned: Returned;
}

/** The object's methods as a client calls them: each call is a message, so each answer is a promise. */
export type LimiterStub = {
  [Method in keyof LimiterMethods]: (
    ...args: Parameters<LimiterMethods[Method]>
  ) => Promise<Awaited<ReturnType<LimiterMethods[Method]>>>;
} & { fetch(url: string, init: RequestInit): Promise<Response> };

/** The part of the binding OBJECTS that is used. The runtime's own type for it loses unions in the answers. */
export interface LimiterNamespace {
  getByName(name: string, options?: { readonly locationHint?: DurableObjectLocationHint }): LimiterStub;
}

/**
 * Asks a key's object. When the object throws, hangs or is overloaded, the answer here is `undefined`, and the
 * limiter client does what the policy says. Nothing is retried here: the runtime repeats a call that never reached
 * the object, and any other call may have been counted.
 */
export class Objects {
  readonly #namespace: LimiterNamespace;
  readonly #time: Time;

  constructor(namespace: LimiterNamespace, time: Time) {
    this.#namespace = namespace;
    this.#time = time;
  }

  /**
   * Makes a call that may wait. It is a request and not an RPC, so that it ends with its caller. It also ends at its
   * deadline, so that nothing is granted late. A reservation that has ended is given back first, on the same stub.
   */
  wait<Answer>(
    policy: Policy,
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
    policy: Policy,
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
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<Answer>,
    waitMs = 0,
    onDeadline?: () => void,
  ): Promise<{ readonly answer: Answer } | undefined> {
    return this.askByName(policy, objectName(policy, key), call, waitMs, onDeadline);
  }

  /** The same for the object of the policy that has this name. */
  async askByName<Answer>(
    policy: Policy,
    name: string,
    call: (object: LimiterStub) => Promise<Answer>,
    waitMs: number,
    onDeadline: () => void = () => undefined,
  ): Promise<{ readonly answer: Answer } | undefined> {
    try {
      const deadlineMs = policy.deadlineMs + waitMs;
      return { answer: await this.#inTime(call(this.#objectBy(policy, name)), deadlineMs, onDeadline) };
    } catch (error) {
      console.warn(`policy ${policy.name}: no answer from the object: ${String(error)}`);
      return undefined;
    }
  }

  /** Waits for the call until the deadline. After that the object may still carry it out; the answer is dropped. */
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

  /** A new stub for each call: a stub that has thrown stays broken, and a stub may not be used by another request. */
  objectOf(policy: Policy, key: string): LimiterStub {
    return this.#objectBy(policy, objectName(policy, key));
  }

  #objectBy(policy: Policy, name: string): LimiterStub {
    const hint = policy.region?.locationHint;
    return hint === undefined
      ? this.#namespace.getByName(name)
      : this.#namespace.getByName(name, { locationHint: hint });
  }
}

/** The call, before which a reservation that has ended is given back. */
function settling<Answer>(
  policy: Policy,
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

/** Waits, and only logs a failure: units that are not given back count as used, but the call after that may go on. */
async function quietly(settled: Promise<void>): Promise<void> {
  try {
    await settled;
  } catch (error) {
    console.warn(`units were not given back: ${String(error)}`);
  }
}

/** Gives back ended reservations, with one message for each object. If it is lost, the units count as used. */
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
