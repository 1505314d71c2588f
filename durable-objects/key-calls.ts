import { type Time, andThen, untilEnd } from "../core/clock.ts";
import { type PolicyLookup, type PolicyRevision, withoutPlan } from "../core/policies/policy.ts";
import type { Answer, AnswerText, KeyCount, KeyList, ListedKey, Young } from "../core/protocol/answers.ts";
import type { AcquireCall, IdleCall, KeysCall, LimitCall, Versioned } from "../core/protocol/calls.ts";
import { publicDecision } from "../core/protocol/decision.ts";
import { KNOWN_PROTOCOL, unsupportedOf } from "../core/protocol/messages.ts";
import type { MaybePromise, Attached, KeyCall } from "../core/protocol/object-methods.ts";
import type { Full } from "../core/protocol/problems.ts";
import { releaseLease, type ReleasingHost } from "./connections/lease-sockets.ts";
import { KeyCache, type MemoryBudget } from "./keys/key-cache.ts";
import type { KeyState } from "./keys/key-state.ts";
import { KeyStore, type Timers } from "./keys/key-store.ts";
import { type Deciding, keepsPlan } from "./keys/versions.ts";
import type { Outbox } from "./notices/outbox.ts";
import { Epochs, withQuiet } from "./operations/limits.ts";
import { type LocalOperations, localOperations } from "./operations/local-operations.ts";
import type { AskKey, Operations } from "./operations/operations.ts";
import { Shedders } from "./operations/shedders.ts";
import { TO_NOBODY } from "./operations/turns.ts";
import { WaitQueue } from "./operations/wait-queue.ts";
import type { KeyStorage } from "./storage/storage.ts";

interface KeyHost {
  readonly storage: KeyStorage;
  readonly timers: Timers;
  readonly policies: PolicyLookup;
  /** Shared with other objects. Absent: its own. */
  readonly memory?: MemoryBudget;
  /** Absent: the real one. */
  readonly time?: Time;
  readonly loadPooled: (parts: PoolParts) => Promise<Operations>;
  readonly makeOutbox?: ((store: KeyStore) => Outbox) | undefined;
  /** Absent: as many as one object should hear of. */
  readonly holdersForRegions?: number | undefined;
}

export interface PoolParts {
  readonly store: KeyStore;
  readonly queue: WaitQueue;
  readonly local: LocalOperations;
  readonly toNow: (keyState: KeyState) => number;
  readonly open: OpenKey;
  readonly nowMs: () => number;
}

/** @param inForce the version of the policy that the caller knows */
type OpenKey = (policy: string, key: string, inForce?: PolicyRevision) => [keyState: KeyState, nowMs: number];

/** Joins the parts that decide the keys of one object. They are independent of the platform. */
export function joinParts({
  storage,
  timers,
  policies,
  memory,
  loadPooled,
  time,
  holdersForRegions,
  makeOutbox,
}: KeyHost) {
  const cache = new KeyCache(storage, memory, policies);
  const onWritten = (wholeMs: number, nowMs: number) =>
    timers.alarmBy(storage.sweeps.dueMs(wholeMs, nowMs), nowMs);
  const store = new KeyStore(policies, storage, cache, onWritten);
  const outbox = makeOutbox?.(store);
  store.notices = outbox;
  const open: OpenKey = (policy, key, inForce) => {
    const nowMs = timers.nowMs();
    if (inForce !== undefined) cache.versions.note(key, inForce);
    const keyState = store.open(policy, key, nowMs);
    if (keyState.holders.size > 0) keyState.holders.noteClock(timers.isBehind);
    queue.follow(keyState);
    outbox?.follow(keyState, nowMs);
    return [keyState, nowMs];
  };
  const toNow = (keyState: KeyState) => {
    const nowMs = timers.nowMs();
    keyState.advance(nowMs);
    return nowMs;
  };
  const queue = new WaitQueue(toNow, time);
  const shedders = new Shedders();
  const epochs = new Epochs();
  const local = localOperations(store, queue, shedders, { counter: storage.counter, holdersForRegions });
  const ask = makeAsk({
    local,
    loadPooled: () => loadPooled({ store, queue, local, toNow, open, nowMs: () => timers.nowMs() }),
    open,
    release: (keyState) => cache.release(keyState),
    ...(outbox && { onAnswer: (keyState, answer) => store.answered(keyState, answer, toNow(keyState)) }),
  });
  const policyOf = (policy: string, key: string) => cache.policyOf(policy, policies.get(policy), key);
  /** A call came with its sender's version of the policy. */
  const hear = (policy: string, key: string, { terms, inForce, ...call }: Versioned & Partial<Deciding>) => {
    epochs.hear(inForce);
    const keeps = inForce?.plan !== undefined && keepsPlan(call, cache.known(key)?.holders);
    if (inForce !== undefined) cache.versions.note(key, keeps ? withoutPlan(inForce) : inForce);
    if (terms === undefined || inForce?.fields !== undefined) return;
    const own = policies.get(policy);
    if (own !== undefined && own.terms !== terms) cache.fingerprints.note(own, terms, timers.nowMs());
  };
  return {
    outbox,
    hear,
    policyOf,
    storage,
    cache,
    timers,
    policies,
    queue,
    onWritten,
    ask,
    local,
    shedders,
    epochs,
  };
}

export type KeyParts = ReturnType<typeof joinParts>;

interface AskHost extends Pick<PoolParts, "open"> {
  readonly local: Operations;
  readonly loadPooled: () => Promise<Operations>;
  /** Ends `open`: a key without state is dropped. */
  readonly release: (keyState: KeyState) => void;
  readonly onAnswer?: (keyState: KeyState, answer: unknown) => void;
}

/**
 * Makes the function that opens each call's key and runs its operations: local ones, or those of its pool,
 * loaded at the first such call. A call that ends releases its key. Then a key without state is dropped, and
 * the next call makes another `KeyState`. No call may use a released one: two of one key could both save. So
 * calls to pools pin their key until they end, and a line pins the key of waiting local calls (`WaitQueue`).
 */
export function makeAsk({ local, loadPooled, open, release, onAnswer }: AskHost): AskKey {
  let pooled: Operations | undefined;
  let loading: Promise<Operations> | undefined;
  const load = async () => (pooled = await loadPooled());
  return (policy, key, ask) => {
    const [keyState, nowMs] = open(policy, key);
    const onLocalEnd = () => release(keyState);
    const asked = () => {
      const answered = ask(local, keyState, nowMs);
      if (onAnswer === undefined || keyState.policy.notify === undefined) return answered;
      return andThen(answered, (answer) => (onAnswer(keyState, answer), answer));
    };
    if (keyState.policy.pool === undefined) return untilEnd(asked, onLocalEnd);
    const askPool = (operations: Operations, state: KeyState, atMs: number) => {
      const unpin = state.pin();
      const onEnd = () => {
        unpin();
        release(state);
      };
      return untilEnd(() => ask(operations, state, atMs), onEnd);
    };
    if (pooled !== undefined) return askPool(pooled, keyState, nowMs);
    // While the module is loading the key keeps the version of the policy that the call brought.
    const unpin = keyState.pin();
    const opened = () => {
      unpin();
      return open(policy, key);
    };
    const failed = (error: unknown) => {
      release(opened()[0]);
      throw error;
    };
    loading ??= load();
    return loading.then((operations) => askPool(operations, ...opened()), failed);
  };
}

const YOUNG: Young = { young: true };

type CallOf<Op extends KeyCall["op"]> = Extract<KeyCall, { readonly op: Op }>;
type PlainCall = Exclude<
  KeyCall,
  CallOf<"giveBack" | "acquire" | "confirm" | "release" | "tell" | "reset" | "endWaits">
>;

/** A call that comes as a request and not over RPC: it waits, or opens a socket. */
export type WaitingCall = AcquireCall | IdleCall | LimitCall;

/** Leases that end with their callers. They need the platform, so a limiter in memory has none. */
interface AttachedLeases {
  acquire(call: CallOf<"acquire">): Promise<Attached>;
  confirm(call: CallOf<"confirm">): Promise<Attached>;
}

/**
 * The calls on keys that are here. Nothing is awaited between reading and writing, so there are no locks and
 * no races. The output gate holds an answer back until the write that covers it is durable.
 */
export class KeyCalls {
  readonly #parts: KeyParts & ReleasingHost;
  readonly #attached: AttachedLeases | undefined;

  /** @param attached absent: `acquire` and `confirm` throw */
  constructor(parts: KeyParts & ReleasingHost, attached?: AttachedLeases) {
    this.#parts = parts;
    this.#attached = attached;
  }

  /** Answers at once if possible. A message of a higher protocol is rejected. */
  call(message: KeyCall): MaybePromise<unknown> {
    const parts = this.#parts;
    const { policy, key } = message;
    switch (message.op) {
      case "giveBack":
        for (const each of message.returned)
          void parts.ask(policy, each.key, (operations, keyState, nowMs) =>
            operations.giveBack(keyState, each, nowMs),
          );
        return undefined;
      case "acquire":
        parts.hear(policy, key, message);
        return this.#leases.acquire(message);
      case "confirm":
        return this.#leases.confirm(message);
      case "release":
        parts.hear(policy, key, message);
        return unsupportedOf(message) ?? releaseLease(parts, message);
      case "tell":
        parts.hear(policy, key, message);
        // Serves callers that wait for the key. A key that is not in memory has none.
        if (parts.cache.known(key) !== undefined) void parts.ask(policy, key, () => undefined);
        return undefined;
      case "reset":
        parts.epochs.lift();
        return parts.ask(policy, key, (operations, keyState, nowMs) =>
          andThen(operations.reset(keyState, nowMs), () => parts.sockets.closeLost(policy, keyState)),
        );
      case "endWaits":
        return parts.ask(policy, key, (operations, keyState, nowMs) => operations.endWaits(keyState, nowMs));
      case "cancel":
      case "hold":
      case "lease":
      case "limit":
      case "peek":
      case "refund":
      case "renew":
      case "reserve":
      case "set":
      case "settle":
      case "shedding":
      case "slots":
        parts.hear(policy, key, message);
        return (
          unsupportedOf(message) ??
          parts.ask<unknown>(policy, key, (operations, keyState, nowMs) =>
            this.#decide(operations, keyState, message, nowMs),
          )
        );
      default:
        return message satisfies never;
    }
  }

  #decide(operations: Operations, keyState: KeyState, call: PlainCall, nowMs: number): unknown {
    const { local, shedders, epochs, cache } = this.#parts;
    const mayLift = call.op === "set" || call.op === "refund" || (call.op === "limit" && call.force === true);
    if (mayLift) epochs.lift();
    const inEpoch = (holder?: string) => (answer: Answer) => {
      const quiet = withQuiet(keyState, answer, nowMs, { holder });
      // When nobody sends the other rules any more, the object's own ones may admit more.
      const isMixed = cache.fingerprints.has(call.policy);
      return isMixed ? quiet : epochs.written(keyState, call, quiet);
    };
    switch (call.op) {
      case "limit":
        return call.force === true
          ? local.limits.force(keyState, call, nowMs)
          : andThen(operations.limit(keyState, call, nowMs), inEpoch());
      case "set":
        return local.limits.setUsed(keyState, call, nowMs) ?? operations.peek(keyState, nowMs);
      case "reserve":
        return andThen(operations.reserve(keyState, call, nowMs), inEpoch(call.holder));
      case "refund":
        return operations.refund(keyState, call, nowMs);
      case "hold":
        return operations.hold(keyState, call, nowMs);
      case "lease":
        return operations.acquire(keyState, call, nowMs);
      case "settle":
        return operations.settle(keyState, call, nowMs);
      case "cancel":
        return operations.cancel(keyState, call, nowMs);
      case "renew":
        if (call.mayBeYoung === true && local.slots.mayBeYoung(keyState, call.id, nowMs)) return YOUNG;
        return operations.renew(keyState, call, nowMs);
      case "slots":
        return local.slots.take(keyState, call, nowMs);
      case "shedding":
        return shedders.tell(keyState, call, nowMs);
      case "peek":
        return operations.peek(keyState, nowMs, call);
      default:
        return call satisfies never;
    }
  }

  /**
   * Answers a call that may wait, by its path; an unknown one comes from a newer version. These calls are
   * requests, not RPC: only a request has a signal that is aborted when the caller goes (flag
   * enable_request_signal; workerd 1.20261023.1: within 2 ms).
   */
  async request(path: string, call: WaitingCall, signal: AbortSignal): Promise<unknown> {
    if (path === "/idle") return await untilIdle(this.#parts, call as IdleCall, signal);
    if (path !== "/acquire" && path !== "/limit") return { unsupported: { protocol: KNOWN_PROTOCOL } };
    // A caller that left before is not charged.
    if (signal.aborted) return TO_NOBODY;
    if (path === "/acquire") return await acquire(this.#parts, call as AcquireCall, signal);
    const limit = { op: "limit" as const, ...(call as LimitCall), signal };
    return await this.call(limit);
  }

  async keys(call: KeysCall): Promise<AnswerText> {
    return JSON.stringify(unsupportedOf(call) ?? (await listKeys(this.#parts, call)));
  }

  countKeys(call: KeysCall): AnswerText {
    const { storage, cache } = this.#parts;
    const { prefix = "" } = call;
    const count = () => storage.countKeys(prefix) + unrecorded(cache, prefix).length;
    return JSON.stringify(unsupportedOf(call) ?? ({ count: count() } satisfies KeyCount));
  }

  get #leases(): AttachedLeases {
    if (this.#attached === undefined) throw new Error("leases that end with their callers take the platform");
    return this.#attached;
  }
}

async function acquire({ ask, hear }: KeyParts, call: AcquireCall, signal: AbortSignal): Promise<Answer> {
  const { policy, key, ...params } = call;
  hear(policy, key, call);
  const answer = await ask(policy, key, (operations, keyState, nowMs) =>
    operations.acquire(keyState, { ...params, signal }, nowMs),
  );
  // With an idempotency key the lease may belong to an earlier call: then it stays.
  if (signal.aborted && call.idempotencyKey === undefined)
    await ask(policy, key, (operations, keyState, nowMs) =>
      operations.release(keyState, { id: call.id, outcome: "ignore" }, nowMs),
    );
  return answer;
}

async function untilIdle({ ask, hear, queue }: KeyParts, call: IdleCall, signal: AbortSignal) {
  const { policy, key, waitMs, caller } = call;
  hear(policy, key, { ...call, op: "peek" });
  const over = await ask<Full | undefined>(policy, key, (_, keyState, nowMs) => {
    const watcher = { untilMs: nowMs + waitMs, signal, caller };
    return queue.watchersFull(keyState, caller) ?? queue.untilIdle(keyState, watcher);
  });
  return (
    over ?? (await ask(policy, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs, call)))
  );
}

/** Other calls come in after this many keys of a long list. */
const KEYS_A_TURN = 50;

/** Lists stored keys and keys only in memory, each with a peek; untouched ones until their deletion. */
async function listKeys(parts: KeyParts, call: KeysCall): Promise<KeyList> {
  const { storage, cache, ask, policies } = parts;
  const { policy: name, prefix = "", after, most = 0 } = call;
  const stored = storage.keysAfter(prefix, after, most + 1);
  const others = unrecorded(cache, prefix).filter((key) => after === undefined || byBytes(key, after) > 0);
  const found = others.length === 0 ? stored : [...stored, ...others].toSorted(byBytes).slice(0, most + 1);
  const keys: ListedKey[] = [];
  for (const [index, key] of found.slice(0, most).entries()) {
    if (index % KEYS_A_TURN === KEYS_A_TURN - 1) await new Promise((resolve) => setTimeout(resolve, 0));
    const policy = cache.policyOf(name, policies.get(name), key);
    // It may have moved meanwhile: then it is listed there.
    if (policy === undefined || (policy.objectsBefore !== undefined && storage.moves.isAway(key))) continue;
    const peeked = await ask(name, key, (operations, keyState, nowMs) => operations.peek(keyState, nowMs));
    const { limit, remaining = 0, resetAfterMs = 0 } = publicDecision(policy, key, peeked);
    const { outstanding, holds, leases } = peeked;
    keys.push({ key, limit, remaining, resetAfterMs, outstanding, holds, leases });
  }
  return { keys, hasMore: found.length > most };
}

function unrecorded(cache: KeyCache, prefix: string): string[] {
  const keys: string[] = [];
  for (const state of cache.states)
    if (state.key.startsWith(prefix) && state.isUnrecorded && !state.isWritten && !state.isEmpty)
      keys.push(state.key);
  return keys;
}

/** The order of two keys in storage: by their bytes in UTF-8, which is the order of code points. */
function byBytes(one: string, other: string): number {
  let at = 0;
  while (at < one.length && one[at] === other[at]) at += 1;
  // Where they differ in the second half of a code point, the first half is the same.
  const pointOf = (text: string) => text.codePointAt(at) ?? -1;
  return pointOf(one) - pointOf(other);
}
