/** How callers end leases. A lease of a socket ends with its socket, so the socket is closed too. */
import type { ReleaseCall } from "../../core/protocol/messages.ts";
import type { Maybe } from "../../core/protocol/object-methods.ts";
import type { AskKey } from "../operations/operations.ts";
import type { LeaseSockets } from "./lease-sockets.ts";

/** The parts of the object that ending a lease takes. */
export interface ReleasingHost {
  readonly ask: AskKey;
  readonly sockets: Pick<LeaseSockets, "closeLost">;
}

/** Ends a lease as its holder reports. Returns whether there was such a lease. */
export async function releaseLease(
  host: ReleasingHost,
  policy: string,
  key: string,
  { id, outcome, durationMs }: Pick<ReleaseCall, "id" | "outcome" | "durationMs">,
): Promise<boolean> {
  let isSocket = false;
  const isReleased = await host.ask(policy, key, (operations, keyState, nowMs) => {
    isSocket = keyState.claims.get(id)?.isSocket === true;
    return operations.release(keyState, id, nowMs, { outcome, durationMs });
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
