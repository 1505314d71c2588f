import type { Policy } from "../../core/policies/policy.ts";
import { layoutsOf, objectName, objectNames } from "../../core/protocol/names.ts";
import {
  type HandedOver,
  type HandOver,
  type HandOverResult,
  type KeysStored,
  MAX_MOVED,
  MAX_MOVED_LENGTH,
  type RequestedKey,
} from "../../core/protocol/object-methods.ts";
import { REMEMBERED_MS } from "../keys/idempotency.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Move } from "../storage/moves.ts";
import { KeyHasMoved, type MovesHost, packRows, removeRows } from "./moved-rows.ts";

/** Gives keys to other objects. Rows stay until their arrival is confirmed: a lost answer is sent again. */
export class KeyExport {
  readonly #host: MovesHost;

  constructor(host: MovesHost) {
    this.#host = host;
  }

  /** @throws Error while versions mix: this version does not know the policy */
  handOver(request: HandOver["handOver"], isComing: (key: string) => boolean): HandedOver {
    const { policy: name, layout, keys } = request;
    const policy = this.#host.policies.get(name);
    if (policy === undefined)
      throw new Error(`this version of the object has no policy ${JSON.stringify(name)}`);
    const nowMs = this.#host.nowMs();
    const handed: HandOverResult[] = [];
    let length = 0;
    for (const asked of keys.slice(0, MAX_MOVED)) {
      if (length >= MAX_MOVED_LENGTH) break;
      const asker = objectName({ name, objects: layout }, asked.key);
      const each = isComing(asked.key) ? "busy" : this.#handOver(policy, asked, asker, nowMs);
      handed.push(each);
      length += JSON.stringify(each).length;
    }
    return { nowMs, layouts: layoutsOf(policy), keys: handed };
  }

  taken({ keys }: KeysStored["taken"]): void {
    const { storage, cache } = this.#host;
    for (const { key, move } of keys) {
      const given = storage.moves.read(key);
      if (given === undefined || given.other === null || given.move !== move) continue;
      cache.forget(key);
      storage.atomically(() => {
        removeRows(storage, key);
        storage.moves.remove(key);
      });
    }
  }

  #handOver(policy: Policy, asked: RequestedKey, asker: string, nowMs: number): HandOverResult {
    const { storage, cache, residents, places } = this.#host;
    const { key } = asked;
    const names = objectNames(policy, key);
    const isToBeHere = places.isHere(names[0]);
    // This version does not know the asker's layout, so it would not ask there before it admits.
    if (!names.includes(asker)) return isToBeHere ? "kept" : "busy";
    if (isToBeHere && residents.has(key)) return "kept";
    const before = storage.moves.read(key);
    if (before !== undefined && before.other !== null) return this.#again(asked, asker, before, before.other);
    residents.remove(key);
    const isStored = before !== undefined || storage.read(key) !== undefined || storage.answers.has(key);
    if (!isStored && cache.known(key) === undefined) {
      const presumed = storage.allowances.presumed(policy, nowMs);
      return presumed === undefined ? "nothing" : { presumed };
    }
    const keyState = cache.open(policy.name, policy, key, nowMs);
    this.#host.endLine(keyState, new KeyHasMoved(key));
    if (!isStored && keyState.isWhole(nowMs)) {
      cache.forget(key);
      return "nothing";
    }
    const move = Math.max((before?.move ?? 0) + 1, asked.move + 1, nowMs);
    return { moved: packRows(storage, key, this.#giveAway(keyState, { move, other: asker }, nowMs)) };
  }

  #again({ key, move, lost }: RequestedKey, asker: string, before: Move, other: string): HandOverResult {
    const { storage } = this.#host;
    // The receiver may have it, unless it answered after the last transfer that it has nothing.
    const isLost = lost !== undefined && lost.to === other && lost.times === before.times;
    if (other !== asker && !isLost) return { given: { to: other, times: before.times, move: before.move } };
    // The asker has had it since.
    if (move > before.move) return "nothing";
    storage.moves.write(key, { ...before, other: asker, times: before.times + 1 });
    return { moved: packRows(storage, key, before) };
  }

  /** Writes the key's memory, and that it is away. No call opens it here after that. */
  #giveAway(keyState: KeyState, { move, other }: Pick<Move, "move" | "other">, nowMs: number): Move {
    const { storage, cache, onWritten } = this.#host;
    const { key, accounts } = keyState;
    const write = (): Move => {
      // The receiver remembers how holds ended, also those that end before the next transfer.
      const ends = keyState.claims.size + keyState.expired.length;
      const isRemembered = ends > 0 || storage.answers.has(key);
      const leastMs = isRemembered ? nowMs + REMEMBERED_MS : -Infinity;
      const dueMs = Math.max(leastMs, cache.write(keyState, accounts, nowMs, [], leastMs));
      const given = { move, other, times: 1, dueMs };
      storage.moves.write(key, given);
      return given;
    };
    const given = cache.atomically(keyState, write, nowMs);
    cache.forget(key);
    onWritten(given.dueMs, nowMs);
    return given;
  }
}
