import type { ObjectStub } from "../../core/protocol/object-methods.ts";

/** The part of the binding OBJECTS by which an object finds others, and itself. */
export interface ObjectNamespace {
  idFromName(name: string): { toString(): string };
  getByName(name: string): ObjectStub;
}

/** So many names of its own are remembered: an object has one by each layout. */
const MOST_NAMES = 16;

/** Tells an object by its name. An object is not told its own, but a name has one id only. */
export class Places {
  readonly #namespace: ObjectNamespace;
  readonly #id: string;
  readonly #own = new Set<string>();

  constructor(namespace: ObjectNamespace, id: { toString(): string }) {
    this.#namespace = namespace;
    this.#id = id.toString();
  }

  /** Whether this object has that name. */
  isHere(name: string | undefined): boolean {
    if (name === undefined) return false;
    if (this.#own.has(name)) return true;
    if (this.#namespace.idFromName(name).toString() !== this.#id) return false;
    if (this.#own.size < MOST_NAMES) this.#own.add(name);
    return true;
  }

  /** A new stub for each call: one that has thrown stays broken. */
  objectAt(name: string): ObjectStub {
    return this.#namespace.getByName(name);
  }
}
