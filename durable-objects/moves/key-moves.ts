/**
 * Keys that move between objects. An object admits units of a key only while the key is *here*. For an
 * unknown key it first asks every object that may have it by the policy's layouts. No other object admits
 * before the key has arrived: one that gave it away, or answered that it has nothing, asks again before it
 * admits. So one object at a time has a key, whatever versions run and however often the layout changes.
 *
 * A call to another object is forwarded: to the object that is to have the key, which fetches it, or to the
 * one that keeps it because its version does not know the new layout yet.
 */
import type { Policy } from "../../core/policies/policy.ts";
import { objectNames } from "../../core/protocol/names.ts";
import {
  type MaybePromise,
  type ForwardedCall,
  type LimiterMethods,
  MOVE_PROTOCOL,
  type ObjectStub,
} from "../../core/protocol/object-methods.ts";
import { KeyExport } from "./key-export.ts";
import { type KeptKey, KeyImport } from "./key-import.ts";
import { KeyHasMoved, type MovesHost } from "./moved-rows.ts";

/** The receiver of a forwarded call is not to have the key either. */
const NOT_OWNER = Symbol("elsewhere");

interface MovingCall<Result> {
  /** Another object has forwarded it: it is executed here or rejected. */
  readonly isPassedOn: boolean;
  readonly here: () => MaybePromise<Result>;
  /** @param mayBeAt the names of the objects that may have the key */
  readonly there: (kept: KeptKey, mayBeAt: readonly string[]) => Promise<Result | typeof NOT_OWNER>;
}

/** How often a call searches for its key, which may move again at once. */
const MAX_SEARCHES = 6;

export class KeyMoves {
  readonly departures: KeyExport;
  readonly arrivals: KeyImport;
  readonly #host: MovesHost;

  constructor(host: MovesHost) {
    this.#host = host;
    this.departures = new KeyExport(host);
    this.arrivals = new KeyImport(host);
  }

  /** Whether a forwarded call can be executed here: all objects that its sender names are known here. */
  mayTake(policyName: string, key: string, mayBeAt: readonly string[]): boolean {
    const policy = this.#host.policies.get(policyName);
    const names = policy === undefined ? [] : objectNames(policy, key);
    const isOneHere = names.some((name) => this.#host.places.isHere(name));
    return isOneHere && mayBeAt.every((name) => names.includes(name));
  }

  /** Executes a call, at once if the key is here and is to stay. */
  make<Result>(policyName: string, key: string, call: MovingCall<Result>): MaybePromise<Result> {
    const { policies, places, residents } = this.#host;
    const policy = policies.get(policyName);
    if (policy === undefined) return call.here();
    const names = objectNames(policy, key);
    const isToBeHere = places.isHere(names[0]);
    if (isToBeHere && names.length === 1) return call.here();
    const isStaying = isToBeHere || call.isPassedOn;
    if (!isStaying || !residents.has(key)) return this.#find(policy, key, call, isStaying);
    const answer = call.here();
    if (!(answer instanceof Promise)) return answer;
    return answer.catch((error: unknown) => {
      if (error instanceof KeyHasMoved) return this.#find(policy, key, call, isStaying);
      throw error;
    });
  }

  async #find<Result>(
    policy: Policy,
    key: string,
    call: MovingCall<Result>,
    mayStay: boolean,
  ): Promise<Result> {
    const { residents } = this.#host;
    const names = objectNames(policy, key);
    const [toBeAt = ""] = names;
    let isStaying = mayStay;
    for (let search = 0; search < MAX_SEARCHES; search += 1) {
      if (isStaying && residents.has(key)) {
        const made = await orMoved(call.here);
        if (made !== undefined) return made.answer;
        continue;
      }
      const kept = isStaying ? await this.arrivals.take(policy, key) : { by: toBeAt, isOlder: false };
      if (kept === undefined) continue;
      if (call.isPassedOn) break;
      const answer = await call.there(kept, names);
      if (answer !== NOT_OWNER) return answer;
      // The object that is to have it has another version: the key stays here, or comes.
      if (!this.mayTake(policy.name, key, [])) break;
      isStaying = true;
    }
    throw new Error(`the key ${JSON.stringify(key)} was not found: versions mix`);
  }
}

/** `undefined`: the key has moved while the call waited. */
async function orMoved<Result>(make: () => MaybePromise<Result>): Promise<{ answer: Result } | undefined> {
  try {
    return { answer: await make() };
  } catch (error) {
    if (error instanceof KeyHasMoved) return undefined;
    throw error;
  }
}

type Passing = ForwardedCall["passedOn"] & { readonly method: keyof LimiterMethods };

/** Calls another object, as a client does if it is older. `NOT_OWNER`: the call was not executed. */
export async function passOn(places: Places, { by, isOlder }: KeptKey, passing: Passing): Promise<unknown> {
  const object = places.objectAt(by);
  if (isOlder) {
    const call = object[passing.method] as (...args: readonly unknown[]) => Promise<unknown>;
    return await call(...passing.args);
  }
  const passed = await object.reserve({ protocol: MOVE_PROTOCOL, passedOn: passing });
  return typeof passed === "string" || "isElsewhere" in passed ? NOT_OWNER : passed.returned;
}

/** The same for a call that waits or opens a socket: a request, which ends with its caller. */
export async function passRequest(
  places: Places,
  { by, isOlder }: KeptKey,
  { url, method, headers, signal }: Request,
  message: object,
  mayBeAt: readonly string[],
): Promise<Response> {
  const text = JSON.stringify(isOlder ? message : { ...message, mayBeAt });
  const address = new URL(url);
  const isInAddress = address.searchParams.has("call");
  if (isInAddress) address.searchParams.set("call", text);
  const upgrade = headers.get("upgrade");
  return await places.objectAt(by).fetch(address.href, {
    method,
    signal,
    ...(upgrade !== null && { headers: { upgrade } }),
    ...(!isInAddress && { body: text }),
  });
}

/** The part of the binding OBJECTS by which an object finds others, and itself. */
export interface ObjectNamespace {
  idFromName(name: string): { toString(): string };
  getByName(name: string): ObjectStub;
  jurisdiction?(name: string): ObjectNamespace;
}

/** Its own names that are remembered: an object has one per layout. */
const MAX_NAMES = 16;

/** Finds an object by name. An object does not know its own name, but a name has one id only. */
export class Places {
  readonly #namespace: ObjectNamespace;
  readonly #id: string;
  readonly #own = new Set<string>();
  readonly #jurisdictionOf: (policy: string) => string | undefined;

  /** @param jurisdictionOf by policy name; `undefined`: none */
  constructor(
    namespace: ObjectNamespace,
    id: { toString(): string },
    jurisdictionOf: (policy: string) => string | undefined = () => undefined,
  ) {
    this.#namespace = namespace;
    this.#id = id.toString();
    this.#jurisdictionOf = jurisdictionOf;
  }

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

  #within(name: string): ObjectNamespace {
    const jurisdiction = this.#jurisdictionOf(name.slice(0, name.indexOf("/")));
    if (jurisdiction === undefined) return this.#namespace;
    return this.#namespace.jurisdiction?.(jurisdiction) ?? this.#namespace;
  }
}
