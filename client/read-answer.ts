/** Turns the answers of objects into decisions and problems for callers. */
import { randomFraction, readClockMs } from "../core/clock.ts";
import type { Policy, PolicyView } from "../core/policies/policy.ts";
import type { Answer, Decided, Peeked, Shed, UnsupportedProtocol } from "../core/protocol/answers.ts";
import {
  type Decision,
  type KeyReport,
  callerDecision,
  degradedDecision,
  effectDecision,
  publicDecision,
  shedDecision,
  withJitter,
} from "../core/protocol/decision.ts";
import { boundText, type Full, Problem, LIMITER_PROBLEMS, PROBLEMS } from "../core/protocol/problems.ts";

/** An answer as callers see it. @param claimed what the object may lack */
export function decisionOf(
  policy: Policy,
  key: string,
  answer: Answer | Problem,
  claimed: keyof typeof NOT_FOUND = "lease",
): Decision | Problem {
  if (answer instanceof Problem) return answer;
  if ("missing" in answer) return notFound(claimed);
  if ("full" in answer) return boundReached(answer);
  if ("shed" in answer) return toShedDecision(policy, key, answer.shed);
  if ("askHome" in answer) return unavailable("the key's object is another one");
  if (!("conflict" in answer)) return toDecision(policy, key, answer);
  const detail = `the idempotency key was used for a ${answer.conflict.request}: use a new key for a different request`;
  return new Problem(LIMITER_PROBLEMS.idempotencyConflict, detail, {
    errors: [{ pointer: "/idempotencyKey", detail }],
  });
}

/** The decision after a refund, with the least that came back of a rule. */
export function refundedOf(decision: Decision | Problem): Decision | Problem {
  if (decision instanceof Problem) return decision;
  const units = decision.rules.flatMap(({ refunded }) => refunded ?? []);
  return units.length === 0 ? decision : { ...decision, refunded: Math.min(...units) };
}

/** A decision, and the round for which its object has stored it, if it denies. */
export interface Attempted {
  readonly decision: Decision;
  readonly deniedIn?: Decided["deniedIn"];
}

/** The answer to an `Attempt`. An object of an older version decides none: it would not store a denial. */
export function attemptedOf(
  policy: Policy,
  key: string,
  answer: Answer | UnsupportedProtocol | Problem,
): Attempted | Problem {
  if ("unsupported" in answer) return { decision: degradedDecision(policy, key) };
  const decision = decisionOf(policy, key, answer);
  if (decision instanceof Problem) return decision;
  return { decision, ...("rules" in answer && answer.deniedIn && { deniedIn: answer.deniedIn }) };
}

/** The decision on a shed call, with the policy's jitter. */
export function toShedDecision(policy: Policy, key: string, shed: Shed): Decision {
  return withJitter(policy, shedDecision(policy, key, shed), randomFraction);
}

/** The decision of a shadow policy on a call that it would have shed. */
export function asShadow<Answered extends Decision | Problem>(decided: Answered): Answered | Decision {
  if (decided instanceof Problem || !decided.success) return decided;
  const decision: Decision = decided;
  return { ...decision, reason: "shadow" };
}

/** The decision on a key blocked by an override; `undefined`: none blocks it, or the policy is in shadow. */
export function blockedDecision(policy: Policy, key: string): Decision | undefined {
  const { override, shadow } = policy;
  if (override?.effect !== "blocked" || shadow) return undefined;
  return effectDecision(policy, key, override, readClockMs());
}

/** The problem of a call refused at a bound. It has changed nothing. */
export function boundReached(full: Full): Problem {
  return new Problem(LIMITER_PROBLEMS.bound, boundText(full), { headers: { "retry-after": "1" } });
}

/** Whether the caller of this answer has left: such an answer has no rules. */
export function hasNoRules(answer: Answer): boolean {
  return "rules" in answer && answer.rules.length === 0;
}

export function reportOf(policy: Policy, key: string, peeked: Peeked | Full | Problem): KeyReport | Problem {
  if (peeked instanceof Problem) return peeked;
  if ("full" in peeked) return boundReached(peeked);
  const { rules, source, ...report } = peeked;
  const { override } = policy;
  const decision =
    override?.effect === undefined
      ? publicDecision(policy, key, { rules, ...(source && { source }) })
      : effectDecision(policy, key, override, readClockMs());
  return { ...decision, ...(override && { override: override.pattern }), ...report };
}

/** By the names of problems: a bundle drops it where nothing needs it. */
const NOT_FOUND = {
  lease: ["leaseNotFound", "it was released, it has expired, or it never existed"],
  hold: ["holdNotFound", "it was settled or cancelled, it has expired, or it never existed"],
  charge: [
    "chargeNotFound",
    "nothing was taken under this charge, it was given back before, or it is not remembered any more",
  ],
} as const;

/** The problem of a claim, or of a charge in a refund, that is not there (any more). */
export function notFound(kind: keyof typeof NOT_FOUND, detail: string = NOT_FOUND[kind][1]): Problem {
  return new Problem(PROBLEMS[NOT_FOUND[kind][0]], detail);
}

export function unavailable(detail: string): Problem {
  return new Problem(PROBLEMS.unavailable, detail);
}

/** An answer to a message; `told`: the decision that a remote limiter made by rules unknown here. */
export type CarriedDecision = Decided & { readonly told?: Decision };

/** `callerDecision` with the real clock and randomness. */
export function toDecision(
  policy: PolicyView,
  key: string,
  decided: Decided,
  decidedBy: "isolate" | "object" = "object",
): Decision {
  return callerDecision(policy, key, decided, decidedBy, randomFraction, readClockMs);
}
