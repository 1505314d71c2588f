/** How callers end leases. A lease of a socket ends with its socket, so the socket is closed too. */
import type { Lease, Missing } from "../../core/protocol/answers.ts";
import type { WantedRelease } from "../../core/protocol/messages.ts";
import type { Maybe } from "../../core/protocol/object-methods.ts";
import type { KeyState } from "../keys/key-state.ts";
import type { AskKey, Operations } from "../operations/operations.ts";
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

/** Ends a lease where its key is: at once, or in `graceMs` when its link has ended and its holder may come back. */
export function endLease(
  operations: Operations,
  keyState: KeyState,
  { id, outcome, durationMs, link, graceMs }: WantedRelease,
  nowMs: number,
): Maybe<boolean> {
  if (graceMs === undefined) return operations.release(keyState, id, nowMs, { outcome, durationMs, link });
  const left = operations.renew(keyState, id, graceMs, nowMs, { from: link });
  return left instanceof Promise ? left.then(isThere) : isThere(left);
}

function isThere(lease: Lease | Missing): boolean {
  return !("missing" in lease);
}

/** Closes the sockets of a key whose leases have ended. */
export function closeLost({ ask, sockets }: ReleasingHost, policy: string, key: string): Maybe<void> {
  return ask(policy, key, (_, { claims }) =>
    sockets.closeLost(policy, key, (leaseId) => claims.has(leaseId)),
  );
}
