import type { Policy } from "../core/policies/policy.ts";
import type { Answer } from "../core/protocol/answers.ts";
import type { Cost } from "../core/protocol/cost.ts";
import type { Decision } from "../core/protocol/decision.ts";
import { PROTOCOL, type WantedHold } from "../core/protocol/messages.ts";
import type { Problem } from "../core/protocol/problems.ts";
import { namesOf, type ObjectCalls } from "./object-calls.ts";
import { decisionOf, holdMissing, unavailable } from "./read-answer.ts";

/** The calls on holds. The key's object decides all of them. */
export class HoldClient {
  readonly #objects: ObjectCalls;

  constructor(objects: ObjectCalls) {
    this.#objects = objects;
  }

  /** Asks the object for a hold; `undefined`: the object does not answer. */
  async hold(policy: Policy, key: string, call: WantedHold): Promise<Answer | undefined> {
    // Checks on several keys have been drawn for together. In shadow nothing is shed.
    const isDrawn = call.provisional !== undefined || policy.shadow;
    const shed = isDrawn ? call.shed : await this.#objects.roll(policy, key, call);
    if (shed !== undefined && call.idempotencyKey === undefined) return { shed };
    const message = { ...this.#objects.own({ ...call, shed }), protocol: PROTOCOL, ...namesOf(policy, key) };
    const isRepeatable = call.idempotencyKey !== undefined;
    const options = { waitMs: call.provisional?.waitMs, isRepeatable };
    const asked = await this.#objects.ask(policy, key, (object) => object.hold(message), options);
    return asked?.answer;
  }

  /** Ends a hold with the units that were used. */
  async settle(policy: Policy, key: string, id: string, used: Cost): Promise<Decision | Problem> {
    const asked = await this.#objects.ask(
      policy,
      key,
      (object) => object.settle(policy.name, key, id, used),
      ENDING,
    );
    const detail = "whether the hold was settled is not known: ask again, it takes effect only once";
    return asked === undefined ? unavailable(detail) : decisionOf(policy, key, asked.answer, holdMissing);
  }

  /** Ends a hold of which no units were used. */
  async cancel(policy: Policy, key: string, id: string): Promise<Decision | Problem> {
    const asked = await this.#objects.ask(
      policy,
      key,
      (object) => object.cancel(policy.name, key, id),
      ENDING,
    );
    const detail = "whether the hold was cancelled is not known: ask again, it takes effect only once";
    return asked === undefined ? unavailable(detail) : decisionOf(policy, key, asked.answer, holdMissing);
  }
}

/** How calls are made that end what a caller has. */
const ENDING = { kind: "end", isRepeatable: true } as const;
