import { CallerHolds } from "./caller-holds.ts";
import { Desk, type Clerks } from "./desk.ts";
import { Grants } from "./grants.ts";
import type { Ledger } from "./ledger.ts";
import { Leases } from "./leases.ts";
import { Limits } from "./limits.ts";
import { loadRegional, type ObjectParts } from "./load-regional.ts";
import type { WaitingRoom } from "./waiting.ts";

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
