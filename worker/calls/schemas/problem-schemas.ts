/** The schemas of problems, one for each status, for the OpenAPI document. */
import * as v from "valibot";
import { LIMITER_PROBLEMS, type ProblemKind, PROBLEMS } from "../../../core/protocol/problems.ts";
import { described } from "../../../core/validation.ts";
import { CheckDecision, Denied, DeniedDegraded, Shed } from "./answer-schemas.ts";
import { INTEGER } from "./request-schemas.ts";

const FieldError = v.object({
  pointer: described(v.string(), "Where, as a JSON pointer into the request."),
  detail: described(v.string(), "The field, its value and what is allowed."),
});

export const ProblemDetails = v.object({
  type: v.string(),
  title: v.string(),
  status: INTEGER,
  detail: v.string(),
  errors: v.optional(v.array(FieldError)),
});

/** By status: the name of the schema of its problems, and what they say. */
export const STATUSES = {
  400: ["Malformed", "The body is not JSON, or the address is not percent-encoded UTF-8"],
  401: ["Unauthorized", "No token, or one that is not known"],
  403: ["Forbidden", "The token lacks the scope, the policy or the key prefix"],
  404: ["NotFound", "There is no such policy, override, lease, hold, charge or token"],
  405: ["MethodNotAllowed", "This address takes other methods: `Allow` says which"],
  409: ["Conflict", "The idempotency key was used for another request, or a token has the name"],
  412: ["PreconditionFailed", "It is not what `If-Match` or `If-None-Match` says"],
  413: ["BodyTooLarge", "The body is over 16 KiB"],
  415: ["UnsupportedMediaType", "The body is not application/json"],
  422: ["NotAllowed", "A value is not allowed; `errors` says which and what is"],
  426: ["UpgradeRequired", "The request does not ask for a WebSocket"],
  429: [
    "BoundReached",
    "A bound is reached (code `bound-reached`): there are as many as there may be, and nothing was touched",
  ],
  503: ["Unavailable", "Not configured, or an object that the call needs did not answer"],
} as const satisfies Record<number, readonly [name: string, description: string]>;
export type Status = keyof typeof STATUSES;

const ERRORS = v.array(FieldError);

export function kindsOf(status: number): readonly ProblemKind[] {
  return Object.values({ ...PROBLEMS, ...LIMITER_PROBLEMS }).filter(([each]) => each === status);
}

/** The problems of a status, as one schema. A 422 always says where. */
function problem(status: number): v.GenericSchema {
  const types = kindsOf(status);
  return v.object({
    type: v.picklist(types.map(([, code]) => `urn:weir:problem:${code}`)),
    title: v.string(),
    status: v.literal(status),
    detail: described(v.string(), "What is wrong with this call."),
    errors: status === 422 ? described(ERRORS, "At most 20.") : v.optional(ERRORS),
  });
}

/** By name. */
export const PROBLEM_SCHEMAS = Object.fromEntries(
  Object.entries(STATUSES).map(([status, [name]]) => [name, problem(Number(status))]),
) as Readonly<Record<(typeof STATUSES)[Status][0], v.GenericSchema>>;

const HTTP_PROBLEMS = "https://iana.org/assignments/http-problem-types#";
const quota = {
  type: v.literal(`${HTTP_PROBLEMS}quota-exceeded`),
  title: v.string(),
  status: v.literal(429),
  detail: v.string(),
  "violated-policies": described(v.array(v.string()), "The rules that denied."),
};
const reduced = {
  ...quota,
  type: v.literal(`${HTTP_PROBLEMS}temporary-reduced-capacity`),
  status: v.literal(503),
};
const decisions = described(v.array(CheckDecision), "One for each check.");

export const QuotaExceeded = v.object({ ...quota, decision: Denied });
export const ReducedCapacity = v.object({
  ...reduced,
  decision: v.variant("reason", [Shed, DeniedDegraded]),
});
export const SeveralExceeded = v.object({ ...quota, decision: CheckDecision, decisions });
export const SeveralReduced = v.object({ ...reduced, decision: CheckDecision, decisions });
