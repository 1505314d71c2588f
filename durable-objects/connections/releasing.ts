/** How callers end leases. A lease of a socket ends with its socket, so the socket is closed too. */
import type { WantedRelease } from "../../core/protocol/messages.ts";
import type { Maybe } from "../../core/protocol/object-methods.ts";
import { endLease } from "../operations/lease-ends.ts";
import type { AskKey } from "../operations/operations.ts";
import type { LeaseSockets } from "./lease-sockets.ts";

/** The parts of the object that ending a lease takes. */
export interface ReleasingHost {
  readonly ask: AskKey;
  readonly sockets: Pick<LeaseSockets, "closeLost">;
}

/** Ends a lease as its holder reports, or since its link has ended. Returns whether there was such a lease. */
export async function releaseLease(
  host: ReleasingHost,
  policy: string,
  key: string,
  call: WantedRelease,
): Promise<boolean> {
  let isSocket = false;
  const isReleased = await host.ask(policy, key, (operations, keyState, nowMs) => {
    isSocket = keyState.claims.get(call.id)?.isSocket === true;
    return endLease(operations, keyState, call, nowMs);
  });
  if (isSocket) await closeLost(host, policy, key);
  return isReleased;
}

/** Closes the sockets of a key whose leases have ended. */
export function closeLost({ ask, sockets }: ReleasingHost, policy: string, key: string): Maybe<void> {
  return ask(policy, key, (_, { claims }) =>
    sockets.closeLost(policy, key, (leaseId) => claims.has(leaseId)),
  );
}
