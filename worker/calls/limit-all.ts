/**
 * Several checks of any policies and keys, all or nothing.
 *
 * Each check holds its units at its key's object. When all are held, all are settled; otherwise all are
 * cancelled. If this worker dies in between, the holds expire.
 *
 * First the call requests all holds at once. Two calls on the same keys may then each hold what the other
 * lacks, and both are denied although one would fit. The object marks such a denial as contended. The call
 * then retries *in order of the keys*, and waits at each key for the holds of other such calls to end.
 *
 * That cannot deadlock: a retry waits only at a key beyond all keys that it holds, so the waiting call at the
 * furthest key waits for no waiting call. Nor can calls starve: a waiting call is served before later holds
 * of this kind.
 */
import type * as v from "valibot";
import type { LimiterClient } from "../../client/objects/limiter-client.ts";
import type { SheddingSample } from "../../client/objects/load-shedding.ts";
import { blockedDecision, decisionOf, toShedDecision } from "../../client/read-answer.ts";
import { type Cost, costOf, type Policy, takesNothing } from "../../core/policies/policy.ts";
import { withCallLimits } from "../../core/policies/seen-policy.ts";
import type { Decided } from "../../core/protocol/answers.ts";
import { MAX_CHECKS } from "../../core/protocol/calls.ts";
import {
  type AllDecisions,
  type Decision,
  degradedDecision,
  refusedDecision,
  settledDecision,
} from "../../core/protocol/decision.ts";
import { type Answered, Problem, PROBLEMS } from "../../core/protocol/problems.ts";
import { clip } from "../../core/violations.ts";
import { acquireCandidate, limitCandidate } from "./candidates.ts";
import {
  digestOf,
  findChecks,
  groupsText,
  type IndependentCheck,
  nameOf,
  textOf,
  withKeys,
} from "./checks.ts";
import { type CallContext, rateProblem } from "./limits.ts";
import * as requests from "./schemas/request-schemas.ts";
import { given, parse, badValue, stray, type Target } from "./validate.ts";

/** Decides several checks: all or none of them, or each by itself. */
export async function callLimitSeveral(context: CallContext, input: unknown): Answered<AllDecisions> {
  const { client } = context;
  const checks = await parseChecks(context, input);
  if (checks instanceof Problem) return checks;
  const isTogether = "together" in checks;
  const answer = isTogether
    ? await limitByKey(client, checks.together)
    : await limitEach(client, checks.alone);
  if (answer instanceof Problem) return answer;
  const made: readonly IndependentCheck[] = isTogether ? checks.together : checks.alone;
  // Denials last: the call's span has the last decision.
  for (const decision of answer.decisions.toSorted((a, b) => Number(b.success) - Number(a.success)))
    client.recordDecision(decision);
  for (const [index, check] of made.entries()) {
    const decision = answer.decisions[index];
    if (decision === undefined) continue;
    // A check that passed, and took nothing since another was denied, compares nothing.
    if (answer.success || !isTogether || !decision.success) putToCandidate(client, check, decision);
  }
  return answer;
}

function putToCandidate(client: LimiterClient, check: IndependentCheck, decision: Decision): void {
  const { policy, key, ...call } = check;
  const { lease } = policy;
  if (lease === undefined) return limitCandidate(client, { policy, key }, call, decision);
  const { cost, priority } = call;
  const params = { id: "", cost, priority, ttlMs: lease.ttlMs, waitMs: 0 };
  acquireCandidate(client, { policy, key }, params, decision);
}

/** The most simultaneous calls to objects. Other checks wait, or are decided by the isolate meanwhile. */
const MAX_AT_ONCE = 20;

/** Decides each check as a plain `limit`. A failed check is a decision, as others may have taken units. */
async function limitEach(client: LimiterClient, checks: readonly IndependentCheck[]): Promise<AllDecisions> {
  const decisions: Decision[] = [];
  const left = checks.entries();
  // All of these take from one iterator, so each check is made once.
  const takeNext = async () => {
    for (const [index, { policy, key, ...call }] of left) {
      const decided = client.limit(policy, key, call);
      const decision = decided instanceof Promise ? await decided : decided;
      decisions[index] = decision instanceof Problem ? refusedDecision(policy, key, decision) : decision;
    }
  };
  await Promise.all(Array.from({ length: Math.min(MAX_AT_ONCE, checks.length) }, takeNext));
  return { success: decisions.every(({ success }) => success), decisions };
}

/** Joins the checks of one key, so each answer has what all leave. Checks that lease stay separate. */
async function limitByKey(client: LimiterClient, checks: readonly Check[]): Answered<AllDecisions> {
  const made: Check[] = [];
  const places = checks.map((check) => {
    const { policy, total } = check;
    const others = checks.filter((each) => nameOf(each) === nameOf(check));
    if (isLeasing(policy) || others.length === 1) return made.push(check) - 1;
    const before = made.findIndex((each) => nameOf(each) === nameOf(check));
    if (before >= 0) return before;
    const isPlain = others.every((each) => typeof each.cost === "number");
    const sum = others.reduce((units, each) => units + Number(each.cost), 0);
    return made.push({ ...check, cost: isPlain ? sum : total }) - 1;
  });
  const answer = await new AllOrNone(client, made).limit();
  if (answer instanceof Problem) return answer;
  return { ...answer, decisions: places.flatMap((place) => answer.decisions[place] ?? []) };
}

/** Milliseconds that exceed settling with all deadlines. If the worker dies, units are missing this long. */
const PROVISIONAL_TTL_MS = 15_000;
/** The longest wait of a retry at one key, in milliseconds. */
const MAX_WAIT_MS = 500;

interface Outcome {
  readonly decision: Decision;
  readonly holdId?: string;
  /** Only the holds of other such calls prevented it. */
  readonly isContended: boolean;
}

type SampledCheck = Check & { readonly shed?: SheddingSample };

const isContendedDenial = ({ decision, isContended }: Outcome) => !decision.success && isContended;

class AllOrNone {
  readonly #client: LimiterClient;
  readonly #checks: readonly Check[];

  constructor(client: LimiterClient, checks: readonly Check[]) {
    this.#client = client;
    this.#checks = checks;
  }

  async limit(): Answered<AllDecisions> {
    if (this.#checks.some(isNever)) return await this.#denyForever();
    const sampled = await this.#sampleShedding();
    // A check with an idempotency key may have passed before: only its object knows.
    if (sampled.some(({ shed, idempotencyKey }) => shed !== undefined && idempotencyKey === undefined))
      return await this.#deny(sampled.map(shedOutcome));
    let outcomes = await this.#withoutProblems(await Promise.all(sampled.map((each) => this.#ask(each, 0))));
    if (outcomes instanceof Problem) return outcomes;
    if (
      outcomes.some(isContendedDenial) &&
      outcomes.every((each) => each.decision.success || isContendedDenial(each))
    )
      outcomes = await this.#askInOrder(await this.#cancelAll(outcomes));
    if (outcomes instanceof Problem) return outcomes;
    if (outcomes.every(({ decision }) => decision.success)) return await this.#settleAll(outcomes);
    outcomes = await this.#cancelAll(outcomes);
    const isDenied = outcomes.some((each) => !each.decision.success && !each.isContended);
    return await this.#deny(outcomes.map((each) => (isDenied && isContendedDenial(each) ? undefined : each)));
  }

  /** The answer of a call that can never pass. It holds only what is not there: other holds would block other calls. */
  async #denyForever(): Answered<AllDecisions> {
    const looks = this.#checks.map(async (check): Answered<Outcome> => {
      const { policy, key, total, priority } = check;
      const cost = isNever(check) ? total : 0;
      const decision = await this.#client.limit(policy, key, { cost, priority });
      if (decision instanceof Problem || cost !== 0 || !lacks(decision, check)) return outcomeOf(decision);
      return await this.#ask(check, 0);
    });
    const outcomes = await this.#withoutProblems(await Promise.all(looks));
    if (outcomes instanceof Problem) return outcomes;
    const denials = await this.#cancelAll(outcomes);
    return await this.#deny(denials.map((each) => (isContendedDenial(each) ? undefined : each)));
  }

  /**
   * The answer of a denied call. Checks without an outcome are repeated with a cost of 0, since units briefly
   * held by other calls deny nothing, or with the key's total if that can never pass.
   */
  async #deny(outcomes: readonly (Outcome | undefined)[]): Answered<AllDecisions> {
    const decisions: Decision[] = [];
    for (const [index, check] of this.#checks.entries()) {
      const { policy, key, total, priority } = check;
      const cost = isNever(check) ? total : 0;
      const decision =
        outcomes[index]?.decision ?? (await this.#client.limit(policy, key, { cost, priority }));
      if (decision instanceof Problem) return decision;
      // A lease that came with the hold has ended with it.
      const { lease, ...rest } = decision;
      decisions.push(lease === undefined ? decision : rest);
    }
    return { success: false, decisions };
  }

  /** One sample is for the complete call. Most policies shed nothing, and a policy in shadow only reports. */
  async #sampleShedding(): Promise<readonly SampledCheck[]> {
    const checks = this.#checks;
    if (!checks.some(({ policy }) => policy.shedding !== undefined && !policy.shadow)) return checks;
    const samples = await this.#client.sampleTogether(checks);
    return checks.map((each, index) => ({ ...each, shed: each.policy.shadow ? undefined : samples[index] }));
  }

  /** Asks one check after the other, in order of the keys, and stops at the first denial. */
  async #askInOrder(before: readonly Outcome[]): Answered<Outcome[]> {
    const outcomes: (Outcome | Problem)[] = [...before];
    const order = [...this.#checks.entries()].toSorted(([, a], [, b]) => compare(nameOf(a), nameOf(b)));
    for (const [index, check] of order) {
      const outcome = await this.#ask(check, MAX_WAIT_MS);
      outcomes[index] = outcome;
      if (outcome instanceof Problem || !outcome.decision.success) break;
    }
    return await this.#withoutProblems(outcomes);
  }

  /** Holds the units of one check. @param waitMs the longest wait for the holds of other such calls */
  async #ask(check: SampledCheck, waitMs: number): Answered<Outcome> {
    const { policy, key, cost, request, idempotencyKey, priority, shed } = check;
    // Slots of an unlimited key are leased too.
    const hasEffect = policy.override?.effect !== undefined && !isLeasing(policy);
    if (takesNothing(policy, cost) || hasEffect || blockedDecision(policy, key) !== undefined) {
      return outcomeOf(await this.#client.limit(policy, key, { cost: 0, priority }));
    }
    const held = await this.#client.claims.hold(policy, key, {
      cost,
      priority,
      shed,
      ttlMs: PROVISIONAL_TTL_MS,
      provisional: { waitMs, request },
      ...(idempotencyKey !== undefined && { idempotencyKey }),
    });
    const decision = held === undefined ? degradedDecision(policy, key) : decisionOf(policy, key, held);
    if (decision instanceof Problem) return decision;
    const { hold, ...rest } = decision;
    const answer = held as Decided | undefined;
    const isContended = answer?.isContended === true && !policy.shadow;
    // Contended, and every rule admits: the check only queued behind other calls.
    const success = decision.success && !(isContended && hold === undefined);
    const holdId = answer?.hold?.id;
    return { decision: { ...rest, success }, isContended, ...(holdId !== undefined && { holdId }) };
  }

  /** A problem of one check (a reused idempotency key) is the call's. All holds are cancelled. */
  async #withoutProblems(outcomes: readonly (Outcome | Problem)[]): Answered<Outcome[]> {
    const problem = outcomes.find((each) => each instanceof Problem);
    if (problem === undefined) return outcomes as Outcome[];
    await this.#forHolds(outcomes, ({ policy, key }, id) => this.#client.claims.cancel(policy, key, id));
    return problem;
  }

  /** Cancels all holds. Returns the answers after that, when nothing has been taken. */
  async #cancelAll(outcomes: readonly Outcome[]): Promise<Outcome[]> {
    const cancelled = [...outcomes];
    await this.#forHolds(outcomes, async ({ policy, key }, holdId, index) => {
      const decision = await this.#client.claims.cancel(policy, key, holdId);
      if (!(decision instanceof Problem)) cancelled[index] = { decision, isContended: false };
    });
    return cancelled;
  }

  /** Settles all holds. If a settling is lost, its hold expires, which counts as used as well. */
  async #settleAll(outcomes: readonly Outcome[]): Answered<AllDecisions> {
    const settled = outcomes.map(({ decision }) => decision);
    let wasCancelled = false;
    await this.#forHolds(outcomes, async ({ policy, key, cost, idempotencyKey }, holdId, index) => {
      const decision = await this.#client.claims.settle(policy, key, { id: holdId, used: cost });
      const isMissing = decision instanceof Problem && decision.status === 404;
      // Calls with one idempotency key share holds: another was denied, and has cancelled this hold.
      wasCancelled ||= idempotencyKey !== undefined && isMissing;
      const before = settled[index];
      if (decision instanceof Problem || before === undefined) return;
      settled[index] = settledDecision(decision, before);
    });
    if (!wasCancelled) return { success: true, decisions: settled };
    const detail = "this call was made twice at once, and the other one was denied: make the call again";
    return new Problem(PROBLEMS.unavailable, detail);
  }

  async #forHolds(
    outcomes: readonly (Outcome | Problem)[],
    work: (check: Check, holdId: string, index: number) => Promise<unknown>,
  ): Promise<void> {
    await Promise.all(
      this.#checks.map(async (check, index) => {
        const outcome = outcomes[index];
        const holdId = outcome instanceof Problem ? undefined : outcome?.holdId;
        if (holdId !== undefined) await work(check, holdId, index);
      }),
    );
  }
}

function outcomeOf(decision: Decision | Problem): Outcome | Problem {
  return decision instanceof Problem ? decision : { decision, isContended: false };
}

/** Whether a look at a key found fewer units than its check needs. */
function lacks({ rules }: Decision, { policy, cost }: Check): boolean {
  return policy.rules.some((rule, index) => (rules[index]?.remaining ?? Infinity) < costOf(rule, cost));
}

function shedOutcome({ policy, key, shed }: SampledCheck): Outcome | undefined {
  return shed && { decision: toShedDecision(policy, key, shed), isContended: false };
}

/* The checks of a call that pass together, as idempotency knows them. */

/** A check that passes with all others of its call, or takes nothing. */
interface Check extends IndependentCheck {
  /** The cost of all checks of the key in the call. */
  readonly total: Cost;
  /** The call as text, which idempotency compares. */
  readonly request: string;
}

type Checks = { readonly together: readonly Check[] } | { readonly alone: readonly IndependentCheck[] };

async function parseChecks(context: CallContext, input: unknown): Answered<Checks> {
  // First of all: thousands of checks would each be parsed, and answered with an error.
  const raw = given(input, "checks") as readonly unknown[];
  const maxChecks = given(input, "atomic") === false ? requests.MAX_INDEPENDENT_CHECKS : MAX_CHECKS;
  if (Array.isArray(raw) && raw.length > maxChecks) return badValue(["checks"], raw, requests.CHECKS_ALLOWED);
  const request = parse(requests.LimitAllRequest, input);
  if (request instanceof Problem) return request;
  const { atomic, idempotencyKey } = request;
  const targets = findChecks(context, request, raw, (policy, cost, path) =>
    atomic ? undefined : rateProblem(policy, cost, path),
  );
  if (targets instanceof Problem) return targets;
  const unlike = atomic ? unlikeProblem(request.checks, targets) : undefined;
  if (unlike !== undefined) return unlike;
  const checks = withKeys(targets, idempotencyKey);
  if (!atomic) return { alone: checks };
  const words = await requestText(targets);
  return { together: checks.map((each) => ({ ...each, total: totalOf(targets, each), request: words })) };
}

type NamedCheck = v.InferOutput<typeof requests.LimitAllRequest>["checks"][number];

/** The problem of a check that would count otherwise than an earlier one of its key: these are decided as one. */
function unlikeProblem(
  checks: readonly NamedCheck[],
  targets: readonly IndependentCheck[],
): Problem | undefined {
  const seen = new Map<string, number>();
  for (const [index, target] of targets.entries()) {
    const before = seen.get(nameOf(target)) ?? index;
    seen.set(nameOf(target), before);
    const [own, first] = [checks[index], checks[before]];
    // Slots are leased check by check: each may be of a group of its own.
    const fields = isLeasing(target.policy)
      ? (["plan", "limits"] as const)
      : (["plan", "limits", "group"] as const);
    for (const field of fields) {
      const [value, wanted] = [textIn(own?.[field]), textIn(first?.[field])];
      if (value === wanted) continue;
      const same = `as in checks.${before} (checks on the same key must name the same ${field})`;
      return stray(
        ["checks", String(index), field],
        `checks.${index}.${field} is ${clip(value)}: must be ${clip(wanted)}, ${same}`,
      );
    }
  }
  return undefined;
}

function isLeasing({ rules }: Policy): boolean {
  return rules.some(({ algorithm }) => algorithm.leasing !== undefined);
}

function textIn(value: string | Readonly<Record<string, number>> | undefined): string {
  if (typeof value === "string") return JSON.stringify(value);
  return withCallLimits("", value) || "left out";
}

/** The call as idempotency stores it, independent of the order of checks: never change it. */
async function requestText(targets: readonly IndependentCheck[]): Promise<string> {
  const lines = targets.map(textOf).toSorted(compare);
  return `call on ${targets.length} checks (${await digestOf(lines)})${await groupsText(targets, false)}`;
}

/** Whether a check can never pass: its total is above a capacity. A shadow policy lets everything pass. */
function isNever({ policy, total }: Check): boolean {
  return !policy.shadow && policy.rules.some((rule) => costOf(rule, total) > rule.capacity);
}

function totalOf(targets: readonly IndependentCheck[], target: Target): Cost {
  const units: Record<string, number> = {};
  for (const { policy, cost } of targets.filter((each) => nameOf(each) === nameOf(target)))
    for (const unit of new Set(policy.rules.map((rule) => rule.unit)))
      units[unit] = (units[unit] ?? 0) + costOf({ unit }, cost);
  return units;
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
