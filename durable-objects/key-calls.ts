import type { AnswerText, KeyCount, KeyList, ListedKey } from "../core/protocol/answers.ts";
import { publicDecision } from "../core/protocol/decision.ts";
import {
  type AcquireCall,
  type IdleCall,
  type KeysCall,
  type LimitCall,
  unsupportedOf,
  type Versioned,
} from "../core/protocol/messages.ts";
import type {
  Attached,
  ForwardedCall,
  ForwardedResult,
  HandOver,
  KeyCall,
  KeysStored,
  MaybePromise,
} from "../core/protocol/object-methods.ts";
import { closeLost, releaseLease, type ReleasingHost } from "./connections/lease-sockets.ts";
import type { KeyParts } from "./key-parts.ts";
import { isEmpty, isUnrecorded } from "./keys/record-writing.ts";
import { type KeyMoves, passOn, passRequest } from "./moves/key-moves.ts";
import type { Places } from "./moves/places.ts";
import type { AskKey } from "./operations/operations.ts";
import { isWireMethod, readCall, type WireMethod } from "./wire-methods.ts";

/** A call with this `op`. */
type CallOf<Op extends KeyCall["op"]> = Extract<KeyCall, { readonly op: Op }>;

/** Leases that end with their callers. They take the platform, so a limiter in memory has none. */
export interface AttachedLeases {
  acquire(call: CallOf<"acquire">): Promise<Attached>;
  confirm(call: CallOf<"confirm">): Promise<Attached>;
}

/**
 * The calls on keys that are here: load, decide, save, answer. Nothing is awaited between reading and writing, so there
 * are no locks and no races. What an answer says has been written, or is covered by what was, before it leaves: the
 * output gate holds the answer back until the write is durable.
 */
export class KeyCalls {
  readonly #parts: KeyParts & ReleasingHost;
  readonly #attached: AttachedLeases | undefined;
  readonly #handlers: { readonly [Op in KeyCall["op"]]: (call: CallOf<Op>) => MaybePromise<unknown> } = {
    limit: (call) => {
      const { debits } = this.#parts;
      const params = paramsOf(call);
      return this.#ask(call, (operations, keyState, nowMs) =>
        call.force === true
          ? debits.force(keyState, params, nowMs)
          : operations.limit(keyState, params, nowMs),
      );
    },
    set: (call) => {
      const { debits } = this.#parts;
      const params = paramsOf(call);
      return this.#ask(
        call,
        (operations, keyState, nowMs) =>
          debits.setUsed(keyState, params, nowMs) ?? operations.peek(keyState, nowMs),
      );
    },
    reserve: (call) => {
      const params = paramsOf(call);
      return this.#ask(call, (operations, keyState, nowMs) => operations.reserve(keyState, params, nowMs));
    },
    giveBack: ({ policy, returned }) => {
      for (const each of returned)
        void this.#parts.ask(policy, each.key, (operations, keyState, nowMs) =>
          operations.giveBack(keyState, each, nowMs),
        );
    },
    refund: (call) =>
      this.#ask(call, (operations, keyState, nowMs) =>
        operations.refund(keyState, call.units, call.idempotencyKey, call.charge, nowMs),
      ),
    hold: (call) => {
      const params = paramsOf(call);
      return this.#ask(call, (operations, keyState, nowMs) => operations.hold(keyState, params, nowMs));
    },
    settle: (call) =>
      this.#ask(call, (operations, keyState, nowMs) =>
        operations.settle(keyState, call.id, call.used, nowMs),
      ),
    cancel: (call) =>
      this.#ask(call, (operations, keyState, nowMs) => operations.cancel(keyState, call.id, nowMs)),
    acquire: (call) => {
      this.#parts.hear(call.policy, call.key, call);
      return this.#attachedLeases().acquire(call);
    },
    confirm: (call) => this.#attachedLeases().confirm(call),
    renew: (call) =>
      this.#ask(call, (operations, keyState, nowMs) =>
        operations.renew(keyState, call.id, call.ttlMs, nowMs),
      ),
    release: async (call) => {
      const unsupported = unsupportedOf(call);
      if (unsupported !== undefined) return unsupported;
      const isReleased = await releaseLease(this.#parts, call.policy, call.key, paramsOf(call));
      return isReleased ? { released: true } : { missing: true };
    },
    shedding: (call) => {
      const params = paramsOf(call);
      return this.#ask(call, (_, keyState, nowMs) => this.#parts.shedders.tell(keyState, params, nowMs));
    },
    tell: ({ policy, key, inForce }) => {
      this.#parts.hear(policy, key, { inForce });
      // Callers that wait for units of the key are served by it. A key that is not in memory has no such callers.
      if (this.#parts.cache.has(key)) void this.#parts.ask(policy, key, () => undefined);
    },
    peek: (call) => this.#ask(call, (operations, keyState, nowMs) => operations.peek(keyState, nowMs)),
    reset: ({ policy, key }) =>
      this.#parts.ask(policy, key, (operations, keyState, nowMs) => {
        const done = operations.reset(keyState, nowMs);
        const close = () => closeLost(this.#parts, policy, keyState);
        return done instanceof Promise ? done.then(close) : close();
      }),
  };

  /** @param attached absent: `acquire` and `confirm` throw */
  constructor(parts: KeyParts & ReleasingHost, attached?: AttachedLeases) {
    this.#parts = parts;
    this.#attached = attached;
  }

  /** What a call is answered: at once if the answer is there at once. A message of a higher protocol is refused. */
  call(message: KeyCall): MaybePromise<unknown> {
    return (this.#handlers[message.op] as (call: KeyCall) => MaybePromise<unknown>)(message);
  }

  /** The next keys of this object. */
  async keys(call: KeysCall): Promise<string> {
    return JSON.stringify(unsupportedOf(call) ?? (await listKeys(this.#parts, call)));
  }

  countKeys(call: KeysCall): string {
    return JSON.stringify(unsupportedOf(call) ?? countKeys(this.#parts, call));
  }

  #attachedLeases(): AttachedLeases {
    if (this.#attached === undefined) throw new Error("leases that end with their callers take the platform");
    return this.#attached;
  }

  #ask(
    call: Versioned & { readonly policy: string; readonly key: string },
    ask: Parameters<AskKey>[2],
  ): MaybePromise<unknown> {
    this.#parts.hear(call.policy, call.key, call);
    return unsupportedOf(call) ?? this.#parts.ask(call.policy, call.key, ask);
  }
}

/** A call without what it is and which key it is about. */
function paramsOf<Call extends KeyCall>(call: Call): Omit<Call, "op" | "policy" | "key"> {
  const { op: _op, policy: _policy, key: _key, ...params } = call;
  return params;
}

/** So many keys are looked at in one go, so that other calls do not wait for a long list. */
const KEYS_A_TURN = 50;

type Parts = Pick<KeyParts, "storage" | "cache" | "ask" | "policies">;

/**
 * The next keys of this object, with what a look at each of them says: keys with a record, and keys that memory alone
 * knows of. A key that is whole again is among them until it is forgotten.
 */
async function listKeys(
  { storage, cache, ask, policies }: Parts,
  { policy: name, prefix = "", after, most = 0 }: KeysCall,
): Promise<KeyList> {
  // One more than is asked for tells whether there are more.
  const stored = storage.keysAfter(prefix, after, most + 1);
  const others = unrecorded(cache, prefix).filter((key) => after === undefined || byBytes(key, after) > 0);
  const found = others.length === 0 ? stored : [...stored, ...others].toSorted(byBytes).slice(0, most + 1);
  const keys: ListedKey[] = [];
  for (const [index, key] of found.slice(0, most).entries()) {
    if (index % KEYS_A_TURN === KEYS_A_TURN - 1) await new Promise((resolve) => setTimeout(resolve, 0));
    const policy = cache.policyOf(name, policies.get(name), key);
    // It may have moved meanwhile: then it is listed there.
    if (policy === undefined || storage.moves.isAway(policy, key)) continue;
    const peeked = await ask(name, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
    const { limit, remaining = 0, resetAfterMs = 0 } = publicDecision(policy, key, peeked);
    const { outstanding, holds, leases } = peeked;
    keys.push({ key, limit, remaining, resetAfterMs, outstanding, holds, leases });
  }
  return { keys, hasMore: found.length > most };
}

/** How many keys this object knows of. */
function countKeys(
  { storage, cache }: Pick<Parts, "storage" | "cache">,
  { prefix = "" }: KeysCall,
): KeyCount {
  return { count: storage.countKeys(prefix) + unrecorded(cache, prefix).length };
}

/** Keys with this prefix of which memory alone knows, in no order. */
function unrecorded(cache: Parts["cache"], prefix: string): string[] {
  const keys: string[] = [];
  for (const state of cache.states)
    if (state.key.startsWith(prefix) && isUnrecorded(state) && !state.isWritten && !isEmpty(state))
      keys.push(state.key);
  return keys;
}

/** The order of two keys in storage: that of their bytes in UTF-8, which is that of their code points. */
function byBytes(one: string, other: string): number {
  let at = 0;
  while (at < one.length && one[at] === other[at]) at += 1;
  // Where they differ in the second half of a code point, the first half is the same.
  const pointOf = (text: string) => text.codePointAt(at) ?? -1;
  return pointOf(one) - pointOf(other);
}

/** Makes a call on a key that is here, and returns what the method that was called returns. */
type MakeHere = (message: KeyCall, method: WireMethod) => MaybePromise<unknown>;

/** Makes each call where its key is: here, or in another object (moves/key-moves.ts). */
export class OwnerRouting {
  readonly #makeHere: MakeHere;
  readonly #moves: KeyMoves;
  readonly #places: Places;

  constructor(makeHere: MakeHere, moves: KeyMoves, places: Places) {
    this.#makeHere = makeHere;
    this.#moves = moves;
    this.#places = places;
  }

  /** What a method of the object returns. @param isPassedOn another object has passed the call on */
  make(method: WireMethod, args: readonly unknown[], isPassedOn = false): MaybePromise<unknown> {
    const message = readCall(method, args);
    const { policy, key } = message;
    return this.#moves.make<unknown>(policy, key, {
      isPassedOn,
      here: () => this.#makeHere(message, method),
      there: (kept, mayBeAt) => passOn(this.#places, kept, { policy, key, method, args, mayBeAt }),
    });
  }

  /** Answers what objects say to each other when keys move. */
  answerMove(message: HandOver | KeysStored | ForwardedCall): MaybePromise<AnswerText | ForwardedResult> {
    const unsupported = unsupportedOf(message);
    if (unsupported !== undefined) return JSON.stringify(unsupported);
    if ("passedOn" in message) return this.#makePassed(message.passedOn);
    const { departures, arrivals } = this.#moves;
    if ("handOver" in message)
      return JSON.stringify(departures.handOver(message.handOver, (key) => arrivals.isUnderWay(key)));
    if ("taken" in message) departures.taken(message.taken);
    return JSON.stringify(null);
  }

  /** Makes a call that another object has passed on, if the key may be here. */
  async #makePassed({
    policy,
    key,
    method,
    args,
    mayBeAt,
  }: ForwardedCall["passedOn"]): Promise<ForwardedResult> {
    if (!this.#moves.mayTake(policy, key, mayBeAt)) return { isElsewhere: true };
    if (!isWireMethod(method)) return { isElsewhere: true };
    return { returned: await this.make(method, args, true) };
  }

  /** Answers a request where the key of its message is. */
  async request(
    request: Request,
    message: AcquireCall | IdleCall | LimitCall,
    answer: () => Promise<Response>,
  ): Promise<Response> {
    const { policy, key, mayBeAt } = message;
    if (mayBeAt !== undefined && !this.#moves.mayTake(policy, key, mayBeAt))
      throw new Error(`the key ${JSON.stringify(key)} is not to be here`);
    return await this.#moves.make<Response>(policy, key, {
      isPassedOn: mayBeAt !== undefined,
      here: answer,
      there: (kept, names) => passRequest(this.#places, kept, request, message, names),
    });
  }
}
