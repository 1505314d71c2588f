import type { Policy } from "../../core/policies/policy.ts";
import { MOVE_PROTOCOL, type Given, type MovedKey, type Presumed } from "../../core/protocol/moves.ts";
import { namesBy, objectNames } from "../../core/protocol/object-names.ts";
import type { Move } from "../storage/moves.ts";
import type { MovesHost } from "./host.ts";
import { storePresumed, storeRows, takeBack } from "./moved-rows.ts";
import { Questions } from "./questions.ts";

/** Where a key is that does not come: another object keeps it. */
export interface Kept {
  readonly by: string;
  /** That object's version knows nothing of moves. */
  readonly isOlder: boolean;
}

/** Fetches keys from the objects that had them. One call for a key asks, and the others wait with it. */
export class Arrivals {
  readonly #host: MovesHost;
  readonly #underWay = new Map<string, Promise<Kept | undefined>>();
  readonly #questions: Questions;

  constructor(host: MovesHost) {
    this.#host = host;
    this.#questions = new Questions(host);
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
    const asked: { readonly name: string; readonly lost?: Given }[] = names.map((name) => ({ name }));
    for (let next = asked.shift(); next !== undefined; next = asked.shift()) {
      const { name, lost } = next;
      const { handed, nowMs, layouts } = await this.#questions.ask(policy, name, {
        key,
        move,
        ...(lost && { lost }),
      });
      // Another version may know more places.
      for (const other of namesBy(layouts, policy, key)) {
        if (names.includes(other) || places.isHere(other)) continue;
        names.push(other);
        asked.push({ name: other });
      }
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
    return this.#begin(policy, key, presumed, names);
  }

  /** Nobody has the key. What was given away here never arrived. Else it begins here, unless memory knows more. */
  #begin(
    policy: Policy,
    key: string,
    presumed: ReadonlyMap<string, number>,
    names: readonly string[],
  ): undefined {
    const { storage, cache, residents, onWritten } = this.#host;
    const own = storage.moves.read(key);
    const nowMs = this.#host.nowMs();
    if (isAway(own)) {
      checkNamed(names, key, own.other);
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
    const told = this.#host.places.objectAt(from).reserve({ protocol: MOVE_PROTOCOL, taken });
    told.catch((error: unknown) =>
      console.warn(`an object was not told that a key has arrived: ${String(error)}`),
    );
    return undefined;
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
