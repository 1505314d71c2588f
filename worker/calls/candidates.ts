/**
 * Calls to a policy's candidate, which decides by its own admissions and never lets calls wait. Each function
 * here returns at once and never throws.
 */
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { blockedDecision, decisionOf } from "../../client/read-answer.ts";
import { randomId } from "../../core/clock.ts";
import { type Policy, takesNothing } from "../../core/policies/policy.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { HoldParams, AcquireParams, LimitParams } from "../../core/protocol/messages.ts";
import { readClaimId } from "../../core/protocol/names.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { DeniedBy } from "../../core/stats/counts.ts";
import type { Target } from "./validate.ts";

type Decided = Decision | Problem | undefined;

export function limitCandidate(
  client: LimiterClient,
  target: Target,
  call: LimitParams,
  told: Decided,
): void {
  const { policy, key } = target;
  const { candidate } = policy;
  if (candidate === undefined || told instanceof Problem || takesNothing(policy, call.cost)) return;
  const { waitMs: _, ...atOnce } = call;
  // A debit ignores the limit: there is nothing to compare.
  if (call.force === true)
    return withCandidate(client, policy, async (beside, tried) => await beside.limit(tried, key, atOnce));
  compare(client, target, told, (beside) => beside.limit(candidate.policy, key, atOnce));
}

/** Its hold has the id of the policy's, so that both end together. */
export function holdCandidate(client: LimiterClient, target: Target, call: HoldParams, told: Decided): void {
  const { policy, key } = target;
  const { candidate } = policy;
  if (candidate === undefined || told instanceof Problem) return;
  const id = told?.hold && readClaimId("hold", told.hold.id)?.secret;
  const { idempotencyKey, ...others } = call;
  const asked = { ...others, ...(id !== undefined && { id }), ...sameOnce(idempotencyKey, id) };
  compare(client, target, told, async (beside) => {
    const blocked = blockedDecision(candidate.policy, key);
    if (blocked !== undefined) return blocked;
    const answer = await beside.holds.hold(candidate.policy, key, asked);
    // No caller has this hold, so no call would end it.
    if (id === undefined && answer !== undefined && "hold" in answer && answer.hold !== undefined)
      await beside.holds.cancel(candidate.policy, key, answer.hold.id);
    return answer === undefined ? undefined : decisionOf(candidate.policy, key, answer);
  });
}

/** Its lease has the id of the policy's. */
export function acquireCandidate(
  client: LimiterClient,
  target: Target,
  call: AcquireParams,
  told: Decided,
): void {
  const { policy, key } = target;
  const { candidate } = policy;
  const terms = candidate?.policy.lease;
  if (candidate === undefined || terms === undefined || told instanceof Problem) return;
  const granted = told?.lease && readClaimId("lease", told.lease.id)?.secret;
  const id = granted ?? randomId();
  const { cost, priority } = call;
  const asked = {
    id,
    cost,
    priority,
    ttlMs: Math.min(call.ttlMs, terms.maxTtlMs),
    waitMs: 0,
    ...sameOnce(call.idempotencyKey, granted),
  };
  compare(client, target, told, async (beside) => {
    const blocked = blockedDecision(candidate.policy, key);
    if (blocked !== undefined) return blocked;
    const answer = await beside.leases.acquire(candidate.policy, key, asked);
    if (granted === undefined && !(answer instanceof Problem) && answer.lease !== undefined)
      await beside.leases.release(candidate.policy, key, id, { outcome: "ignore" });
    return answer;
  });
}

/** Counts a call that the candidate cannot get: its lease would not end with the holder of the policy's. */
export function skipCandidate(client: LimiterClient, { policy: { name, candidate }, key }: Target): void {
  if (candidate !== undefined)
    client.candidates.compared({ policy: name, version: candidate.version, key, deniedBy: "unknown" });
}

/** Repeats an end, renewal or reset on the candidate's key. Nothing is compared. */
export function withCandidate(
  client: LimiterClient,
  { candidate }: Policy,
  work: (beside: LimiterClient, policy: Policy) => Promise<unknown>,
): void {
  if (candidate !== undefined) client.candidates.make((beside) => work(beside, candidate.policy));
}

/** A call repeated under its idempotency key keeps its earlier result, and takes nothing again. */
function sameOnce(
  idempotencyKey: string | undefined,
  id: string | undefined,
): { readonly idempotencyKey?: string } {
  return idempotencyKey === undefined || id === undefined ? {} : { idempotencyKey: id };
}

function compare(
  client: LimiterClient,
  { policy, key }: Target,
  told: Decision | undefined,
  decide: (beside: LimiterClient) => Decided | Promise<Decided>,
): void {
  const { candidate, name } = policy;
  if (candidate === undefined) return;
  const count = (tried: Decided) =>
    client.candidates.compared({
      policy: name,
      version: candidate.version,
      key,
      deniedBy: deniedBy(told, tried),
    });
  const isMade = client.candidates.make((beside) => {
    const tried = decide(beside);
    return tried instanceof Promise ? tried.then(count) : count(tried);
  });
  if (!isMade) count(undefined);
}

function deniedBy(told: Decided, tried: Decided): DeniedBy {
  const [byPolicy, byCandidate] = [isDenied(told), isDenied(tried)];
  if (byPolicy === undefined || byCandidate === undefined) return "unknown";
  if (byPolicy) return byCandidate ? "both" : "policy";
  return byCandidate ? "candidate" : "none";
}

/** Whether a decision denies, or would outside shadow; `undefined`: there was no decision. */
function isDenied(decided: Decided): boolean | undefined {
  if (decided === undefined || decided instanceof Problem || decided.reason === "degraded") return undefined;
  return !decided.success || decided.reason === "shadow";
}
