import type { Answer, RuleDecision } from "../../core/protocol/answers.ts";
import { costOf, type Cost } from "../../core/protocol/cost.ts";
import type { KeyState } from "../keys/key-state.ts";
import { leaseWaitMs } from "./share-units.ts";

/** The pool's decisions; the wait is shorter where leases of this region end sooner than the pool has free slots. */
export function sooner(
  keyState: KeyState,
  rules: readonly RuleDecision[],
  cost: Cost,
  nowMs: number,
): readonly RuleDecision[] {
  return rules.map((rule, index): RuleDecision => {
    const ruleState = keyState.ruleStates[index];
    if (rule.success || rule.retryAfterMs === null || ruleState?.rule.lease === undefined) return rule;
    const hereMs = leaseWaitMs(ruleState, costOf(ruleState.rule, cost), nowMs) ?? Infinity;
    return { ...rule, retryAfterMs: Math.min(rule.retryAfterMs, hereMs) };
  });
}

/** The same answer with the pool's figures, unless the pool and the region decided differently. */
export function withPoolsFigures(answer: Answer, rules: readonly RuleDecision[]): Answer {
  const isAdmission = (each: readonly RuleDecision[]) => each.every(({ success }) => success);
  if (!("rules" in answer) || isAdmission(answer.rules) !== isAdmission(rules)) return answer;
  return { ...answer, rules, source: "pool" };
}
