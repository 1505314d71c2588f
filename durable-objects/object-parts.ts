import { LeaseSockets } from "./connections/lease-sockets.ts";
import { cleaned, joinParts } from "./key-parts.ts";
import { Timers } from "./keys/timers.ts";
import { loadPool } from "./load-pool.ts";
import { objectPolicies } from "./object-policies.ts";
import { Storage } from "./storage/storage.ts";

/** Makes the parts of an object and joins them. */
export function makeParts(ctx: DurableObjectState) {
  const storage = new Storage(ctx.storage);
  const timers = new Timers(ctx.storage);
  const parts = joinParts({ storage, timers, policies: objectPolicies, loadPooled: loadPool });
  const { cache, ask } = parts;
  const nowMs = () => timers.nowMs();
  const renewBy = (dueMs: number, atMs: number) => timers.alarmBy(dueMs, atMs, 0);
  const sockets = new LeaseSockets(ctx, { policies: objectPolicies, ask, nowMs, renewBy });
  const cleanUp = () => cleaned(parts, () => sockets.renew());
  /** The process is about to end: what memory is ahead by is written. */
  const rest = () => {
    const atMs = timers.nowMs();
    if (cache.writeAll(atMs)) storage.leads.end(objectPolicies, atMs);
  };
  return { ...parts, rest, sockets, cleanUp };
}

export type ObjectParts = ReturnType<typeof makeParts>;
