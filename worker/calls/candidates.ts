/**
 * Calls to a policy's candidate, which decides by its own admissions and never lets calls wait. Each function
 * here returns at once and never throws.
 */
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import { blockedDecision, decisionOf } from "../../client/read-answer.ts";
import { randomId } from "../../core/clock.ts";
import { type Candidate, type Policy, takesNothing } from "../../core/policies/policy.ts";
import { ofGroup, planOf } from "../../core/policies/seen-policy.ts";
import type { HoldParams, AcquireParams, LimitParams } from "../../core/protocol/calls.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import { readClaimId } from "../../core/protocol/names.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { DeniedBy } from "../../core/stats/counts.ts";
import type { Target } from "./validate.ts";

type Decided = Decision | Problem | undefined;

/** Makes a call on the candidate's key. */
type Decide = (candidate: LimiterClient, policy: Policy) => Decided | Promise<Decided>;

export function limitCandidate(
  client: LimiterClient,
  target: Target,
  call: LimitParams,
  decision: Decided,
): void {
  const { policy, key } = target;
  const candidate = candidateOf(policy);
  if (candidate === undefined || decision instanceof Problem || takesNothing(policy, call.cost)) return;
  const { waitMs: _, ...atOnce } = call;
  // A debit ignores the limit: there is nothing to compare.
  if (call.force === true)
    client.candidates.make(async (beside) => await beside.limit(candidate.policy, key, atOnce));
  else compare(client, target, decision, (beside, tried) => beside.limit(tried, key, atOnce));
}

/** Its hold has the id of the policy's, so that both end together. */
export function holdCandidate(client: LimiterClient, target: Target, call: HoldParams, made: Decided): void {
  const { policy, key } = target;
  if (policy.candidate === undefined || made instanceof Problem) return;
  const id = made?.hold && readClaimId("hold", made.hold.id)?.secret;
  const { idempotencyKey, ...others } = call;
  const params = { ...others, ...(id !== undefined && { id }), ...sameOnce(idempotencyKey, id) };
  compare(client, target, made, async (beside, tried) => {
    const answer = await beside.claims.hold(tried, key, params);
    // No caller has this hold, so no call would end it.
    if (id === undefined && answer !== undefined && "hold" in answer && answer.hold !== undefined)
      await beside.claims.cancel(tried, key, answer.hold.id);
    return answer === undefined ? undefined : decisionOf(tried, key, answer);
  });
}

/** Its lease has the id of the policy's. */
export function acquireCandidate(
  client: LimiterClient,
  target: Target,
  { cost, priority, ttlMs, idempotencyKey }: AcquireParams,
  decision: Decision | Problem,
): void {
  const { policy, key } = target;
  const terms = candidateOf(policy)?.policy.lease;
  if (terms === undefined || decision instanceof Problem) return;
  const granted = decision.lease && readClaimId("lease", decision.lease.id)?.secret;
  const id = granted ?? randomId();
  const once = sameOnce(idempotencyKey, granted);
  const params = { id, cost, priority, ttlMs: Math.min(ttlMs, terms.maxTtlMs), waitMs: 0, ...once };
  compare(client, target, decision, async (beside, tried) => {
    const answer = await beside.claims.acquire(tried, key, params);
    if (granted === undefined && !(answer instanceof Problem) && answer.lease !== undefined)
      await beside.claims.release(tried, key, id, { outcome: "ignore" });
    return answer;
  });
}

/** Counts a call that the candidate cannot get: its lease would not end with the holder of the policy's. */
export function skipCandidate(client: LimiterClient, { policy: { name, candidate }, key }: Target): void {
  if (candidate !== undefined)
    client.candidates.compared({ policy: name, version: candidate.version, key, deniedBy: "unknown" });
}

/** Makes an end, renewal or reset, and repeats it on the candidate's key. Nothing is compared. */
export function withCandidate<Answer>(
  client: LimiterClient,
  policy: Policy,
  work: (client: LimiterClient, policy: Policy) => Answer,
): Answer {
  const candidate = candidateOf(policy);
  if (candidate !== undefined) client.candidates.make(async (beside) => await work(beside, candidate.policy));
  return work(client, policy);
}

/** The candidate as calls of the same plan and group see it. */
function candidateOf({
  candidate,
  plan,
  group,
}: Pick<Policy, "candidate" | "plan" | "group">): Candidate | undefined {
  if (candidate === undefined) return undefined;
  const planned = planOf(candidate.policy, plan);
  const isShared = group !== undefined && planned.isFair === true;
  return { ...candidate, policy: isShared ? ofGroup(planned, group) : planned };
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
  { policy: { name, ...target }, key }: Target,
  decision: Decision | undefined,
  decide: Decide,
): void {
  const candidate = candidateOf(target);
  if (candidate === undefined) return;
  const { version, policy } = candidate;
  const count = (tried: Decided) =>
    client.candidates.compared({ policy: name, version, key, deniedBy: deniedBy(decision, tried) });
  const isMade = client.candidates.make((beside) => {
    const tried = blockedDecision(policy, key) ?? decide(beside, policy);
    return tried instanceof Promise ? tried.then(count) : count(tried);
  });
  if (!isMade) count(undefined);
}

function deniedBy(decision: Decided, tried: Decided): DeniedBy {
  const [byPolicy, byCandidate] = [isDenied(decision), isDenied(tried)];
  if (byPolicy === undefined || byCandidate === undefined) return "unknown";
  if (byPolicy) return byCandidate ? "both" : "policy";
  return byCandidate ? "candidate" : "none";
}

/** Whether a decision denies, or would outside shadow; `undefined`: there was no decision. */
function isDenied(decided: Decided): boolean | undefined {
  if (decided === undefined || decided instanceof Problem || decided.reason === "degraded") return undefined;
  return !decided.success || decided.reason === "shadow";
}
