import { SYSTEM_TIME } from "../core/clock.ts";
import { CallRouter } from "./call-router.ts";
import { LeaseSockets } from "./connections/lease-sockets.ts";
import { WaitingCalls } from "./connections/waiting-calls.ts";
import { collectGarbage, FORGET_AFTER_MS } from "./keys/garbage-collection.ts";
import { KeyCache } from "./keys/key-cache.ts";
import type { KeyState } from "./keys/key-state.ts";
import { KeyStore } from "./keys/key-store.ts";
import { inTurns, Timers } from "./keys/timers.ts";
import { loadPool } from "./load-pool.ts";
import type { MovesHost } from "./moves/host.ts";
import { ELSEWHERE, KeyMoves } from "./moves/key-moves.ts";
import { passOn } from "./moves/passing.ts";
import { Places, type ObjectNamespace } from "./moves/places.ts";
import { Residents } from "./moves/residents.ts";
import { objectPolicies } from "./object-policies.ts";
import { Debits } from "./operations/debits.ts";
import { LocalOperations } from "./operations/local-operations.ts";
import type { AskAnywhere, AskKey } from "./operations/operations.ts";
import { Shedders } from "./operations/shedders.ts";
import { WaitQueue } from "./operations/wait-queue.ts";
import { Storage } from "./storage/storage.ts";

/** Makes the parts of an object and joins them. */
export function makeParts(ctx: DurableObjectState, namespace: ObjectNamespace) {
  const storage = new Storage(ctx.storage);
  const cache = new KeyCache(storage);
  const timers = new Timers(ctx.storage);
  const onWritten = (wholeMs: number, atMs: number) => timers.alarmBy(wholeMs + FORGET_AFTER_MS, atMs);
  const store = new KeyStore(objectPolicies, storage, cache, onWritten);
  /** Opens a key: it is as of the instant that comes with it. */
  const open = (policy: string, key: string): [keyState: KeyState, nowMs: number] => {
    const nowMs = timers.nowMs();
    return [store.open(policy, key, nowMs), nowMs];
  };
  const toNow = (keyState: KeyState) => {
    const nowMs = timers.nowMs();
    keyState.advance(nowMs);
    return nowMs;
  };
  const nowMs = () => timers.nowMs();
  const queue = new WaitQueue(toNow);
  const shedders = new Shedders();
  const local = new LocalOperations(store, queue, shedders);
  const debits = new Debits(store, queue);
  const { ask } = new CallRouter({
    local,
    loadPooled: () => loadPool({ store, queue, local, toNow, open, nowMs }),
    open,
    letGo: (keyState) => cache.letGo(keyState),
  });
  const host = { policies: objectPolicies, storage, cache, nowMs, onWritten };
  const placing = makePlacing(ctx, namespace, host, queue, ask);
  const renewBy = (dueMs: number, atMs: number) => timers.alarmBy(dueMs, atMs, 0);
  const sockets = new LeaseSockets(ctx, {
    policies: objectPolicies,
    ask,
    anywhere: placing.anywhere,
    nowMs,
    renewBy,
  });
  const waiting = new WaitingCalls(ask, queue);
  const cleanUp = () => cleaned({ storage, cache, timers, sockets });
  /** The process is about to end: what memory is ahead by is written. */
  const rest = () => {
    const atMs = timers.nowMs();
    if (cache.writeAll(atMs)) storage.leads.end(objectPolicies, atMs);
  };
  const policies = objectPolicies;
  const calls = { policies, storage, cache, timers, ask, debits, shedders, sockets, waiting };
  return { ...calls, ...placing, rest, cleanUp };
}

/** The parts by which keys move between objects, and by which calls find them. */
function makePlacing(
  ctx: DurableObjectState,
  namespace: ObjectNamespace,
  host: Omit<MovesHost, "residents" | "places" | "time" | "endLine">,
  queue: WaitQueue,
  ask: AskKey,
) {
  const places = new Places(namespace, ctx.id);
  const moves = new KeyMoves({
    ...host,
    residents: new Residents(host.storage),
    places,
    time: SYSTEM_TIME,
    endLine: (keyState, moved) => queue.end(keyState, moved),
  });
  const anywhere: AskAnywhere = (policy, key, here, { read, ...sent }) =>
    moves.make(policy, key, {
      isPassedOn: false,
      here: () => ask(policy, key, here),
      there: async (kept, mayBeAt) => {
        const returned = await passOn(places, kept, { policy, key, mayBeAt, ...sent });
        return returned === ELSEWHERE ? ELSEWHERE : read(returned);
      },
    });
  return { places, moves, anywhere };
}

/** What an alarm does: it renews sockets' leases, collects garbage, and deletes everything when nothing is left. */
async function cleaned({
  storage,
  cache,
  timers,
  sockets,
}: {
  readonly storage: Storage;
  readonly cache: KeyCache;
  readonly timers: Timers;
  readonly sockets: LeaseSockets;
}): Promise<void> {
  timers.alarmCame();
  const againMs = await sockets.renew();
  const collecting = collectGarbage(storage, cache, objectPolicies, () => timers.nowMs());
  await inTurns(collecting, async (dueMs) => {
    const nowMs = timers.nowMs();
    if (dueMs === undefined) await storage.removeAll().then(() => timers.alarmCame());
    const nextMs = Math.min(dueMs ?? Infinity, againMs);
    if (nextMs < Infinity) timers.alarmBy(nextMs, nowMs, againMs < Infinity ? 0 : undefined);
  });
}

export type ObjectParts = ReturnType<typeof makeParts>;
