/** How long a cost waits until all rules admit it. */
import type { Rule } from "../policies/policy.ts";
import type { RuleDecision } from "../protocol/answers.ts";
import { type Account, capacityOf, Outlook } from "./hold.ts";

/** After so many steps the wait is a lower bound. */
const MAX_STEPS = 32;

/**
 * Whether what would pass at one instant may not pass at a later one, if nobody comes: late in a cycle the permits of one
 * more cycle can be reserved (permits-per-cycle.ts). All other rules would go on to admit.
 */
function mayLapse({ algorithm, config, quota }: Rule): boolean {
  if (algorithm.isShare === true) return false;
  return capacityOf({ algorithm, config }) > quota.units && !algorithm.localDecisions(config).admits;
}

/** The decisions of a denial. If when the last rule passes another does not any more, the longest wait is until all do. */
export function withJointWait(
  rules: readonly RuleDecision[],
  asked: readonly { readonly rule: Rule; readonly units: number }[],
  accounts: readonly Account[],
  nowMs: number,
): readonly RuleDecision[] {
  if (rules.length === 1 || !asked.some(({ rule }) => mayLapse(rule))) return rules;
  const longestMs = Math.max(...rules.map(({ retryAfterMs }) => retryAfterMs ?? 0));
  const lapsing = asked.flatMap(({ rule, units }, index) => {
    const { state, holds } = accounts[index] as Account;
    return mayLapse(rule) ? [{ outlook: new Outlook(rule, state, holds), units }] : [];
  });
  let [beforeMs, atMs] = [-Infinity, nowMs + longestMs];
  for (let step = 0; step < MAX_STEPS && beforeMs < atMs; step += 1) {
    beforeMs = atMs;
    for (const { outlook, units } of lapsing) atMs = outlook.passesAtMs(atMs, units);
  }
  if (atMs === Infinity) return rules;
  return rules.map((rule) =>
    rule.retryAfterMs === longestMs ? { ...rule, retryAfterMs: atMs - nowMs } : rule,
  );
}
