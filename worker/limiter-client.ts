import type { Policy } from "../durable-objects/policies.ts";
import { readAnswer, type AnswerText, type LimiterMethods } from "../durable-objects/protocol.ts";
import { decisionOf, degradedDecision } from "./decisions.ts";
import { objectName } from "./keys.ts";
import { Problem, PROBLEMS } from "./problems.ts";
import type { Decision, KeyReport } from "./schemas.ts";

/** The object's methods as a caller has them: every call is a message. */
type LimiterStub = {
  [Method in keyof LimiterMethods]: (
    ...args: Parameters<LimiterMethods[Method]>
  ) => Promise<ReturnType<LimiterMethods[Method]>>;
};

/** The binding OBJECTS, as far as it is used; the runtime's own type loses the unions of what comes back. */
export interface LimiterNamespace {
  getByName(name: string): LimiterStub;
}

/**
 * Asks a key's object. The one place where a level beneath that throws, hangs or is overloaded becomes an
 * answer: a decision that cannot be had is made by the policy's `onFailure` and says so. There is no retry
 * here: the runtime repeats what never reached the object, and anything else may have been counted.
 */
export class LimiterClient {
  readonly #namespace: LimiterNamespace;

  constructor(namespace: LimiterNamespace) {
    this.#namespace = namespace;
  }

  async limit(
    policy: Policy,
    key: string,
    cost: number,
    idempotencyKey?: string,
  ): Promise<Decision | Problem> {
    const asked = await this.#ask(policy, key, (object) =>
      // An argument that is `undefined` is sent too, so it is left out.
      idempotencyKey === undefined
        ? object.limit(policy.name, key, cost)
        : object.limit(policy.name, key, cost, idempotencyKey),
    );
    return asked === undefined ? degradedDecision(policy, key) : decisionIn(policy, key, asked.answer);
  }

  async refund(
    policy: Policy,
    key: string,
    units: number,
    idempotencyKey: string,
  ): Promise<Decision | Problem> {
    const asked = await this.#ask(policy, key, (object) =>
      object.refund(policy.name, key, units, idempotencyKey),
    );
    const detail = "whether the units were given back is not known: ask again with the same idempotencyKey";
    return asked === undefined ? unavailable(detail) : decisionIn(policy, key, asked.answer);
  }

  async peek(policy: Policy, key: string): Promise<KeyReport | Problem> {
    const asked = await this.#ask(policy, key, (object) => object.peek(policy.name, key));
    if (asked === undefined) return unavailable("ask again");
    const { rules, outstanding } = asked.answer;
    return { ...decisionOf(policy, key, rules), outstanding };
  }

  async reset(policy: Policy, key: string): Promise<Problem | undefined> {
    const asked = await this.#ask(policy, key, (object) => object.reset(policy.name, key));
    return asked === undefined ? unavailable("whether the key was reset is not known: ask again") : undefined;
  }

  /** The object's answer; `undefined` when it failed or took longer than the policy's deadline. */
  async #ask<Answer>(
    policy: Policy,
    key: string,
    call: (object: LimiterStub) => Promise<Answer>,
  ): Promise<{ readonly answer: Answer } | undefined> {
    try {
      // A new stub each time: one that has thrown stays broken, and none may cross requests.
      const object = this.#namespace.getByName(objectName(policy, key));
      return { answer: await withinDeadline(call(object), policy.deadlineMs) };
    } catch (error) {
      console.warn(`policy ${policy.name}: no answer from the object: ${String(error)}`);
      return undefined;
    }
  }
}

/** A call that is not waited for any longer may still be carried out; its answer is dropped. */
function withinDeadline<Answer>(call: Promise<Answer>, deadlineMs: number): Promise<Answer> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`deadline of ${deadlineMs} ms passed`)), deadlineMs);
    call.then(
      (answer) => {
        clearTimeout(timer);
        resolve(answer);
      },
      (error: unknown) => {
        clearTimeout(timer);
        reject(error);
      },
    );
  });
}

function decisionIn(policy: Policy, key: string, text: AnswerText): Decision | Problem {
  const answer = readAnswer(text);
  if (!("conflict" in answer)) return decisionOf(policy, key, answer.rules);
  const detail = `the idempotency key stands for a ${answer.conflict.request}: use another for another request`;
  return new Problem(PROBLEMS.idempotencyConflict, detail, {
    errors: [{ pointer: "/idempotencyKey", detail }],
  });
}

function unavailable(detail: string): Problem {
  return new Problem(PROBLEMS.unavailable, detail);
}
