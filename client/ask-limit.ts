import type { AnswerText } from "../core/protocol/answers.ts";
import { PROTOCOL, type WantedLimit } from "../core/protocol/messages.ts";
import type { LimiterStub } from "./transports/objects.ts";

/**
 * Asks an object for a decision. A call that is only a cost, with or without an idempotency key, can ask any version of
 * an object. Any other needs one that knows the message.
 */
export function askLimit(
  object: LimiterStub,
  policyName: string,
  key: string,
  call: WantedLimit,
): Promise<AnswerText> {
  const { cost, idempotencyKey, ...more } = call;
  if (Object.values(more).some((value) => value !== undefined))
    return object.limitCall({ ...call, protocol: PROTOCOL, policy: policyName, key });
  // RPC would send an argument that is `undefined`, so it is left out.
  return idempotencyKey === undefined
    ? object.limit(policyName, key, cost)
    : object.limit(policyName, key, cost, idempotencyKey);
}
