/** The calls that renew and end leases. */
import type { LimiterClient } from "../../client/limiter-client.ts";
import type { Policy } from "../../core/policies/policy.ts";
import type { Lease } from "../../core/protocol/answers.ts";
import { claimId } from "../../core/protocol/claim-ids.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { Principal } from "../auth/tokens.ts";
import { alsoBeside } from "./candidates.ts";
import { ttlProblem } from "./leases.ts";
import { ReleaseRequest } from "./release-request.ts";
import { RenewRequest } from "./request-schemas.ts";
import { callClaim } from "./target.ts";

/** Moves a lease's end to `ttlMs` from now. */
export function callRenew(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<Lease | Problem> {
  return callClaim(client, principal, "lease", RenewRequest, input, async (claim, { ttlMs }) => {
    const { policy, key, secret } = claim;
    const problem = ttlProblem(policy, ttlMs);
    if (problem === undefined)
      alsoBeside(claim.client, policy, (beside, tried) => {
        const mostMs = tried.lease?.maxTtlMs ?? 0;
        return beside.leases.renew(tried, key, secret, ttlMs === undefined ? ttlMs : Math.min(ttlMs, mostMs));
      });
    const answer = problem ?? (await claim.client.leases.renew(policy, key, secret, ttlMs));
    return answer instanceof Problem ? answer : publicLease(claim, answer);
  });
}

/** Ends a lease, as the caller reports if it does; `undefined`: done. */
export function callRelease(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<Problem | undefined> {
  return callClaim(client, principal, "lease", ReleaseRequest, input, (claim, { outcome, durationMs }) => {
    const { policy, key, secret } = claim;
    const report = { outcome, durationMs };
    alsoBeside(claim.client, policy, (beside, tried) => beside.leases.release(tried, key, secret, report));
    return claim.client.leases.release(policy, key, secret, report);
  });
}

function publicLease(place: { policy: Policy; key: string }, { id, ...lease }: Lease): Lease {
  return { id: claimId("lease", { policy: place.policy.name, key: place.key }, id), ...lease };
}
