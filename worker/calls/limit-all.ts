/**
 * Several checks of any policies and keys, all or nothing.
 *
 * Each check holds its units at its key's object. When all holds are there, all are settled; else all are cancelled.
 * Nothing is taken before all checks have passed. If this worker dies in between, the holds expire.
 *
 * First the call asks for all holds at once. Two calls that want the same keys may then each have what the other
 * lacks, and both are denied although there is enough for one. The object says of such a denial that it was
 * contended. The call then asks again *in order of the keys*, one after the other, and waits at each key for the
 * holds of other such calls to end.
 *
 * That cannot deadlock. A call that asks at once never waits. A call that asks in order waits only at a key beyond all
 * keys where it has holds. So of all waiting calls, the one at the furthest key waits for no call that waits. Calls
 * cannot deny each other for ever either: a call that waits is served before any later hold of this kind. When its wait
 * ends, it passes, or a call that succeeded has used what it wanted.
 */
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import type { SheddingSample } from "../../client/objects/load-shedding.ts";
import { decisionOf, toShedDecision } from "../../client/read-answer.ts";
import { takesNothing } from "../../core/policies/policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import {
  type AllDecisions,
  settledDecision,
  type Decision,
  degradedDecision,
  refusedDecision,
} from "../../core/protocol/decision.ts";
import { Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { acquireCandidate, limitCandidate } from "./candidates.ts";
import { type Check, compare, type IndependentCheck, isNever, nameOf, parseChecks } from "./checks.ts";
import type { CallContext } from "./limits.ts";

/**
 * Longer than settling takes, with all deadlines, in milliseconds. If the worker dies, the units are missing for so
 * long.
 */
const PROVISIONAL_TTL_MS = 15_000;
/** The longest wait at one key when asking in order, in milliseconds. */
const MAX_WAIT_MS = 500;

/** What one check was answered. */
interface Outcome {
  readonly decision: Decision;
  /** The hold to settle or cancel; absent: nothing is held. */
  readonly holdId?: string;
  /** Only the holds of other such calls were in the way. */
  readonly isContended: boolean;
}

/** Takes the costs of all checks, or of none. */
async function limitTogether(
  client: LimiterClient,
  checks: readonly Check[],
): Promise<AllDecisions | Problem> {
  // A call that can never pass takes no holds, which would be in the way of others.
  if (checks.some(isNever)) return await denied(client, checks, checks.map(isNever), []);
  const drawn = await withShed(client, checks);
  if (drawn.some(isShedAnyhow)) return await denied(client, drawn, [], drawn.map(shedOutcome));
  let outcomes = await askAtOnce(client, drawn);
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

const isContendedDenial = ({ decision, isContended }: Outcome) => !decision.success && isContended;

/**
 * The answer of a denied call: what each check was answered. Checks in `isAnew`, and those without an outcome, are
 * asked again. A check that can never pass is asked with what the call wants of its key, which is denied. Any other is
 * asked with a cost of 0, since units that other calls hold for the moment deny nobody.
 */
async function denied(
  client: LimiterClient,
  checks: readonly Check[],
  isAnew: readonly boolean[],
  outcomes: readonly (Outcome | undefined)[],
): Promise<AllDecisions | Problem> {
  const decisions: Decision[] = [];
  for (const [index, check] of checks.entries()) {
    const { policy, key, total, priority } = check;
    const outcome = outcomes[index];
    const isKnown = outcome !== undefined && isAnew[index] !== true;
    const cost = isNever(check) ? total : 0;
    const decision = isKnown ? outcome.decision : await client.limit(policy, key, { cost, priority });
    if (decision instanceof Problem) return decision;
    // A lease that came with the hold has ended with it.
    const { lease, ...rest } = decision;
    decisions.push(lease === undefined ? decision : rest);
  }
  return { success: false, decisions };
}

async function askAtOnce(
  client: LimiterClient,
  checks: readonly SampledCheck[],
): Promise<Outcome[] | Problem> {
  const asked = await Promise.all(checks.map((check) => ask(client, check, 0)));
  return await withoutProblems(client, checks, asked);
}

/** Asks one check after the other, in order of the keys, and stops at the first denial. */
async function askInOrder(
  client: LimiterClient,
  checks: readonly Check[],
  before: readonly Outcome[],
): Promise<Outcome[] | Problem> {
  const outcomes: (Outcome | Problem)[] = [...before];
  const order = [...checks.entries()].toSorted(([, a], [, b]) => compare(nameOf(a), nameOf(b)));
  for (const [index, check] of order) {
    const outcome = await ask(client, check, MAX_WAIT_MS);
    outcomes[index] = outcome;
    if (outcome instanceof Problem || !outcome.decision.success) break;
  }
  return await withoutProblems(client, checks, outcomes);
}

/**
 * Holds the units of one check; a cost of 0 looks.
 *
 * @param waitMs how long to wait for the holds of other such calls to end, in milliseconds
 */
async function ask(client: LimiterClient, check: SampledCheck, waitMs: number): Promise<Outcome | Problem> {
  const { policy, key, cost, request, idempotencyKey, priority, shed } = check;
  if (takesNothing(policy, cost) || policy.override?.effect !== undefined) {
    const decision = await client.limit(policy, key, { cost: 0, priority });
    return decision instanceof Problem ? decision : { decision, isContended: false };
  }
  const once = idempotencyKey === undefined ? {} : { idempotencyKey };
  const provisional = { ttlMs: PROVISIONAL_TTL_MS, provisional: { waitMs, request } };
  const held = await client.holds.hold(policy, key, {
    cost,
    priority,
    shed,
    ...provisional,
    ...once,
  });
  const decision = held === undefined ? degradedDecision(policy, key) : decisionOf(policy, key, held);
  if (decision instanceof Problem) return decision;
  const { hold, ...rest } = decision;
  const answer = held as Decided | undefined;
  const isContended = answer?.isContended === true && !policy.shadow;
  // Contended, and every rule admits: the check only stood behind other calls.
  const success = decision.success && !(isContended && hold === undefined);
  const holdId = answer?.hold?.id;
  return { decision: { ...rest, success }, isContended, ...(holdId !== undefined && { holdId }) };
}

/**
 * A problem of one check (its idempotency key was used for another request) is the whole call's. All holds are
 * cancelled.
 */
async function withoutProblems(
  client: LimiterClient,
  checks: readonly Check[],
  outcomes: readonly (Outcome | Problem)[],
): Promise<Outcome[] | Problem> {
  const problem = outcomes.find((each) => each instanceof Problem);
  if (problem === undefined) return outcomes as Outcome[];
  await forHolds(checks, outcomes, ({ policy, key }, holdId) => client.holds.cancel(policy, key, holdId));
  return problem;
}

/** Cancels all holds. Returns what the checks say then, when nothing has been taken. */
async function cancelAll(
  client: LimiterClient,
  checks: readonly Check[],
  outcomes: readonly Outcome[],
): Promise<Outcome[]> {
  const cancelled = [...outcomes];
  await forHolds(checks, outcomes, async ({ policy, key }, holdId, index) => {
    const decision = await client.holds.cancel(policy, key, holdId);
    if (!(decision instanceof Problem)) cancelled[index] = { decision, isContended: false };
  });
  return cancelled;
}

/** Settles all holds. If a settling is lost, its hold expires, which counts as used as well. */
async function settleAll(
  client: LimiterClient,
  checks: readonly Check[],
  outcomes: readonly Outcome[],
): Promise<AllDecisions | Problem> {
  const settled = outcomes.map(({ decision }) => decision);
  let wasCancelled = false;
  await forHolds(checks, outcomes, async ({ policy, key, cost, idempotencyKey }, holdId, index) => {
    const decision = await client.holds.settle(policy, key, holdId, cost);
    // Two calls with one idempotency key share their holds. The other one was denied, and has cancelled this hold.
    wasCancelled ||= idempotencyKey !== undefined && decision instanceof Problem && decision.status === 404;
    const before = outcomes[index];
    if (decision instanceof Problem || before === undefined) return;
    settled[index] = settledDecision(decision, before.decision);
  });
  if (!wasCancelled) return { success: true, decisions: settled };
  const detail = "this call was made twice at once, and the other one was denied: make the call again";
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

/*
 * A call with several checks of any policies and keys: all or none of them (limit-all.ts), or each by itself.
 *
 * A check by itself is a plain `limit`. No holds are taken, and the isolate decides what it can. One check that cannot
 * be decided is one decision among the others: those may have taken units, which the caller has to know.
 */

/** So many checks of one call ask objects at once. The others wait, or are decided by the isolate meanwhile. */
const MAX_AT_ONCE = 20;

/** Decides on several checks. */
export async function callLimitSeveral(
  context: CallContext,
  input: unknown,
): Promise<AllDecisions | Problem> {
  const { client } = context;
  const checks = await parseChecks(context, input);
  if (checks instanceof Problem) return checks;
  const answered =
    "together" in checks ? await limitByKey(client, checks.together) : await limitEach(client, checks.alone);
  if (answered instanceof Problem) return answered;
  const made = "together" in checks ? checks.together : checks.alone;
  for (const [index, decision] of answered.decisions.entries()) {
    client.recordDecision(decision);
    const check = made[index];
    // What was let through by its own policy, and took nothing since another was denied, says nothing of either.
    if (check !== undefined && (answered.success || "alone" in checks || !decision.success))
      checkBeside(client, check, decision);
  }
  return answered;
}

function checkBeside(
  client: LimiterClient,
  { policy, key, ...asked }: IndependentCheck,
  decision: Decision,
): void {
  const { lease } = policy;
  if (lease === undefined) return limitCandidate(client, { policy, key }, asked, decision);
  const { cost, priority } = asked;
  acquireCandidate(
    client,
    { policy, key },
    { id: "", cost, priority, ttlMs: lease.ttlMs, waitMs: 0 },
    decision,
  );
}

/**
 * Checks of one key are made as one, with the cost that they have together: so each is answered with what is left after
 * all of them, and a denial with the wait for all of them. A check that leases units is made by itself, since each has a
 * lease of its own.
 */
async function limitByKey(client: LimiterClient, checks: readonly Check[]): Promise<AllDecisions | Problem> {
  const made: Check[] = [];
  const places = checks.map((check) => {
    const { policy, total } = check;
    const isLeasing = policy.rules.some(({ algorithm }) => algorithm.leasing !== undefined);
    const others = checks.filter((each) => nameOf(each) === nameOf(check));
    if (isLeasing || others.length === 1) return made.push(check) - 1;
    const before = made.findIndex((each) => nameOf(each) === nameOf(check));
    if (before >= 0) return before;
    const isPlain = others.every((each) => typeof each.cost === "number");
    const sum = others.reduce((units, each) => units + Number(each.cost), 0);
    return made.push({ ...check, cost: isPlain ? sum : total }) - 1;
  });
  const answer = await limitTogether(client, made);
  if (answer instanceof Problem) return answer;
  return { ...answer, decisions: places.flatMap((place) => answer.decisions[place] ?? []) };
}

async function limitEach(client: LimiterClient, checks: readonly IndependentCheck[]): Promise<AllDecisions> {
  const decisions: Decision[] = [];
  const left = checks.entries();
  // All of these take from one iterator, so each check is made once.
  const takeOn = async () => {
    for (const [index, { policy, key, ...asked }] of left) {
      const decided = client.limit(policy, key, asked);
      const decision = decided instanceof Promise ? await decided : decided;
      decisions[index] = decision instanceof Problem ? refusedDecision(policy, key, decision) : decision;
    }
  };
  await Promise.all(Array.from({ length: Math.min(MAX_AT_ONCE, checks.length) }, takeOn));
  return { success: decisions.every(({ success }) => success), decisions };
}

/* Load shedding of a call on several keys: one draw is for all its checks. */

/** A check for which it was drawn whether it is shed. */
type SampledCheck = Check & { readonly shed?: SheddingSample };

/** Draws once for the whole call. Most policies shed nothing, and a policy in shadow only reports. */
async function withShed(client: LimiterClient, checks: readonly Check[]): Promise<readonly SampledCheck[]> {
  if (!checks.some(({ policy }) => policy.shedding !== undefined && !policy.shadow)) return checks;
  const rolled = await client.sampleTogether(checks);
  return checks.map((check, index) => ({ ...check, shed: check.policy.shadow ? undefined : rolled[index] }));
}

/** What a check is answered that was shed; `undefined`: it was not. */
function shedOutcome({
  policy,
  key,
  shed,
}: SampledCheck): { readonly decision: Decision; readonly isContended: false } | undefined {
  return shed && { decision: toShedDecision(policy, key, shed), isContended: false };
}

/** Whether a check is shed whatever its object remembers: one with an idempotency key may have passed before. */
function isShedAnyhow({ shed, idempotencyKey }: SampledCheck): boolean {
  return shed !== undefined && idempotencyKey === undefined;
}
