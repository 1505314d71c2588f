/**
 * Several checks of any policies and keys, all or nothing.
 *
 * Each check holds its units at its key's object; when every hold is there all are settled, else all are cancelled.
 * Nothing is taken before all have passed, and if this worker dies in between the holds expire.
 *
 * First all holds are asked for at once. Two calls that want the same keys may then each have what the other lacks, and
 * both be denied although there was enough for one. Such a denial says that it was contended, and its call then asks
 * again *in order of the keys*, one after the other, waiting at each for the holds of others like it to end. That
 * cannot deadlock: those who ask at once never wait; those who ask in order wait only at a key beyond all they have, so
 * of all who wait the one at the furthest key waits for nobody who waits. And they cannot fail for ever together: who
 * waits in order is served before any later hold of this kind, so when its wait ends it passes, or what it wanted has
 * been used by a call that succeeded.
 */
import type { LimiterClient } from "../../client/limiter-client.ts";
import { decisionOf } from "../../client/read-answer.ts";
import { degradedDecision, type AllDecisions, type Decision } from "../../core/protocol/decision.ts";
import type { Decided } from "../../core/protocol/messages.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import type { Principal } from "../auth/tokens.ts";
import { compare, isNever, nameOf, parseChecks, type Check } from "./checks.ts";

/** Longer than settling takes, deadlines and all; if the worker dies, so long the units are missing. */
const PROVISIONAL_TTL_MS = 15_000;
/** Asking in order waits at most so long at one key. */
const MOST_WAIT_MS = 500;

/** What a check was answered: a decision, and the hold to settle or cancel if it passed. */
interface Outcome {
  readonly decision: Decision;
  readonly holdId?: string;
  readonly isContended: boolean;
}

export async function callLimitAll(
  client: LimiterClient,
  principal: Principal,
  input: unknown,
): Promise<AllDecisions | Problem> {
  const checks = await parseChecks(client, principal, input);
  if (checks instanceof Problem) return checks;
  // What can never pass needs no holds, which would be in the way of others meanwhile.
  if (checks.some(isNever)) return await denied(client, checks, checks.map(isNever), []);
  let outcomes = await askAtOnce(client, checks);
  if (outcomes instanceof Problem) return outcomes;
  if (
    outcomes.some(isContendedDenial) &&
    outcomes.every((each) => each.decision.success || isContendedDenial(each))
  )
    outcomes = await askInOrder(client, checks, await cancelAll(client, checks, outcomes));
  if (outcomes instanceof Problem) return outcomes;
  if (outcomes.every(({ decision }) => decision.success)) return await settleAll(client, checks, outcomes);
  outcomes = await cancelAll(client, checks, outcomes);
  const isDenied = outcomes.some((each) => !each.decision.success && !each.isContended);
  return await denied(client, checks, isDenied ? outcomes.map(isContendedDenial) : [], outcomes);
}

function isContendedDenial({ decision, isContended }: Outcome): boolean {
  return !decision.success && isContended;
}

/**
 * A denial: what the checks were answered, but for those to be asked anew. Who can never pass is asked what that is,
 * others only looked at: what others have apart for the moment denies nobody.
 */
async function denied(
  client: LimiterClient,
  checks: readonly Check[],
  isAnew: readonly boolean[],
  outcomes: readonly Outcome[],
): Promise<AllDecisions | Problem> {
  const decisions: Decision[] = [];
  for (const [index, check] of checks.entries()) {
    const { policy, key, cost } = check;
    const outcome = outcomes[index];
    const isKnown = outcome !== undefined && isAnew[index] !== true;
    const decision = isKnown ? outcome.decision : await client.limit(policy, key, isNever(check) ? cost : 0);
    if (decision instanceof Problem) return decision;
    // Whatever was leased for it has been given back.
    const { lease, ...rest } = decision;
    decisions.push(lease === undefined ? decision : rest);
  }
  return { success: false, decisions };
}

async function askAtOnce(client: LimiterClient, checks: readonly Check[]): Promise<Outcome[] | Problem> {
  const asked = await Promise.all(checks.map((check) => ask(client, check, 0)));
  return await withoutProblems(client, checks, asked);
}

/** One after the other, by policy and key; the first denial ends it, and what there was is given back. */
async function askInOrder(
  client: LimiterClient,
  checks: readonly Check[],
  before: readonly Outcome[],
): Promise<Outcome[] | Problem> {
  const outcomes: (Outcome | Problem)[] = [...before];
  const order = [...checks.entries()].toSorted(([, a], [, b]) => compare(nameOf(a), nameOf(b)));
  for (const [index, check] of order) {
    const outcome = await ask(client, check, MOST_WAIT_MS);
    outcomes[index] = outcome;
    if (outcome instanceof Problem || !outcome.decision.success) break;
  }
  return await withoutProblems(client, checks, outcomes);
}

async function ask(client: LimiterClient, check: Check, waitMs: number): Promise<Outcome | Problem> {
  const { policy, key, cost, request, idempotencyKey } = check;
  if (cost === 0) {
    const decision = await client.limit(policy, key, 0);
    return decision instanceof Problem ? decision : { decision, isContended: false };
  }
  const held = await client.hold(policy, key, {
    cost,
    ttlMs: PROVISIONAL_TTL_MS,
    provisional: { waitMs, request },
    ...(idempotencyKey !== undefined && { idempotencyKey }),
  });
  const decision = held === undefined ? degradedDecision(policy, key) : decisionOf(policy, key, held);
  if (decision instanceof Problem) return decision;
  const { hold, ...rest } = decision;
  const answer = held as Decided | undefined;
  const isContended = answer?.isContended === true && !policy.shadow;
  // Contended, and every rule admits: it only stood behind others.
  const success = decision.success && !(isContended && hold === undefined);
  const holdId = answer?.hold?.id;
  return { decision: { ...rest, success }, isContended, ...(holdId !== undefined && { holdId }) };
}

/** A problem (another request under this idempotency key) is the whole call's: what was held is given back. */
async function withoutProblems(
  client: LimiterClient,
  checks: readonly Check[],
  outcomes: readonly (Outcome | Problem)[],
): Promise<Outcome[] | Problem> {
  const problem = outcomes.find((each) => each instanceof Problem);
  if (problem === undefined) return outcomes as Outcome[];
  await forHolds(checks, outcomes, ({ policy, key }, holdId) => client.cancel(policy, key, holdId));
  return problem;
}

/** Gives back what was held. Returns what the checks say then: nothing was taken. */
async function cancelAll(
  client: LimiterClient,
  checks: readonly Check[],
  outcomes: readonly Outcome[],
): Promise<Outcome[]> {
  const cancelled = [...outcomes];
  await forHolds(checks, outcomes, async ({ policy, key }, holdId, index) => {
    const decision = await client.cancel(policy, key, holdId);
    if (!(decision instanceof Problem)) cancelled[index] = { decision, isContended: false };
  });
  return cancelled;
}

/** If a settling does not come through, the hold expires, which counts as used as well. */
async function settleAll(
  client: LimiterClient,
  checks: readonly Check[],
  outcomes: readonly Outcome[],
): Promise<AllDecisions | Problem> {
  const settled = outcomes.map(({ decision }) => decision);
  let wasCancelled = false;
  await forHolds(checks, outcomes, async ({ policy, key, cost, idempotencyKey }, holdId, index) => {
    const decision = await client.settle(policy, key, holdId, cost);
    // The same call, made twice at once, was denied for the other one's part: that one has given this hold back.
    wasCancelled ||= idempotencyKey !== undefined && decision instanceof Problem && decision.status === 404;
    const before = outcomes[index];
    if (decision instanceof Problem || before === undefined) return;
    const { lease } = before.decision;
    settled[index] = lease === undefined ? decision : { ...decision, lease };
  });
  if (!wasCancelled) return { success: true, decisions: settled };
  const detail = "this call is being made twice at once and was denied the other time: make it again";
  return new Problem(PROBLEMS.unavailable, detail);
}

async function forHolds(
  checks: readonly Check[],
  outcomes: readonly (Outcome | Problem)[],
  work: (check: Check, holdId: string, index: number) => Promise<unknown>,
): Promise<void> {
  await Promise.all(
    checks.map(async (check, index) => {
      const outcome = outcomes[index];
      const holdId = outcome instanceof Problem ? undefined : outcome?.holdId;
      if (holdId !== undefined) await work(check, holdId, index);
    }),
  );
}
