import type { Time } from "../../core/clock.ts";
import type { Policies } from "../../core/policies/policy.ts";
import type { ObjectStub } from "../../core/protocol/object-methods.ts";
import type { KeyCache } from "../keys/key-cache.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { Storage } from "../storage/storage.ts";

/** The part of the binding OBJECTS by which an object finds others, and itself. */
export interface ObjectNamespace {
  idFromName(name: string): { toString(): string };
  getByName(name: string): ObjectStub;
  /** The objects of a jurisdiction. */
  jurisdiction?(name: string): ObjectNamespace;
}

/** So many names of its own are remembered: an object has one by each layout. */
const MAX_NAMES = 16;

/** Tells an object by its name. An object is not told its own, but a name has one id only. */
export class Places {
  readonly #namespace: ObjectNamespace;
  readonly #id: string;
  readonly #own = new Set<string>();
  readonly #jurisdictionOf: (policy: string) => string | undefined;

  /** @param jurisdictionOf the jurisdiction of a policy's objects, by its name; `undefined`: none */
  constructor(
    namespace: ObjectNamespace,
    id: { toString(): string },
    jurisdictionOf: (policy: string) => string | undefined = () => undefined,
  ) {
    this.#namespace = namespace;
    this.#id = id.toString();
    this.#jurisdictionOf = jurisdictionOf;
  }

  /** Whether this object has that name. */
  isHere(name: string | undefined): boolean {
    if (name === undefined) return false;
    if (this.#own.has(name)) return true;
    if (this.#within(name).idFromName(name).toString() !== this.#id) return false;
    if (this.#own.size < MAX_NAMES) this.#own.add(name);
    return true;
  }

  /** A new stub for each call: one that has thrown stays broken. */
  objectAt(name: string): ObjectStub {
    return this.#within(name).getByName(name);
  }

  /** The objects among which the one of this name is. */
  #within(name: string): ObjectNamespace {
    const jurisdiction = this.#jurisdictionOf(name.slice(0, name.indexOf("/")));
    if (jurisdiction === undefined) return this.#namespace;
    return this.#namespace.jurisdiction?.(jurisdiction) ?? this.#namespace;
  }
}

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
