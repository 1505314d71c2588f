import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { readClockMs } from "../../core/clock.ts";
import { type Decision, degradedDecision } from "../../core/protocol/decision.ts";
import type { AcquireParams } from "../../core/protocol/messages.ts";
import type { Attached } from "../../core/protocol/object-methods.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { Principal } from "../auth/tokens.ts";
import { acquireCandidate, skipCandidate } from "../calls/candidates.ts";
import { type Acquire, acquireOf, CONFIRM_WITHIN_MS, linkedOf } from "../calls/leases.ts";
import { BoundAcquireRequest } from "../calls/schemas/request-schemas.ts";
import { type TargetAnswer, blockedDecision, call, findClaim } from "../calls/target.ts";
import { given, refused } from "../calls/validate.ts";

/**
 * A decision, with what keeps its lease. Disposing of it releases the lease, and the runtime does so when the caller
 * ends. A lease that was asked for with `graceMs` ends so much later then.
 */
export type Grant = Decision & Omit<Attached, "answer">;

/** Leases units for a caller over the service binding, or lets it take over a lease that it had. */
export function callAcquireBound(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<TargetAnswer<Grant> | Problem> {
  return call(client, principal, BoundAcquireRequest, input, async (target, request) => {
    const acquire = acquireOf(client, target, request, given(input, "units"));
    if (acquire instanceof Problem) return acquire;
    const { policy, key, asked } = acquire;
    const linked = detachedProblem(request) ?? linkedOf(client, principal, acquire, request);
    if (linked instanceof Problem) return linked;
    // Who takes over a lease has it already.
    const blocked = linked.resume === undefined ? blockedDecision(target) : undefined;
    if (blocked !== undefined) return client.told(blocked);
    if (request.utilization !== undefined) client.report(policy, key, request.utilization);
    // A lease that ends with its caller ends at its object.
    if (!request.detached) skipCandidate(client, acquire);
    const isAtOnce = asked.waitMs === 0 || linked.resume !== undefined;
    if (isAtOnce && !request.detached) {
      const granted = await client.leases.acquireAttached(policy, key, { ...asked, ...linked });
      if (granted === undefined) return client.told(degradedDecision(policy, key));
      return grantOf(client.told(granted.decision), granted.attached);
    }
    const link = request.detached ? undefined : linked;
    const { decision, attached } = await acquireConfirmed(client, principal, acquire, link);
    if (link === undefined) acquireCandidate(client, acquire, asked, decision);
    client.told(decision);
    return attached === undefined ? decision : grantOf(decision, attached);
  });
}

/** The problem of a lease that is to end with no link, and is told what becomes of it when its link ends. */
function detachedProblem({
  detached,
  graceMs,
  resume,
}: {
  readonly detached: boolean;
  readonly graceMs?: number | undefined;
  readonly resume?: string | undefined;
}): Problem | undefined {
  if (!detached) return undefined;
  const allowed = "left out where detached is true: such a lease has no link";
  if (graceMs !== undefined) return refused(["graceMs"], graceMs, allowed);
  return resume === undefined ? undefined : refused(["resume"], resume, allowed);
}

function grantOf(decision: Decision | Problem, { slot, renew, release }: Attached): Grant | Problem {
  if (decision instanceof Problem || slot === undefined) return decision;
  return { ...decision, slot, ...(renew && { renew }), ...(release && { release }) };
}

/** A decision, and what keeps its lease. */
interface Granted {
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
async function acquireConfirmed(
  client: LimiterClient,
  principal: Principal,
  acquire: Acquire,
  link: Pick<AcquireParams, "graceMs"> | undefined,
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
