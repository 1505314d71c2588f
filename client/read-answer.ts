/** What objects answer, in the caller's words. */
import { publicDecision } from "../core/protocol/decision.ts";
import type { Policy } from "../core/policies/parse-policies.ts";
import {
  readAnswer,
  type AnswerText,
  type Conflict,
  type Decided,
  type Missing,
  type Peeked,
} from "../core/protocol/messages.ts";
import type { Decision, KeyReport } from "../worker/calls/answer-schemas.ts";
import { Problem, PROBLEMS } from "../core/protocol/problems.ts";

/** What an object's answer says, in the caller's words. */
export function decisionIn(
  policy: Policy,
  key: string,
  text: AnswerText,
  missing: () => Problem = leaseMissing,
): Decision | Problem {
  return decisionOf(policy, key, readAnswer(text), missing);
}

export function decisionOf(
  policy: Policy,
  key: string,
  answer: Decided | Conflict | Missing,
  missing: () => Problem = leaseMissing,
): Decision | Problem {
  if ("missing" in answer) return missing();
  if (!("conflict" in answer)) return publicDecision(policy, key, answer);
  const detail = `the idempotency key stands for a ${answer.conflict.request}: use another for another request`;
  return new Problem(PROBLEMS.idempotencyConflict, detail, {
    errors: [{ pointer: "/idempotencyKey", detail }],
  });
}

export function reportOf(policy: Policy, key: string, { rules, source, ...report }: Peeked): KeyReport {
  return { ...publicDecision(policy, key, { rules, ...(source && { source }) }), ...report };
}

export function isMissing(text: AnswerText): boolean {
  return "missing" in (JSON.parse(text) as object);
}

export function leaseMissing(): Problem {
  return new Problem(PROBLEMS.leaseNotFound, "it was released, it has expired, or it never was");
}

export function holdMissing(): Problem {
  return new Problem(PROBLEMS.holdNotFound, "it was settled, it has expired, or it never was");
}

export function unavailable(detail: string): Problem {
  return new Problem(PROBLEMS.unavailable, detail);
}
