import type { AlgorithmDecision, Allowed } from "../algorithms/algorithm-decision.ts";
import type { Rule } from "../policies/policy.ts";

/**
 * What a rule says of a cost, beside units that are held. Units that it keeps for more important calls (`Rule.apart`)
 * count as held too. A denial that they alone cause has the reason `shed`.
 */
export function decideState(
  rule: Rule,
  state: unknown,
  nowMs: number,
  cost: number,
  held: number,
): AlgorithmDecision<unknown> {
  const { algorithm, config, apart } = rule;
  if (apart === undefined) return algorithm.decide(config, state, nowMs, cost, held);
  const decision = algorithm.decide(config, state, nowMs, cost, held + apart);
  const plain = () => algorithm.decide(config, state, nowMs, cost, held);
  if (decision.allowed) return decision.delayMs === undefined ? decision : withDelayOf(decision, plain());
  // Such a denial is not the caller's doing, so it does not count either.
  const { counted: _, ...denied } = decision;
  if (cost > rule.capacity) return { ...denied, reason: "cost-over-limit" };
  return plain().allowed ? { ...denied, reason: "shed" } : decision;
}

/** Units that are only kept delay nobody: they are not on their way. */
function withDelayOf(decision: Allowed<unknown>, plain: AlgorithmDecision<unknown>): Allowed<unknown> {
  const delayMs = plain.allowed ? plain.delayMs : undefined;
  const told = Object.entries(decision).filter(([field]) => field !== "delayMs");
  return { ...(Object.fromEntries(told) as typeof decision), ...(delayMs !== undefined && { delayMs }) };
}
