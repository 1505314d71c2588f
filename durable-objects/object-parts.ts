import { CallRouter } from "./call-router.ts";
import { LeaseSockets } from "./connections/lease-sockets.ts";
import { WaitingCalls } from "./connections/waiting-calls.ts";
import { collectGarbage } from "./keys/garbage-collection.ts";
import { KeyCache } from "./keys/key-cache.ts";
import type { KeyState } from "./keys/key-state.ts";
import { KeyStore } from "./keys/key-store.ts";
import { inTurns, Timers } from "./keys/timers.ts";
import { loadPool } from "./load-pool.ts";
import { objectPolicies } from "./object-policies.ts";
import { Debits } from "./operations/debits.ts";
import { LocalOperations } from "./operations/local-operations.ts";
import { Shedders } from "./operations/shedders.ts";
import { WaitQueue } from "./operations/wait-queue.ts";
import { Storage } from "./storage/storage.ts";

/** Makes the parts of an object and joins them. */
export function makeParts(ctx: DurableObjectState) {
  const storage = new Storage(ctx.storage);
  const cache = new KeyCache(storage);
  const timers = new Timers(ctx.storage);
  const store = new KeyStore(objectPolicies, storage, cache, (wholeMs, nowMs) =>
    timers.alarmBy(storage.sweeps.dueMs(wholeMs, nowMs), nowMs),
  );
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
  const renewBy = (dueMs: number, atMs: number) => timers.alarmBy(dueMs, atMs, 0);
  const sockets = new LeaseSockets(ctx, { policies: objectPolicies, ask, nowMs, renewBy });
  const waiting = new WaitingCalls(ask, queue);
  const cleanUp = () => cleaned({ storage, cache, timers, sockets });
  /** The process is about to end: what memory is ahead by is written. */
  const rest = () => {
    const atMs = timers.nowMs();
    if (cache.writeAll(atMs)) storage.leads.end(objectPolicies, atMs);
  };
  return { rest, storage, cache, timers, ask, debits, shedders, sockets, waiting, cleanUp };
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
