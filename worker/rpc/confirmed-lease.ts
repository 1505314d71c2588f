import type { LimiterClient } from "../../client/limiter-client.ts";
import { readClockMs } from "../../core/clock.ts";
import { degradedDecision, type Decision } from "../../core/protocol/decision.ts";
import type { WantedLease } from "../../core/protocol/messages.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { Principal } from "../auth/tokens.ts";
import { CONFIRM_WITHIN_MS, type Acquire } from "../calls/leases.ts";
import { findClaim } from "../calls/target.ts";

/** A decision, and what keeps its lease. */
export interface Granted {
  readonly decision: Decision | Problem;
  readonly attached?: Attached;
}

/**
 * Leases units for a caller who may have gone when they are granted, which nothing tells the object. So the lease is
 * brief until it is confirmed. One that has ended before that (by a reset, or since the machine stood still) was never
 * the caller's: the call is made once more, with what is left of its wait.
 *
 * @param link how the lease ends with what comes back; absent: not at all
 */
export async function acquireConfirmed(
  client: LimiterClient,
  principal: Principal,
  acquire: Acquire,
  link: Pick<WantedLease, "graceMs"> | undefined,
): Promise<Granted> {
  const { policy, key, asked } = acquire;
  const untilMs = readClockMs() + asked.waitMs;
  for (const isLast of [false, true]) {
    const waitMs = isLast ? Math.max(0, untilMs - readClockMs()) : asked.waitMs;
    const brief = { ...asked, waitMs, confirmWithinMs: CONFIRM_WITHIN_MS };
    const decision = await client.leases.acquire(policy, key, brief);
    if (decision instanceof Problem || decision.lease === undefined) return { decision };
    const secret = findClaim(client, principal, "lease", decision.lease.id)?.secret ?? "";
    const attached =
      link?.graceMs === undefined
        ? await client.leases.confirm(policy, key, secret, asked.ttlMs, link !== undefined)
        : await client.leases.takeOver(policy, key, { ...asked, ...link, resume: secret });
    if (attached === undefined) break;
    if (attached !== "ended")
      return {
        decision: { ...decision, lease: { ...decision.lease, expiresAfterMs: asked.ttlMs } },
        attached,
      };
  }
  return { decision: degradedDecision(policy, key) };
}
