import type { Time } from "../../core/clock.ts";
import type { Policies } from "../../core/policies/policy.ts";
import type { KeyCache } from "../keys/key-cache.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Storage } from "../storage/storage.ts";
import type { Places } from "./places.ts";

/** The parts of an object by which its keys move. */
export interface MovesHost {
  readonly policies: Pick<Policies, "get">;
  readonly storage: Storage;
  readonly cache: KeyCache;
  readonly residents: OwnedKeys;
  readonly places: Places;
  readonly time: Pick<Time, "after">;
  readonly nowMs: () => number;
  /** A key was written, and is whole from that instant. */
  readonly onWritten: (wholeMs: number, nowMs: number) => void;
  /** Whoever waits for the key is told that it has moved. */
  readonly endLine: (keyState: KeyState, moved: Error) => void;
}

/** The key is not here any more. Whoever made the call makes it again, where the key is. */
export class KeyHasMoved extends Error {
  constructor(key: string) {
    super(`the key ${JSON.stringify(key)} has moved to another object`);
  }
}

/** So many keys are remembered to be here without a look at storage, at about 100 bytes each. */
const MAX_REMEMBERED = 20_000;

/**
 * The keys that are here: what is admitted of them is admitted by this object alone. Of other keys it has to be found
 * out where they are. A key of which nothing is stored is here as long as this memory remembers that it came with
 * nothing.
 */
export class OwnedKeys {
  readonly #storage: Storage;
  readonly #known = new Set<string>();

  constructor(storage: Storage) {
    this.#storage = storage;
  }

  has(key: string): boolean {
    if (this.#known.has(key)) return true;
    const move = this.#storage.moves.read(key);
    const isHere = move === undefined ? this.#storage.read(key) !== undefined : move.other === null;
    if (isHere) this.add(key);
    return isHere;
  }

  add(key: string): void {
    // Whoever is forgotten is asked for again.
    if (this.#known.size >= MAX_REMEMBERED) for (const first of this.#known) return this.#replace(first, key);
    this.#known.add(key);
  }

  remove(key: string): void {
    this.#known.delete(key);
  }

  #replace(first: string, key: string): void {
    this.#known.delete(first);
    this.#known.add(key);
  }
}
