import { SYSTEM_TIME } from "../core/clock.ts";
import { LeaseSockets } from "./connections/lease-sockets.ts";
import { cleaned, joinParts, type KeyParts } from "./key-parts.ts";
import { Timers } from "./keys/timers.ts";
import { loadPool } from "./load-pool.ts";
import { ELSEWHERE, KeyMoves } from "./moves/key-moves.ts";
import { passOn } from "./moves/passing.ts";
import { Places, type ObjectNamespace } from "./moves/places.ts";
import { Residents } from "./moves/residents.ts";
import { objectPolicies } from "./object-policies.ts";
import { objectCounter } from "./object-stats.ts";
import type { AskAnywhere } from "./operations/operations.ts";
import { countedStorage } from "./storage/counted-storage.ts";
import { Storage } from "./storage/storage.ts";

/** Makes the parts of an object and joins them. */
export function makeParts(ctx: DurableObjectState, namespace: ObjectNamespace) {
  const counted = countedStorage(ctx.storage, objectCounter);
  const storage = new Storage(counted, objectCounter);
  const timers = new Timers(counted);
  const parts = joinParts({ storage, timers, policies: objectPolicies, loadPooled: loadPool });
  const { cache, ask } = parts;
  const nowMs = () => timers.nowMs();
  const placing = makePlacing(ctx, namespace, storage, parts);
  const renewBy = (dueMs: number, atMs: number) => timers.alarmBy(dueMs, atMs, 0);
  const { anywhere } = placing;
  const sockets = new LeaseSockets(ctx, { policyOf: parts.policyOf, ask, anywhere, nowMs, renewBy });
  const cleanUp = (isRepeated: boolean) => cleaned(parts, () => sockets.renew(), isRepeated);
  /** The process is about to end: what memory is ahead by is written. */
  const rest = () => {
    const atMs = timers.nowMs();
    if (cache.writeAll(atMs)) storage.leads.end(objectPolicies, atMs);
  };
  return { ...parts, ...placing, rest, sockets, cleanUp };
}

/** The parts by which keys move between objects, and by which calls find them. */
function makePlacing(
  ctx: DurableObjectState,
  namespace: ObjectNamespace,
  storage: Storage,
  { cache, timers, policies, queue, onWritten, ask }: KeyParts,
) {
  const places = new Places(namespace, ctx.id, (name) => policies.get(name)?.jurisdiction);
  const moves = new KeyMoves({
    policies,
    storage,
    cache,
    onWritten,
    nowMs: () => timers.nowMs(),
    residents: new Residents(storage),
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

export type ObjectParts = ReturnType<typeof makeParts>;
