import { CallerHolds } from "./operations/holds.ts";
import { Desk, type Clerks } from "./call-router.ts";
import { Grants } from "./operations/reservations.ts";
import type { Ledger } from "./keys/key-store.ts";
import { Leases } from "./operations/leases.ts";
import { Limits } from "./operations/limits.ts";
import { loadRegional, type ObjectParts } from "./load-pool.ts";
import type { WaitingRoom } from "./operations/wait-queue.ts";

/** The desk of an object. */
export function makeDesk(ledger: Ledger, room: WaitingRoom, parts: ObjectParts): Desk {
  const limits = new Limits(ledger, room);
  const clerks: Clerks = {
    ledger,
    room,
    limits,
    grants: new Grants(ledger, limits, room),
    leases: new Leases(ledger, room),
    holds: new CallerHolds(ledger, room),
  };
  return new Desk(clerks, () => loadRegional(clerks, parts));
}
