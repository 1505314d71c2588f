/** Decisions as HTTP answers them. */
import type { Policy } from "../../core/policies/policy.ts";
import type { AllDecisions, Decision } from "../../core/protocol/decision.ts";
import { Problem } from "../../core/protocol/problems.ts";
import type { Answered } from "../calls/target.ts";
import { decisionHeaders, policyHeader, rateLimit, retryAfter } from "./headers.ts";
import { toResponse } from "./problem-responses.ts";
import { problemResponse } from "./problem-responses.ts";

/** The status of a denial. */
export type DenyStatus = 200 | 429;

/** Answers a decision: with 200, or a denial as `deny` says. A degraded denial is then a 503. */
export function decisionResponse(
  answered: Answered<Decision> | Problem,
  deny: DenyStatus,
): Response | Problem {
  if (answered instanceof Problem) return answered;
  const { policy, answer } = answered;
  const headers = decisionHeaders(policy, answer);
  if (answer.success || deny === 200) return new Response(JSON.stringify(answer), { headers });
  if (answer.reason === "degraded") return problemResponse(503, temporarilyReduced(answer), headers);
  return problemResponse(429, quotaExceeded(answer), headers);
}

/** Headers that the decisions of a policy share: of those without a Retry-After, and of those with one. */
const admissions = new WeakMap<Policy, Headers>();
const denials = new WeakMap<Policy, Headers>();

/**
 * The same for a decision of this isolate, which has no lease and no hold. The headers that all decisions of a policy
 * share are made once: copying them costs less than checking four names and values anew.
 */
export function plainResponse(policy: Policy, decision: Decision, deny: DenyStatus): Response {
  if (!decision.success && deny !== 200) {
    const response = decisionResponse({ policy, answer: decision }, deny);
    return response instanceof Problem ? toResponse(response) : response;
  }
  // These are set in the template itself, which the response copies. Nothing is awaited in between.
  const wait = decision.success ? null : (decision.retryAfterMs ?? null);
  const headers = templateOf(policy, wait === null ? admissions : denials);
  headers.set("RateLimit", rateLimit(decision));
  for (const [name, value] of Object.entries(retryAfter(wait))) headers.set(name, value);
  return new Response(decisionText(decision), { headers });
}

function templateOf(policy: Policy, templates: WeakMap<Policy, Headers>): Headers {
  const known = templates.get(policy);
  if (known !== undefined) return known;
  const headers = new Headers({ ...JSON_NOT_STORED, "RateLimit-Policy": policyHeader(policy) });
  templates.set(policy, headers);
  return headers;
}

/**
 * `JSON.stringify` of such a decision, written by hand. Only the key comes from the caller: names of policies and
 * rules have nothing to escape.
 */
export function decisionText(decision: Decision): string {
  const { success, policy, key, limit, remaining, resetAfterMs, retryAfterMs, reason, source, violated } =
    decision;
  let rules = "";
  for (const rule of decision.rules) {
    if (rules !== "") rules += ",";
    rules += `{"name":"${rule.name}","success":${rule.success},"limit":${rule.limit},"remaining":${rule.remaining},"resetAfterMs":${rule.resetAfterMs},"retryAfterMs":${rule.retryAfterMs},"reason":"${rule.reason}"}`;
  }
  const end = violated === undefined ? "" : `,"violated":${JSON.stringify(violated)}`;
  return `{"success":${success},"policy":"${policy}","key":${JSON.stringify(key)},"limit":${limit},"remaining":${remaining},"resetAfterMs":${resetAfterMs},"retryAfterMs":${retryAfterMs},"reason":"${reason}","source":"${source}","rules":[${rules}]${end}}`;
}

/**
 * The same for a call on several keys. RateLimit headers could not say whose limits they mean, so only Retry-After is
 * sent.
 */
export function allResponse(answered: AllDecisions | Problem, deny: DenyStatus): Response | Problem {
  if (answered instanceof Problem) return answered;
  const denied = answered.decisions.filter(({ success }) => !success);
  const [first] = denied;
  const headers = { ...JSON_NOT_STORED, ...retryAfter(longestWaitMs(denied)) };
  if (first === undefined || deny === 200) return new Response(JSON.stringify(answered), { headers });
  const isDegraded = denied.every(({ reason }) => reason === "degraded");
  const problem = isDegraded ? temporarilyReduced(first) : quotaExceeded(first);
  const violated = [...new Set(denied.flatMap((each) => each.violated ?? []))];
  const whole = {
    ...problem,
    ...(!isDegraded && { "violated-policies": violated }),
    decisions: answered.decisions,
  };
  return problemResponse(isDegraded ? 503 : 429, whole, headers);
}

/** How long until all of these would pass, in milliseconds; `null`: one of them never does, or nobody knows. */
function longestWaitMs(denied: readonly Decision[]): number | null {
  const waits = denied.map(({ retryAfterMs }) => retryAfterMs ?? Infinity);
  const longest = Math.max(0, ...waits);
  return longest === 0 || longest === Infinity ? null : longest;
}

const JSON_NOT_STORED = { "content-type": "application/json", "cache-control": "no-store" };

/** The two problem types of draft-ietf-httpapi-ratelimit-headers-11, with the decision in them. */
function quotaExceeded(decision: Decision): object {
  return {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "The quota of this key is used up",
    status: 429,
    detail:
      decision.retryAfterMs === null
        ? "the cost is over the limit: it will never be admitted"
        : `the same call passes in ${decision.retryAfterMs} ms if nobody else comes`,
    "violated-policies": decision.violated ?? [],
    decision,
  };
}

function temporarilyReduced(decision: Decision): object {
  return {
    type: "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity",
    title: "The limiter could not decide",
    status: 503,
    detail: 'the key\'s object did not answer, and this policy has onFailure = "closed"',
    "violated-policies": [],
    decision,
  };
}
