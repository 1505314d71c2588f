import { full, type Full } from "../../core/protocol/bounds.ts";

/**
 * The most calls that wait in one object, and of one caller there. A call that waits keeps a request open and its
 * memory, of which an object has 128 MB. The policy's `maxWaiters` is of one key.
 */
export const MOST_WAITS_OF_OBJECT = 2_000;
export const MOST_WAITS_OF_CALLER = 1_000;

/** The places of an object for calls that wait, whatever they wait for. */
export class WaitPlaces {
  readonly #taken = new Map<string, number>();
  #count = 0;

  /** The bound that one more call of this caller would pass; `undefined`: there is a place. */
  fullFor(caller = ""): Full | undefined {
    if (this.#count >= MOST_WAITS_OF_OBJECT) return full("object-waits", MOST_WAITS_OF_OBJECT);
    if (caller !== "" && (this.#taken.get(caller) ?? 0) >= MOST_WAITS_OF_CALLER)
      return full("caller-waits", MOST_WAITS_OF_CALLER);
    return undefined;
  }

  /** Takes a place. The returned function leaves it; calling it again does nothing. */
  take(caller = ""): () => void {
    this.#add(caller, 1);
    let isTaken = true;
    return () => {
      if (isTaken) this.#add(caller, -1);
      isTaken = false;
    };
  }

  #add(caller: string, more: number): void {
    this.#count += more;
    const taken = (this.#taken.get(caller) ?? 0) + more;
    if (taken === 0) this.#taken.delete(caller);
    else this.#taken.set(caller, taken);
  }
}
