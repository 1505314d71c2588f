import type { Policy } from "../../core/policies/policy.ts";
import type { KeyCount, KeyList, ListedKey } from "../../core/protocol/answers.ts";
import type { KeysCall } from "../../core/protocol/calls.ts";
import { PROTOCOL } from "../../core/protocol/messages.ts";
import { type KeyPlace, sharedObjectName, sharedObjects } from "../../core/protocol/names.ts";
import { type Answered, Problem } from "../../core/protocol/problems.ts";
import { type ClientContext, through } from "../call-gate.ts";
import { unavailable } from "../read-answer.ts";
import { type LimiterStub, readAnswer } from "../transports/send-batch.ts";

/** Keys that share a number of objects. With an object for each key, the objects cannot be listed. */
type SharedPolicy = Policy & { readonly objects: number };

/** The most objects of a page, called one after the other until it is full: many may have no key. */
const MAX_OBJECTS_A_PAGE = 16;
/** The most objects of a count, all called at once. */
const MAX_OBJECTS_A_COUNT = 256;
const MAX_AT_ONCE = 20;
/** Milliseconds beyond a decision's deadline for reading a thousand keys, or counting a million. */
const MORE_TIME_MS = 10_000;

/** The keys that begin with a prefix, from a place on. */
export interface KeyRange {
  readonly policy: SharedPolicy;
  readonly prefix: string;
  readonly from: KeyPlace;
}

/** A page of an answer, and the start of the next; absent: this is the last. */
type Page<Answer> = Answer & { readonly next?: KeyPlace };

export class KeyLists {
  readonly #caller: ClientContext;

  constructor(caller: ClientContext) {
    this.#caller = caller;
  }

  /** The next keys, object by object in byte order. A page below `maxKeys` may not be the last. */
  async list({ policy, from, prefix }: KeyRange, maxKeys: number): Answered<Page<{ keys: ListedKey[] }>> {
    const keys: ListedKey[] = [];
    let next: KeyPlace = from;
    for (let count = 0; count < MAX_OBJECTS_A_PAGE && keys.length < maxKeys; count += 1) {
      const { object, after } = next;
      const page = { most: maxKeys - keys.length, ...(after !== undefined && { after }) };
      const call = { ...this.#call(policy, prefix), ...page };
      const answer = await this.#ask<KeyList>(policy, object, (stub) => stub.keys(call));
      if (answer instanceof Problem) return answer;
      keys.push(...answer.keys);
      const last = answer.keys.at(-1);
      if (answer.hasMore && last !== undefined) return { keys, next: { object, after: last.key } };
      if (object + 1 >= sharedObjects(policy)) return { keys };
      next = { object: object + 1 };
    }
    return { keys, next };
  }

  /** Counts the keys in the next objects, 256 at most. */
  async count({ policy, from, prefix }: KeyRange): Answered<Page<KeyCount>> {
    const all = sharedObjects(policy);
    const end = Math.min(from.object + MAX_OBJECTS_A_COUNT, all);
    const call = this.#call(policy, prefix);
    let count = 0;
    let object = from.object;
    let problem: Problem | undefined;
    const takeOn = async () => {
      while (object < end && problem === undefined) {
        object += 1;
        const answer = await this.#ask<KeyCount>(policy, object - 1, (stub) => stub.countKeys(call));
        if (answer instanceof Problem) problem = answer;
        else count += answer.count;
      }
    };
    await Promise.all(Array.from({ length: MAX_AT_ONCE }, takeOn));
    if (problem !== undefined) return problem;
    return end < all ? { count, next: { object: end } } : { count };
  }

  #call(policy: Policy, prefix: string): KeysCall {
    return { protocol: PROTOCOL, policy: policy.name, ...(prefix !== "" && { prefix }) };
  }

  async #ask<Answer extends object>(
    policy: SharedPolicy,
    object: number,
    call: (stub: LimiterStub) => Promise<string>,
  ): Answered<Answer> {
    const { objects, gate, time } = this.#caller;
    const name = sharedObjectName(policy, object);
    const ask = async (stub: LimiterStub) => readAnswer<Answer>(await call(stub));
    const reply = await through(gate?.enterObject(name, policy, time.nowMs()), () =>
      objects.askByName(policy, name, ask, { waitMs: MORE_TIME_MS, isRepeatable: true }),
    );
    if (reply instanceof Problem) return reply;
    return reply?.answer ?? unavailable("one of the policy's objects did not answer: ask again");
  }
}
