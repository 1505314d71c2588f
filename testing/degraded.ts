/** What a client answers when its limiter cannot be reached. */
import type { KeyRequest, LimitAllRequest, Limiter } from "../client/limiter.ts";
import type { AllDecisions, Decision } from "../core/protocol/decision.ts";
import { Problem, PROBLEMS } from "../core/protocol/problems.ts";
import type { ListedPolicy } from "../core/protocol/reservation-messages.ts";
import type { Method } from "./calls.ts";

/** The answer to a call that did not reach the limiter. @param usual the policy of calls that name none */
export async function degraded(
  limiter: Pick<Limiter, "policies">,
  method: Method,
  asked: unknown,
  usual?: string,
): Promise<Decision | AllDecisions> {
  if (!DECIDING.includes(method))
    throw new Problem(PROBLEMS.unavailable, "the limiter did not answer: the test says so").toError();
  const { policies } = await limiter.policies();
  if (method !== "limitAll") return degradedFor(policies, asked as KeyRequest, usual);
  const decisions = (asked as LimitAllRequest).checks.map((check) => degradedFor(policies, check, usual));
  return { success: decisions.every(({ success }) => success), decisions };
}

/** The calls that are answered with decisions. */
const DECIDING: readonly Method[] = ["limit", "hold", "acquire", "limitAll"];

function degradedFor(policies: readonly ListedPolicy[], asked: KeyRequest, usual = ""): Decision {
  const { policy: name = usual, key } = asked;
  const policy = policies.find((each) => each.name === name);
  const limits = policy?.rules.map(({ capacity }) => Number(capacity)) ?? [];
  return {
    success: policy?.shadow === true || policy?.onFailure === "open",
    policy: name,
    key,
    limit: Math.min(...limits, Number.MAX_SAFE_INTEGER),
    reason: "degraded",
    source: "fallback",
    rules: [],
  };
}
