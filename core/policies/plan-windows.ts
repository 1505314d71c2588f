/**
 * Plans with shorter windows. What a window admitted is forgotten at its end, so a key that has a plan with a shorter one for a
 * moment would forget what its longer one holds. Therefore a call under the shorter window counts in both, and passes when it
 * passes in both: in the longer one up to its limit, or up to what the shorter one admits in that time if that is more.
 *
 * Example: 1,000 in 30 days, and a plan of 10 a day. Who has used 1,000 may use 10 a day when the first of the 1,000 are 30
 * days ago, and has 0 of 1,000 left when the plan changes back.
 *
 * Buckets need none of this: time fills them by what their state says, whatever plan was named.
 */
import type { AnyAlgorithm } from "../algorithms/algorithm.ts";
import { dualConfig, type DualConfig } from "../algorithms/dual-config.ts";
import { clip, type Violation, wrong } from "../violations.ts";
import type { Policy, Rule } from "./policy.ts";

/** The loosest rule with the longest window. */
interface Longest {
  readonly rule: Rule;
  readonly windowMs: number;
  readonly limit: number;
}

/** A window of the calendar or of a log may overlap with so many more of the shorter ones than fit into it. */
const MORE_WINDOWS = 2;

/** Makes the rules of plans count in the longest windows of all of them. @param maxInCall the most that a call may bring */
export function besideLongest(policies: readonly Policy[], maxInCall = 0): (policy: Policy) => Policy {
  const longest = longestIn(policies, maxInCall);
  return (policy) => {
    const rules = policy.rules.map((rule, index) => {
      const made = beside(rule, longest[index], policy.pool !== undefined);
      return "allowed" in made ? rule : made;
    });
    const isSame = rules.every((rule, index) => rule === policy.rules[index]);
    return isSame ? policy : { ...policy, rules: rules as unknown as Policy["rules"] };
  };
}

/**
 * The windows of plans that cannot be counted beside the longest one. Only policies that are written are refused for it:
 * under those that are stored, and have been in force, what a longer window held is forgotten.
 */
export function planWindowProblems({ plans, pool }: Policy): readonly Violation[] {
  const policies = [...(plans ?? [])];
  const max = policies[0]?.[1].limitInCall?.max;
  const longest = longestIn(
    policies.map(([, policy]) => policy),
    max,
  );
  return policies.flatMap(([plan, { name, rules }]) =>
    rules.flatMap((rule, index) => {
      const made = beside(rule, longest[index], pool !== undefined);
      if (!("allowed" in made)) return [];
      const path = rules.length === 1 && rule.name === name ? ["window"] : ["rules", rule.name, "window"];
      const problem = wrong(path, `${rule.quota.windowMs} ms`, made.allowed);
      return [plan === "" ? problem : inPlan(plan, problem)];
    }),
  );
}

/** A problem of a plan's table. */
export function inPlan(plan: string, { path, detail }: Violation): Violation {
  return { path: ["plans", plan, ...path], detail: `plans.${clip(plan)}: ${detail}` };
}

function longestIn(policies: readonly Policy[], maxInCall = 0): readonly (Longest | undefined)[] {
  return (policies[0]?.rules ?? []).map((_, index) =>
    policies
      .flatMap(({ rules }) => longestOf(rules[index], maxInCall) ?? [])
      .reduce<Longest | undefined>((one, other) => (one && !isLooser(other, one) ? one : other), undefined),
  );
}

function longestOf(rule: Rule | undefined, maxInCall: number): Longest | undefined {
  const { units, windowMs } = rule?.quota ?? { units: 0 };
  if (rule === undefined || windowMs === undefined) return undefined;
  return { rule, windowMs, limit: Math.max(units, maxInCall) };
}

function isLooser(one: Longest, other: Longest): boolean {
  return one.windowMs === other.windowMs ? one.limit > other.limit : one.windowMs > other.windowMs;
}

/** @returns what must be so instead, if it cannot be counted beside the longer window */
function beside(
  rule: Rule,
  longest: Longest | undefined,
  isPooled: boolean,
): Rule | { readonly allowed: string } {
  const { algorithm, quota } = rule;
  const isLongest = longest === undefined || (quota.windowMs ?? Infinity) >= longest.windowMs;
  if (isLongest || "own" in rule.config) return rule;
  const isWrapped = algorithm.isFair === true || algorithm.hasPenalty === true;
  if (!FORGETFUL.includes(algorithm.name)) return rule;
  const ofAll = `the longest window of the policy's plans, ${longest.windowMs} ms`;
  if (isWrapped || isPooled) return { allowed: `${ofAll}, with fair, blockFor or a pool` };
  const shortMs = quota.windowMs ?? Infinity;
  const within = quota.units * (Math.ceil(longest.windowMs / shortMs) + MORE_WINDOWS);
  const limit = Math.max(longest.limit, within);
  if (algorithm.canCount?.(longest.rule.config, limit) !== true)
    return { allowed: `longer, or the limit smaller: what it admits is counted in ${ofAll}` };
  const both: DualConfig = { own: { ...longest.rule.config, limit }, other: rule.config };
  const dual = dualConfig(longest.rule.algorithm, algorithm) as unknown as AnyAlgorithm;
  return { ...rule, algorithm: dual, config: { ...rule.config, ...both }, capacity: dual.capacity(both) };
}

/** Their states know only of their window (`canCount`), also with shares or penalties around them. */
const FORGETFUL: readonly string[] = ["sliding-log", "fixed-window", "sliding-window-counter"];
