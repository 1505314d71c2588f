import { Holds } from "./operations/holds.ts";
import { Desk, type Clerks } from "./call-router.ts";
import { Reservations } from "./operations/reservations.ts";
import type { KeyStore } from "./keys/key-store.ts";
import { Leases } from "./operations/leases.ts";
import { Limits } from "./operations/limits.ts";
import { loadPool, type ObjectParts } from "./load-pool.ts";
import type { WaitQueue } from "./operations/wait-queue.ts";

/** The desk of an object. */
export function makeDesk(store: KeyStore, queue: WaitQueue, parts: ObjectParts): Desk {
  const limits = new Limits(store, queue);
  const clerks: Clerks = {
    store,
    queue,
    limits,
    reservations: new Reservations(store, limits, queue),
    leases: new Leases(store, queue),
    holds: new Holds(store, queue),
  };
  return new Desk(clerks, () => loadPool(clerks, parts));
}
