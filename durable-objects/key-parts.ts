import type { Time } from "../core/clock.ts";
import type { PolicyLookup } from "../core/policies/policy.ts";
import type { Versioned } from "../core/protocol/messages.ts";
import type { MaybePromise } from "../core/protocol/object-methods.ts";
import { WaitingCalls } from "./connections/waiting-calls.ts";
import { collectGarbage } from "./keys/garbage-collection.ts";
import { inTurns, KeyCache, SHARED_MEMORY, Timers } from "./keys/key-cache.ts";
import type { KeyState } from "./keys/key-state.ts";
import { KeyStore } from "./keys/key-store.ts";
import { Debits } from "./operations/limits.ts";
import { LocalOperations } from "./operations/local-operations.ts";
import type { AskKey, Operations } from "./operations/operations.ts";
import { Shedders } from "./operations/shedders.ts";
import { WaitQueue } from "./operations/wait-queue.ts";
import type { KeyStorage } from "./storage/storage.ts";
import { FAILED_AGAIN_MS } from "./storage/sweeps.ts";

/** Where keys are kept, and by which policies they are decided. */
interface KeyHost {
  readonly storage: KeyStorage;
  readonly timers: Timers;
  readonly policies: PolicyLookup;
  /** Absent: the real one. */
  readonly time?: Time;
  /** Loads what decides keys whose units are in a pool. */
  readonly loadPooled: (parts: JoinedParts) => ReturnType<RouterHost["loadPooled"]>;
}

/** The parts that decide the keys of one object, joined. They know nothing of the platform. */
export function joinParts({ storage, timers, policies, loadPooled, time }: KeyHost) {
  const cache = new KeyCache(storage, SHARED_MEMORY);
  const onWritten = (wholeMs: number, nowMs: number) =>
    timers.alarmBy(storage.sweeps.dueMs(wholeMs, nowMs), nowMs);
  const store = new KeyStore(policies, storage, cache, onWritten);
  /** Opens a key: it is as of the instant that comes with it. */
  const open = (policy: string, key: string): [keyState: KeyState, nowMs: number] => {
    const nowMs = timers.nowMs();
    const keyState = store.open(policy, key, nowMs);
    queue.follow(keyState);
    return [keyState, nowMs];
  };
  const toNow = (keyState: KeyState) => {
    const nowMs = timers.nowMs();
    keyState.advance(nowMs);
    return nowMs;
  };
  const queue = new WaitQueue(toNow, time);
  const shedders = new Shedders();
  const local = new LocalOperations(store, queue, shedders, storage.counter);
  const debits = new Debits(store, queue);
  const joined = { store, queue, local, toNow, open, nowMs: () => timers.nowMs() };
  const { ask } = new CallRouter({
    local,
    loadPooled: () => loadPooled(joined),
    open,
    release: (keyState) => cache.release(keyState),
  });
  const waiting = new WaitingCalls(ask, queue);
  /** The policy by which a key is decided; `undefined`: nobody knows it. */
  const policyOf = (policy: string, key: string) => cache.policyOf(policy, policies.get(policy), key);
  /** A call has come, with what whoever sent it knows of the policy. */
  const hear = (policy: string, key: string, { terms, inForce }: Versioned) => {
    if (inForce !== undefined) cache.versions.tell(key, inForce);
    if (terms !== undefined && inForce?.fields === undefined)
      cache.heard.hear(policies.get(policy), terms, timers.nowMs());
  };
  return {
    hear,
    policyOf,
    storage,
    cache,
    timers,
    policies,
    queue,
    onWritten,
    ask,
    debits,
    shedders,
    waiting,
  };
}

/** What a pool's operations are made of. */
interface JoinedParts {
  readonly store: KeyStore;
  readonly queue: WaitQueue;
  readonly local: LocalOperations;
  readonly toNow: (keyState: KeyState) => number;
  readonly open: RouterHost["open"];
  readonly nowMs: () => number;
}

export type KeyParts = ReturnType<typeof joinParts>;

/**
 * What an alarm does: it renews sockets' leases, collects garbage, and deletes everything when nothing is left.
 *
 * The runtime gives up an alarm that has failed six times, and then none would come any more. So nothing that fails
 * here makes it fail, and one that was cut short sets the next before it does anything.
 *
 * @param isRepeated whether this alarm came before, and did not end
 */
export async function cleaned(
  { storage, cache, timers, policies }: Pick<KeyParts, "storage" | "cache" | "timers" | "policies">,
  renewSockets: () => Promise<number>,
  isRepeated = false,
): Promise<void> {
  timers.alarmCame();
  const failed = (error: unknown) => {
    console.error(`an alarm has failed, and comes again: ${String(error)}`);
    const nowMs = timers.nowMs();
    timers.alarmBy(nowMs + FAILED_AGAIN_MS, nowMs);
    return nowMs + FAILED_AGAIN_MS;
  };
  if (isRepeated) failed("it did not end");
  const againMs = await renewSockets().catch(failed);
  const collecting = collectGarbage(storage, cache, policies, () => timers.nowMs());
  const finish = async (dueMs: number | undefined) => {
    const nowMs = timers.nowMs();
    if (dueMs === undefined) await storage.removeAll().then(() => timers.alarmCame());
    const nextMs = Math.min(dueMs ?? Infinity, againMs);
    if (nextMs < Infinity) timers.alarmBy(nextMs, nowMs, againMs < Infinity ? 0 : undefined);
  };
  await inTurns(collecting, finish).catch(failed);
}

/** What the router needs of its object. */
interface RouterHost {
  readonly local: Operations;
  readonly loadPooled: () => Promise<Operations>;
  readonly open: (policy: string, key: string) => [keyState: KeyState, nowMs: number];
  /** Ends what `open` began: a key of which there is nothing leaves memory. */
  readonly release: (keyState: KeyState) => void;
}

type Ask<Result> = (operations: Operations, keyState: KeyState, nowMs: number) => MaybePromise<Result>;

/**
 * Opens the key of each call and passes the call to the operations that decide it. When the key's policy has no pool,
 * these are `LocalOperations`. When it has one, these are `PooledOperations`, which are loaded at the first such call.
 *
 * When a call ends, it lets its key go. A key of which there is nothing leaves memory then, and the next call makes
 * another `KeyState` of it. So no call may use a `KeyState` that it has let go, or that another call could: two of one
 * key could both save. Calls to pools wait for I/O, so they pin their key until they end. Local calls wait in line
 * only, and a line pins its key too (`WaitQueue`).
 */
export class CallRouter {
  readonly #host: RouterHost;
  #pooled: MaybePromise<Operations> | undefined;

  constructor(host: RouterHost) {
    this.#host = host;
  }

  readonly ask: AskKey = (policy, key, ask) => {
    const { local, open, release } = this.#host;
    const [keyState, nowMs] = open(policy, key);
    const operations = this.#operationsFor(keyState);
    if (operations === local)
      return untilEnd(
        () => ask(local, keyState, nowMs),
        () => release(keyState),
      );
    if (!(operations instanceof Promise)) return this.#askPool(operations, ask, keyState, nowMs);
    // Loading takes time, and the key may leave memory meanwhile: so the key is opened again.
    release(keyState);
    return operations.then((pooled) => this.#askPool(pooled, ask, ...open(policy, key)));
  };

  #askPool<Result>(
    pooled: Operations,
    ask: Ask<Result>,
    keyState: KeyState,
    nowMs: number,
  ): MaybePromise<Result> {
    const unpin = keyState.pins.add();
    return untilEnd(
      () => ask(pooled, keyState, nowMs),
      () => {
        unpin();
        this.#host.release(keyState);
      },
    );
  }

  #operationsFor({ policy }: KeyState): MaybePromise<Operations> {
    if (policy.pool === undefined) return this.#host.local;
    this.#pooled ??= this.#host.loadPooled().then((loaded) => (this.#pooled = loaded));
    return this.#pooled;
  }
}

/** Does `work`, and then calls `onEnd`: when its promise is settled if it is one, and also when it throws. */
function untilEnd<Result>(work: () => MaybePromise<Result>, onEnd: () => void): MaybePromise<Result> {
  let answer: MaybePromise<Result>;
  try {
    answer = work();
  } catch (error) {
    onEnd();
    throw error;
  }
  if (answer instanceof Promise) void answer.then(onEnd, onEnd);
  else onEnd();
  return answer;
}
