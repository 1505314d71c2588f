import type { Decision } from "../core/protocol/decision.ts";
import type { Grant } from "./limiter.ts";

/**
 * The decision, of which `await using` releases the lease. A lease that has ended by then needs no release. The decision
 * that was given may keep a link (transports/service.ts), and what is returned keeps it.
 */
export function withRelease(decision: Decision, release: (id: string) => Promise<void>): Grant {
  const end = async () => {
    if (decision.lease !== undefined) await release(decision.lease.id).catch(() => undefined);
  };
  return Object.defineProperty({ ...decision }, Symbol.asyncDispose, { value: end }) as Grant;
}
