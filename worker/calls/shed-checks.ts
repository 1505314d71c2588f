/** Load shedding of a call on several keys: one draw is for all its checks. */
import type { LimiterClient } from "../../client/limiter-client.ts";
import type { Rolled } from "../../client/load-shedding.ts";
import { shedTold } from "../../client/read-answer.ts";
import type { Decision } from "../../core/protocol/decision.ts";
import type { Check } from "./checks.ts";

/** A check for which it was drawn whether it is shed. */
export type Drawn = Check & { readonly shed?: Rolled };

/** Draws once for the whole call. Most policies shed nothing, and a policy in shadow only reports. */
export async function withShed(client: LimiterClient, checks: readonly Check[]): Promise<readonly Drawn[]> {
  if (!checks.some(({ policy }) => policy.shedding !== undefined && !policy.shadow)) return checks;
  const rolled = await client.rollTogether(checks);
  return checks.map((check, index) => ({ ...check, shed: check.policy.shadow ? undefined : rolled[index] }));
}

/** What a check is answered that was shed; `undefined`: it was not. */
export function shedOutcome({
  policy,
  key,
  shed,
}: Drawn): { readonly decision: Decision; readonly isContended: false } | undefined {
  return shed && { decision: shedTold(policy, key, shed), isContended: false };
}

/** Whether a check is shed whatever its object remembers: one with an idempotency key may have passed before. */
export function isShedAnyhow({ shed, idempotencyKey }: Drawn): boolean {
  return shed !== undefined && idempotencyKey === undefined;
}
