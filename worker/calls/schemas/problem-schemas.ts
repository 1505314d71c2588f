/** The schemas of problems, one for each status, for the OpenAPI document. */
import * as v from "valibot";
import { PROBLEMS } from "../../../core/protocol/problems.ts";
import { described } from "../../../core/validation.ts";
import { CheckDecision, Denied, DeniedDegraded, Shed } from "./answer-schemas.ts";

const FieldError = v.object({
  pointer: described(v.string(), "Where, as a JSON pointer into the request."),
  detail: described(v.string(), "The field, its value and what is allowed."),
});

export const ProblemDetails = v.object({
  type: v.string(),
  title: v.string(),
  status: v.pipe(v.number(), v.integer()),
  detail: v.string(),
  errors: v.optional(v.array(FieldError)),
});

type Status = (typeof PROBLEMS)[keyof typeof PROBLEMS][0];

/** The problems that have this status, as one schema. */
function problem<Code extends Status>(status: Code) {
  const types = Object.values(PROBLEMS).filter(([each]) => each === status);
  return v.object({
    type: v.picklist(types.map(([, code]) => `urn:weir:problem:${code}`)),
    title: v.string(),
    status: v.literal(status),
    detail: described(v.string(), "What is wrong with this call."),
    errors: v.optional(v.array(FieldError)),
  });
}

export const Malformed = problem(400);
export const Unauthorized = problem(401);
export const Forbidden = problem(403);
export const NotFound = problem(404);
export const MethodNotAllowed = problem(405);
export const IdempotencyKeyReused = problem(409);
export const PreconditionFailed = problem(412);
export const BodyTooLarge = problem(413);
export const UnsupportedMediaType = problem(415);
/** The only one that always says where. */
export const NotAllowed = v.object({
  ...problem(422).entries,
  errors: described(v.array(FieldError), "At most 20."),
});
export const UpgradeRequired = problem(426);
export const BoundReached = problem(429);
export const Unavailable = problem(503);

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
