import type { Policy } from "../../core/policies/policy.ts";
import type { Unsupported } from "../../core/protocol/answers.ts";
import {
  MOST_MOVED,
  MOVE_PROTOCOL,
  type AskedKey,
  type Handed,
  type HandedOver,
  type MovedKey,
  type Given,
  type Presumed,
  type HandOver,
  type Taken,
} from "../../core/protocol/moves.ts";
import { objectName, objectNames } from "../../core/protocol/object-names.ts";
import type { Move } from "../storage/moves.ts";
import type { MovesHost } from "./host.ts";
import { storePresumed, storeRows, takeBack } from "./moved-rows.ts";

/** Where a key is that does not come: another object keeps it. */
export interface Kept {
  readonly by: string;
  /** That object's version knows nothing of moves. */
  readonly isOlder: boolean;
}

/** What another object has said of a key, and what its clock was. */
interface Heard {
  readonly handed: Handed | "older";
  readonly nowMs: number;
}

/** A key to be asked for with the next message. */
interface Question extends PromiseWithResolvers<Heard> {
  readonly asked: AskedKey;
}

/**
 * Fetches keys from the objects that had them. One call for a key asks, and the others wait with it. Keys that are
 * asked for in one turn go in one message to each object.
 */
export class Arrivals {
  readonly #host: MovesHost;
  readonly #underWay = new Map<string, Promise<Kept | undefined>>();
  /** By the name of the object that is asked. */
  readonly #questions = new Map<string, Question[]>();

  constructor(host: MovesHost) {
    this.#host = host;
  }

  isUnderWay(key: string): boolean {
    return this.#underWay.has(key);
  }

  /**
   * Makes a key come here. When the promise resolves to `undefined`, the key is here.
   *
   * It rejects when an object that may have the key does not answer within the policy's deadline. Nothing is lost then:
   * what that object has given away stays there until it is told that it has arrived.
   */
  take(policy: Policy, key: string): Promise<Kept | undefined> {
    const known = this.#underWay.get(key);
    if (known !== undefined) return known;
    const arriving = this.#take(policy, key).finally(() => this.#underWay.delete(key));
    this.#underWay.set(key, arriving);
    return arriving;
  }

  async #take(policy: Policy, key: string): Promise<Kept | undefined> {
    const { storage, places } = this.#host;
    const own = storage.moves.read(key);
    const move = isAway(own) ? own.move : 0;
    const presumed = new Map<string, number>();
    const names = objectNames(policy, key).filter((name) => !places.isHere(name));
    if (isAway(own)) checkNamed(names, key, own.other);
    const asked: { readonly name: string; readonly lost?: Given }[] = names.map((name) => ({ name }));
    for (let next = asked.shift(); next !== undefined; next = asked.shift()) {
      const { name, lost } = next;
      const { handed, nowMs } = await this.#ask(policy, name, { key, move, ...(lost && { lost }) });
      if (handed === "older") return { by: name, isOlder: true };
      if (handed === "kept") return { by: name, isOlder: false };
      if (handed === "busy") throw new Error(`the key ${JSON.stringify(key)} is on its way elsewhere`);
      if (handed === "nothing") continue;
      if ("presumed" in handed) add(presumed, handed.presumed);
      else if ("moved" in handed) {
        if (handed.moved.move > move) return this.#store(policy, key, handed.moved, presumed, name, nowMs);
      } else {
        const { given } = handed;
        checkNamed(names, key, given.to);
        if (lost !== undefined) throw new Error(`the key ${JSON.stringify(key)} has moved meanwhile`);
        // Whoever it was given to is asked now, and says whether it has arrived; then this one gives it again.
        asked.push({ name: given.to }, { name, lost: given });
      }
    }
    return this.#begin(policy, key, presumed);
  }

  /** Nobody has the key. What was given away here never arrived. Else it begins here, unless memory knows more. */
  #begin(policy: Policy, key: string, presumed: ReadonlyMap<string, number>): undefined {
    const { storage, cache, residents, onWritten } = this.#host;
    const own = storage.moves.read(key);
    const nowMs = this.#host.nowMs();
    if (isAway(own)) {
      cache.forget(key);
      takeBack(storage, policy, key, own, presumed);
      onWritten(own.dueMs, nowMs);
    } else if (!cache.has(key) && storePresumed(storage, policy, key, presumed, nowMs))
      onWritten(nowMs, nowMs);
    residents.add(key);
    return undefined;
  }

  #store(
    policy: Policy,
    key: string,
    moved: MovedKey,
    presumed: ReadonlyMap<string, number>,
    from: string,
    sentMs: number,
  ): undefined {
    const { storage, cache, residents, nowMs, onWritten } = this.#host;
    const atMs = nowMs();
    cache.forget(key);
    storeRows(storage, policy, key, moved, atMs - sentMs, presumed);
    residents.add(key);
    onWritten(moved.wholeAtMs, atMs);
    const taken = { policy: policy.name, keys: [{ key, move: moved.move }] };
    // The runtime sends it when the key is stored for good. If it is lost, what is left there goes when it is whole.
    this.#send(from, { protocol: MOVE_PROTOCOL, taken }).catch((error: unknown) =>
      console.warn(`an object was not told that a key has arrived: ${String(error)}`),
    );
    return undefined;
  }

  #ask(policy: Policy, name: string, asked: AskedKey): Promise<Heard> {
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
    const layouts = [policy.objects, ...(policy.objectsBefore ?? [])];
    const isOwn = (objects: Policy["objects"]) =>
      this.#host.places.isHere(objectName({ name: policy.name, objects }, first?.asked.key ?? ""));
    const layout = layouts.find(isOwn) ?? policy.objects;
    const keys = questions.map(({ asked }) => asked);
    const text = await this.#send(name, {
      protocol: MOVE_PROTOCOL,
      handOver: { policy: policy.name, layout, keys },
    });
    const answer = JSON.parse(text) as HandedOver | Unsupported;
    if ("unsupported" in answer) return questions.map(() => ({ handed: "older", nowMs: 0 }));
    if (answer.keys.length === 0) throw new Error(`the object ${name} handed nothing over`);
    return answer.keys.map((handed) => ({ handed, nowMs: answer.nowMs }));
  }

  async #send(name: string, message: HandOver | Taken): Promise<string> {
    return await this.#host.places.objectAt(name).reserve(message);
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

function isAway(move: Move | undefined): move is Move & { readonly other: string } {
  return move !== undefined && move.other !== null;
}

/** @throws Error when a key is where the policy does not say that it may be */
function checkNamed(names: readonly string[], key: string, to: string): void {
  if (names.includes(to)) return;
  throw new Error(
    `the key ${JSON.stringify(key)} was given to ${to}: objectsBefore must say that layout too`,
  );
}

function add(sums: Map<string, number>, presumed: Presumed): void {
  for (const [rule, units] of Object.entries(presumed)) sums.set(rule, (sums.get(rule) ?? 0) + units);
}
