import type { ObjectStub } from "../../core/protocol/object-methods.ts";

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
