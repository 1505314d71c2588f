import type { Policy } from "../durable-objects/policies.ts";
import type { RuleDecision } from "../durable-objects/protocol.ts";
import type { Decision } from "./schemas.ts";

/** The decision that a caller sees, made of what the rules said: the figures on top are those of the rule that binds. */
export function decisionOf(policy: Policy, key: string, rules: readonly RuleDecision[]): Decision {
  const violated = rules.filter(({ success }) => !success).map(({ name }) => name);
  const { limit, remaining, resetAfterMs, retryAfterMs, reason } = bindingRule(rules);
  const admitted = {
    success: true,
    policy: policy.name,
    key,
    limit,
    remaining,
    resetAfterMs,
    retryAfterMs: 0,
  };
  const decision = { source: "object" as const, rules: [...rules] };
  if (violated.length === 0) return { ...admitted, reason, ...decision };
  if (policy.shadow) return { ...admitted, reason: "shadow", ...decision, violated };
  return { ...admitted, success: false, retryAfterMs, reason, ...decision, violated };
}

/** What the policy's `onFailure` decides when nobody else could. It invents no figures. */
export function degradedDecision(policy: Policy, key: string): Decision {
  return {
    success: policy.shadow || policy.onFailure === "open",
    policy: policy.name,
    key,
    limit: Math.min(...policy.rules.map(({ capacity }) => capacity)),
    reason: "degraded",
    source: "fallback",
    rules: [],
  };
}

/** The one to wait for longest; when all admit, the one with the least left. */
function bindingRule(rules: readonly RuleDecision[]): RuleDecision {
  return rules.reduce((binding, rule) => (binds(rule, binding) ? rule : binding));
}

function binds(rule: RuleDecision, other: RuleDecision): boolean {
  const waits = (rule.retryAfterMs ?? Infinity) - (other.retryAfterMs ?? Infinity);
  return Number.isNaN(waits) || waits === 0 ? rule.remaining < other.remaining : waits > 0;
}
