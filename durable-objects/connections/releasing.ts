/** How callers end leases. A lease of a socket ends with its socket, so the socket is closed too. */
import type { WantedRelease } from "../../core/protocol/messages.ts";
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
  return await host.ask(policy, key, (operations, keyState, nowMs) => {
    const isSocket = keyState.claims.get(call.id)?.isSocket === true;
    const ended = endLease(operations, keyState, call, nowMs);
    const close = (isReleased: boolean) => {
      if (isSocket) closeLost(host, policy, keyState);
      return isReleased;
    };
    return ended instanceof Promise ? ended.then(close) : close(ended);
  });
}

/**
 * Closes the sockets of a key whose leases have ended. It is part of the call that ended them: of a key of which nothing is
 * left nobody may know the policy any more.
 */
export function closeLost(
  { sockets }: Pick<ReleasingHost, "sockets">,
  policy: string,
  { key, claims }: { readonly key: string; readonly claims: { has(leaseId: string): boolean } },
): void {
  sockets.closeLost(policy, key, (leaseId) => claims.has(leaseId));
}
