import type { Layout } from "../../core/policies/layouts.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Unsupported } from "../../core/protocol/answers.ts";
import {
  MOST_MOVED,
  MOVE_PROTOCOL,
  type AskedKey,
  type Handed,
  type HandedOver,
} from "../../core/protocol/moves.ts";
import { layoutsOf, objectName } from "../../core/protocol/object-names.ts";
import type { MovesHost } from "./host.ts";

/** What another object has said of a key, and what its clock was. */
export interface Heard {
  readonly handed: Handed | "older";
  readonly nowMs: number;
  readonly layouts: readonly Layout[];
}

/** A key to be asked for with the next message. */
interface Question extends PromiseWithResolvers<Heard> {
  readonly asked: AskedKey;
}

/** Asks other objects for keys. Keys that are asked for in one turn go in one message to each object. */
export class Questions {
  readonly #host: Pick<MovesHost, "places" | "time">;
  /** By the name of the object that is asked. */
  readonly #questions = new Map<string, Question[]>();

  constructor(host: Pick<MovesHost, "places" | "time">) {
    this.#host = host;
  }

  ask(policy: Policy, name: string, asked: AskedKey): Promise<Heard> {
    const question: Question = { asked, ...Promise.withResolvers<Heard>() };
    const waiting = this.#questions.get(name);
    if (waiting !== undefined) waiting.push(question);
    else {
      this.#questions.set(name, [question]);
      // Calls of one batch are made in one turn: their keys go together.
      void Promise.resolve().then(() => this.#askAll(policy, name));
    }
    return question.promise;
  }

  async #askAll(policy: Policy, name: string): Promise<void> {
    const questions = this.#questions.get(name) ?? [];
    this.#questions.delete(name);
    while (questions.length > 0) {
      const some = questions.slice(0, MOST_MOVED);
      try {
        const heard = await this.#inTime(policy, this.#handOver(policy, name, some));
        for (const [index, each] of heard.entries()) some[index]?.resolve(each);
        questions.splice(0, heard.length);
      } catch (error) {
        for (const { reject } of questions.splice(0)) reject(error);
      }
    }
  }

  async #handOver(policy: Policy, name: string, questions: readonly Question[]): Promise<readonly Heard[]> {
    const [first] = questions;
    const isOwn = (objects: Policy["objects"]) =>
      this.#host.places.isHere(objectName({ name: policy.name, objects }, first?.asked.key ?? ""));
    const layout = layoutsOf(policy).find(isOwn) ?? policy.objects;
    const keys = questions.map(({ asked }) => asked);
    const text = await this.#host.places.objectAt(name).reserve({
      protocol: MOVE_PROTOCOL,
      handOver: { policy: policy.name, layout, keys },
    });
    const answer = JSON.parse(text) as HandedOver | Unsupported;
    if ("unsupported" in answer) return questions.map(() => ({ handed: "older", nowMs: 0, layouts: [] }));
    if (answer.keys.length === 0) throw new Error(`the object ${name} handed nothing over`);
    const { nowMs, layouts: known } = answer;
    return answer.keys.map((handed) => ({ handed, nowMs, layouts: known }));
  }

  /** An answer that comes after the deadline is not heard: others may have been told meanwhile that nothing comes. */
  #inTime<Answer>({ deadlineMs }: Policy, answer: Promise<Answer>): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const cancel = this.#host.time.after(deadlineMs, () =>
        reject(new Error(`an object did not hand keys over within ${deadlineMs} ms`)),
      );
      answer.then(resolve, reject).finally(cancel);
    });
  }
}
