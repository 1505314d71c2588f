/** Decisions as HTTP answers them. */
import { readClockMs } from "../../core/clock.ts";
import type { Policy } from "../../core/policies/policy.ts";
import {
  type AllDecisions,
  type AnyDecision,
  type Decision,
  standingFor,
} from "../../core/protocol/decision.ts";
import { allDeniedBody, anyDeniedBody, deniedBody, longestWaitMs } from "../../core/protocol/denied-body.ts";
import { neverResets, retryAfter, setPolicyHeaders, setQuotaHeaders } from "../../core/protocol/headers.ts";
import { Problem, LIMITER_PROBLEMS } from "../../core/protocol/problems.ts";
import { type Counts } from "../../core/stats/counts.ts";
import { METRIC_FORMATS, metricsText } from "../../core/stats/metrics-text.ts";
import type { TargetAnswer } from "../calls/validate.ts";

export type DenyStatus = 200 | 429;

/**
 * Answers a decision: with 200, or a denial as `deny` says. A degraded denial is then a 503. @param write makes its JSON
 * from one with rules
 */
export function decisionResponse(
  { policy, answer }: TargetAnswer<Decision>,
  deny: DenyStatus,
  write: (decision: Decision) => string = JSON.stringify,
): Response {
  if (!answer.success && deny !== 200) {
    const body = deniedBody(answer);
    return problemResponse(body.status, body, decisionHeaders(policy, answer, readClockMs));
  }
  if (answer.rules.length > 0)
    return new Response(write(answer), { headers: currentHeaders(policy, answer) });
  return new Response(JSON.stringify(answer), { headers: decisionHeaders(policy, answer, readClockMs) });
}

/** The same for a decision of this isolate, which has no lease and no hold. */
export function plainResponse(policy: Policy, decision: Decision, deny: DenyStatus): Response {
  return decisionResponse({ policy, answer: decision }, deny, decisionText);
}

/**
 * The headers of a decision with rules, for the next response. Those that all decisions of a policy share are made once:
 * copying them costs less than checking four names and values again.
 */
function currentHeaders(policy: Policy, decision: Decision): Headers {
  // These are set in the template itself, which the response copies. Nothing is awaited in between.
  const wait = decision.success ? null : (decision.retryAfterMs ?? null);
  const { admissions, denials } = sharedHeaders(policy);
  const headers = wait === null ? admissions : denials;
  // The response before may have had one.
  if (neverResets(decision)) headers.delete("X-RateLimit-Reset");
  setQuotaHeaders(headers, policy, decision, readClockMs);
  for (const [name, value] of Object.entries(retryAfter(wait))) headers.set(name, value);
  return headers;
}

/** Headers that all decisions of a policy share, and templates of those without a Retry-After, and of those with one. */
interface SharedHeaders {
  readonly fields: Readonly<Record<string, string>>;
  readonly admissions: Headers;
  readonly denials: Headers;
}

const shared = new WeakMap<Policy, SharedHeaders>();

function sharedHeaders(policy: Policy): SharedHeaders {
  const known = shared.get(policy);
  if (known !== undefined) return known;
  const map = new Map(Object.entries(JSON_NOT_STORED));
  setPolicyHeaders(map, policy);
  const fields = Object.fromEntries(map);
  const headers = { fields, admissions: new Headers(fields), denials: new Headers(fields) };
  shared.set(policy, headers);
  return headers;
}

/**
 * `JSON.stringify` of such a decision, written by hand. Only the key comes from the caller: names of policies,
 * plans and rules have nothing to escape.
 */
export function decisionText(decision: Decision): string {
  const { success, policy, key, limit, remaining, resetAfterMs, retryAfterMs, reason, source, violated } =
    decision;
  let rules = "";
  for (const rule of decision.rules) {
    if (rules !== "") rules += ",";
    const left = rule.quotaRemaining === undefined ? "" : `"quotaRemaining":${rule.quotaRemaining},`;
    rules += `{"name":"${rule.name}","success":${rule.success},"limit":${rule.limit},"remaining":${rule.remaining},${left}"resetAfterMs":${rule.resetAfterMs},"retryAfterMs":${rule.retryAfterMs},"reason":"${rule.reason}"}`;
  }
  const named = decision.override === undefined ? "" : `,"override":${JSON.stringify(decision.override)}`;
  if (decision.group !== undefined) return JSON.stringify(decision);
  const plan = decision.plan === undefined ? "" : `,"plan":"${decision.plan}"`;
  const end = plan + (violated === undefined ? "" : `,"violated":${JSON.stringify(violated)}`) + named;
  return `{"success":${success},"policy":"${policy}","key":${JSON.stringify(key)},"limit":${limit},"remaining":${remaining},"resetAfterMs":${resetAfterMs},"retryAfterMs":${retryAfterMs},"reason":"${reason}","source":"${source}","rules":[${rules}]${end}}`;
}

/** The same for a call on several keys. RateLimit headers could not name one of them, so only Retry-After is sent. */
function allResponse(answered: AllDecisions, deny: DenyStatus): Response {
  const denied = answered.decisions.filter(({ success }) => !success);
  const headers = { ...JSON_NOT_STORED, ...retryAfter(longestWaitMs(denied)) };
  if (denied.length === 0 || deny === 200) return new Response(JSON.stringify(answered), { headers });
  const body = allDeniedBody(answered.decisions);
  return problemResponse(body.status, body, headers);
}

/** The same for a call that charges one check: the headers are those of the decision that stands for it. */
function anyResponse({ policy, answer }: TargetAnswer<AnyDecision>, deny: DenyStatus): Response {
  const headers = decisionHeaders(policy, standingFor(answer), readClockMs);
  if (answer.success || deny === 200) return new Response(JSON.stringify(answer), { headers });
  const body = anyDeniedBody(answer);
  return problemResponse(body.status, body, headers);
}

const JSON_NOT_STORED = { "content-type": "application/json", "cache-control": "no-store" };

/** The headers of a decision, in the styles of its policy. A degraded decision has only those of the policy. */
export function decisionHeaders(
  policy: Policy,
  decision: Decision,
  nowMs: () => number,
): Record<string, string> {
  const headers = new Map(Object.entries(sharedHeaders(policy).fields));
  setQuotaHeaders(headers, policy, decision, nowMs);
  const wait = decision.success ? null : (decision.retryAfterMs ?? null);
  return { ...Object.fromEntries(headers), ...retryAfter(wait) };
}

/* What calls answer, over HTTP and over the service binding. */

/** An answer as HTTP writes it, and as the service binding returns it. */
export interface AnswerKind<Answer> {
  respond(answer: Answer, deny: DenyStatus): Response;
  value(answer: Answer): unknown;
}

const asItIs = <Answer>(answer: Answer): Answer => answer;

export const DECISION: AnswerKind<TargetAnswer<Decision>> = {
  respond: decisionResponse,
  value: ({ answer }) => answer,
};
export const ALL_DECISIONS: AnswerKind<AllDecisions> = { respond: allResponse, value: asItIs };
export const ANY_DECISION: AnswerKind<TargetAnswer<AnyDecision>> = {
  respond: anyResponse,
  value: ({ answer }) => answer,
};
/** 200, and what was answered. */
export const JSON_ANSWER: AnswerKind<object> = {
  respond: (answer) => Response.json(answer, { headers: NOT_STORED }),
  value: asItIs,
};
export const NOTHING: AnswerKind<unknown> = {
  respond: () => new Response(null, { status: 204 }),
  value: () => undefined,
};
/** What was answered, with its version as the entity tag. */
export const TAGGED: AnswerKind<object & { readonly version: number }> = {
  respond: (answer) => taggedResponse(answer, answer.version),
  value: asItIs,
};
/** A document without its version, so that it can be kept and written back; the version is the entity tag. */
export const DOCUMENT: AnswerKind<{ readonly version: number; readonly value: object }> = {
  respond: ({ version, value }) => taggedResponse(value, version),
  value: asItIs,
};
/** A response that the call has made. */
export const RESPONSE: AnswerKind<Response> = { respond: asItIs, value: asItIs };
/** All counts, in the format that the caller takes. */
export const METRICS: AnswerKind<{
  readonly counts: Counts | undefined;
  readonly accept: string | null | undefined;
}> = {
  respond: ({ counts, accept }) => {
    // OpenMetrics, unless the caller accepts only plain text.
    const isPlain = accept?.includes("text/plain") && !accept.includes("application/openmetrics-text");
    const format = isPlain === true ? "prometheus" : "openmetrics";
    const headers = { "content-type": METRIC_FORMATS[format], "cache-control": "no-store", vary: "accept" };
    return new Response(metricsText(counts, format), { headers });
  },
  value: asItIs,
};

const NOT_STORED = { "cache-control": "no-store" };

function taggedResponse(answer: object, version: number): Response {
  return Response.json(answer, { headers: { ...NOT_STORED, etag: `"${version}"` } });
}

/* Problems as HTTP answers them: application/problem+json, RFC 9457. */

/** The response of a problem. */
export function toResponse({ code, status, title, detail, errors, headers }: Problem): Response {
  const body = { type: `urn:weir:problem:${code}`, title, status, detail };
  return problemResponse(status, errors.length === 0 ? body : { ...body, errors }, headers);
}

/** What a call answers, or the response of its problem. */
export function responseOf(answer: Response | Problem): Response {
  return answer instanceof Problem ? toResponse(answer) : answer;
}

/** Logs an error that must not happen, and answers 500. */
export function internalProblem(error: unknown): Response {
  console.error(error);
  const detail = "this is a bug in the limiter; the error is in its log";
  return toResponse(new Problem(LIMITER_PROBLEMS.internal, detail));
}

function problemResponse(status: number, body: object, headers: Problem["headers"] = {}): Response {
  return new Response(JSON.stringify(body), {
    status,
    headers: { ...headers, "content-type": "application/problem+json", "cache-control": "no-store" },
  });
}
