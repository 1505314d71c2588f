/** The calls on statistics: all counts, the history of a policy, its top keys. */
import * as v from "valibot";
import { unavailable } from "../../client/read-answer.ts";
import { inTime, instantText, SYSTEM_TIME } from "../../core/clock.ts";
import { parseDurationMs } from "../../core/policies/policy-fields.ts";
import { publicName } from "../../core/policies/policy.ts";
import { type Answered, Problem, LIMITER_PROBLEMS, PROBLEMS } from "../../core/protocol/problems.ts";
import { addTo, type Counts, familyOf, groupsOf, partsOf, POLICY_LABEL } from "../../core/stats/counts.ts";
import {
  type StatsBindings,
  statsStub,
  type StatsStub,
  type Step,
  STEPS,
  TOP_KINDS,
} from "../../core/stats/messages.ts";
import { described, oneOf, parseInstantMs, table } from "../../core/validation.ts";
import { describe } from "../../core/violations.ts";
import { mayUse, type Principal } from "../auth/tokens.ts";
import { type CallContext, findPolicy } from "./limits.ts";
import { amount, KeyRequest, optional } from "./schemas/request-schemas.ts";
import { parse, badValue } from "./validate.ts";

interface StatsContext extends CallContext {
  readonly env: StatsBindings;
}

/** The longest wait for the object, in milliseconds. */
const DEADLINE_MS = 5_000;

/** The problem of a caller limited to some keys: counts are of all keys. */
function totalsProblem({ title, keyPrefix }: Principal): Problem | undefined {
  if (keyPrefix === undefined) return undefined;
  const only = `${title} may use keys that begin with ${describe(keyPrefix)} only`;
  return new Problem(LIMITER_PROBLEMS.forbidden, `${only}, and these counts are of all keys`);
}

/**
 * The counts that the principal may see: those of no policy, and of the policies that it may use. `undefined`: the object
 * does not answer, which is an answer too, since Prometheus reads no metrics in a problem.
 */
export async function callMetrics({
  env,
  principal,
}: StatsContext): Answered<{ readonly counts: Counts | undefined }> {
  const refusal = totalsProblem(principal);
  if (refusal !== undefined) return refusal;
  const totals = await askStats(env, (object) => object.totals());
  if (totals instanceof Problem)
    return totals.code === PROBLEMS.unavailable[1] ? { counts: undefined } : totals;
  const mine = Object.entries(totals.counts).filter(([series]) => {
    const [metric = "", policy = ""] = partsOf(series);
    return familyOf(metric)?.labels[0] !== POLICY_LABEL || mayUse(principal, policy);
  });
  return { counts: Object.fromEntries(mine) };
}

export async function callHistory(context: StatsContext, input: unknown): Answered<History> {
  const { env, client, principal } = context;
  const request = parse(HistoryRequest, input);
  if (request instanceof Problem) return request;
  const policy = totalsProblem(principal) ?? findPolicy(client.policies, principal, request.policy);
  if (policy instanceof Problem) return policy;
  const { step, since = DEFAULT_SINCE[step] } = request;
  const nowMs = SYSTEM_TIME.nowMs();
  const sinceMs = readSince(since, nowMs);
  const maxMs = parseDurationMs(MAX_SINCE[step]) ?? 0;
  if (sinceMs === undefined || sinceMs < nowMs - maxMs || sinceMs > nowMs) {
    const range = `not before ${MAX_SINCE[step]} ago by the ${step} and not after now`;
    return badValue(["since"], since, `${SINCE_ALLOWED}, ${range}`);
  }
  const name = publicName(policy.name);
  const points = await askStats(env, (object) => object.history({ policy: name, step, sinceMs }));
  if (points instanceof Problem) return points;
  return {
    policy: name,
    step,
    since: instantText(sinceMs),
    points: points.map(({ atMs, counts, plans }) => ({
      at: instantText(atMs),
      ...sumsOf(counts),
      ...(plans && { plans: byPlan(plans) }),
    })),
  };
}

/** The keys of a policy with the most calls or denials. A caller with a key prefix sees its own. */
export async function callTopKeys(context: StatsContext, input: unknown): Answered<TopKeyList> {
  const { env, client, principal } = context;
  const request = parse(TopKeysRequest, input);
  if (request instanceof Problem) return request;
  const policy = findPolicy(client.policies, principal, request.policy);
  if (policy instanceof Problem) return policy;
  const name = publicName(policy.name);
  const { by } = request;
  const top = await askStats(env, (object) => object.topKeys({ policy: name, by }));
  if (top instanceof Problem) return top;
  const { keyPrefix = "" } = principal;
  const keys = top.keys
    .filter(([key]) => key.startsWith(keyPrefix))
    .map(([key, count, error, plan]) => ({ key, count, error, ...(plan !== undefined && { plan }) }));
  return { policy: name, by, since: instantText(top.sinceMs), keys };
}

/** The groups of a policy's keys with the most calls or denials: none, if its calls have no groups. */
export async function callTopGroups(context: StatsContext, input: unknown): Answered<TopGroupList> {
  const { env, client, principal } = context;
  const request = parse(TopKeysRequest, input);
  if (request instanceof Problem) return request;
  const policy = totalsProblem(principal) ?? findPolicy(client.policies, principal, request.policy);
  if (policy instanceof Problem) return policy;
  const name = publicName(policy.name);
  const { by } = request;
  const top = await askStats(env, (object) => object.topKeys({ policy: groupsOf(name), by }));
  if (top instanceof Problem) return top;
  const groups = top.keys.map(([group, count, error]) => ({ group, count, error }));
  return { policy: name, by, since: instantText(top.sinceMs), groups };
}

function sumsOf(counts: Counts) {
  const [reasons, sums] = [{} as Record<string, number>, { admitted: 0, denied: 0, degraded: 0 }];
  for (const [words, count] of Object.entries(counts)) {
    const [outcome = "", reason = ""] = words.split(" ");
    if (outcome === "admitted") sums.admitted += count;
    else {
      sums.denied += count;
      addTo(reasons, reason, count);
    }
    if (reason === "degraded") sums.degraded += count;
  }
  return { ...sums, reasons };
}

function byPlan(counts: Counts): Record<string, { admitted: number; denied: number }> {
  const plans: Record<string, { admitted: number; denied: number }> = {};
  for (const [words, count] of Object.entries(counts)) {
    const [plan = "", outcome = ""] = words.split(" ");
    const sums = (plans[plan] ??= { admitted: 0, denied: 0 });
    sums[outcome === "admitted" ? "admitted" : "denied"] += count;
  }
  return plans;
}

export async function askStats<Answer extends object>(
  bindings: StatsBindings,
  ask: (object: StatsStub) => Promise<Answer>,
): Answered<Answer> {
  try {
    const object = statsStub(bindings);
    if (object !== undefined) return await inTime(SYSTEM_TIME, DEADLINE_MS, () => ask(object));
    const detail =
      "there are no counts to read: this deployment has no binding STATS to the class StatsObject";
    return new Problem(LIMITER_PROBLEMS.notConfigured, detail);
  } catch (error) {
    console.warn(`the object of the statistics does not answer: ${String(error)}`);
    return unavailable("the object of the statistics does not answer: ask again");
  }
}

const { policy } = KeyRequest.entries;

const MAX_SINCE = { minute: "1d", hour: "30d" } as const satisfies Record<Step, string>;
const DEFAULT_SINCE = { minute: "1h", hour: "1d" } as const satisfies Record<Step, string>;

const SINCE_ALLOWED = 'a duration such as "15m" "6h", or an instant such as "2026-11-22T18:00:00Z"';

function readSince(text: string, nowMs: number): number | undefined {
  const durationMs = parseDurationMs(text);
  if (durationMs !== undefined) return nowMs - durationMs;
  return parseInstantMs(text);
}

export const HistoryRequest = table({
  policy,
  since: optional(
    v.pipe(
      v.string(SINCE_ALLOWED),
      v.check((text) => readSince(text, 0) !== undefined, SINCE_ALLOWED),
    ),
    `From when on: ${SINCE_ALLOWED}. ${MAX_SINCE.minute} ago at most by the minute, ${MAX_SINCE.hour} by the ` +
      `hour. Default: ${DEFAULT_SINCE.minute} by the minute, ${DEFAULT_SINCE.hour} by the hour.`,
  ),
  step: v.optional(oneOf(STEPS), "minute"),
});

const TopKeysRequest = table({ policy, by: v.optional(oneOf(TOP_KINDS), "denied") });

const instant = (description: string) => described(v.pipe(v.string(), v.isoTimestamp()), description);

export const HistoryPoint = v.object({
  at: instant("When the step began."),
  admitted: amount("Decisions that admitted."),
  denied: amount("Decisions that denied."),
  degraded: amount("Those of both that `onFailure` decided, since the limiter could not."),
  reasons: described(v.record(v.string(), amount("How often.")), "By reason, how many were denied."),
  plans: optional(
    v.record(v.string(), v.object({ admitted: amount("Admitted."), denied: amount("Denied.") })),
    "Those by plans, by the plan's name. All others were decided by the policy's own figures.",
  ),
});

export const History = v.object({
  policy: v.string(),
  step: v.picklist(STEPS),
  since: instant("From when on."),
  points: described(v.array(HistoryPoint), "In their order. Steps without traffic are left out."),
});
export type History = Readonly<v.InferOutput<typeof History>>;

const counted = {
  count: amount("How often it came, or was denied: not more often than this."),
  error: amount("The count may be too high by so much at most."),
};

export const TopKey = v.object({
  key: v.string(),
  ...counted,
  plan: optional(v.string(), "The plan of the last decision. Absent: it was by the policy's own figures."),
});

const ofTops = {
  policy: v.string(),
  by: v.picklist(TOP_KINDS),
  since: instant("From when on: the beginning of the last hour."),
};

export const TopKeyList = v.object({
  ...ofTops,
  keys: described(v.array(TopKey), "The highest counts first, 64 at most."),
});
export type TopKeyList = Readonly<v.InferOutput<typeof TopKeyList>>;

export const TopGroup = v.object({ group: v.string(), ...counted });

export const TopGroupList = v.object({
  ...ofTops,
  groups: described(v.array(TopGroup), "Of all keys together. The highest counts first, 64 at most."),
});
export type TopGroupList = Readonly<v.InferOutput<typeof TopGroupList>>;
