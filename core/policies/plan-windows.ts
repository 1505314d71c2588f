/**
 * Plans with other windows. What a window admitted is forgotten at its end, so a key that has a plan with a shorter one for a
 * moment would forget what its longer one holds. Therefore a key counts in the windows of all its policy's plans, each with a
 * state of its own. A call passes when it passes in its own window and in all longer ones: in those up to the largest limit
 * that a plan with that window has, or up to what the call's own plan admits in that window if that is more. Limits of plans
 * that were not named count too: a state knows when units were taken, and not by which plan.
 *
 * Example: 1,000 in 30 days, and a plan of 10 a day. Who has used 1,000 may use 10 a day when the first of the 1,000 are 30
 * days ago, and has 0 of 1,000 left when the plan changes back.
 *
 * Buckets need none of this: time fills them by what their state says, whatever plan was named.
 */
import { MAX_UNITS } from "../algorithms/algorithm.ts";
import { COUNTING, type CountedWindow, severalWindows } from "../algorithms/windows/several-windows.ts";
import { clip, type Violation, wrong } from "../violations.ts";
import { isTable, type Table } from "./changed-tables.ts";
import { durationText } from "./other-words.ts";
import type { Policy, Rule } from "./policy.ts";

/** The loosest rule with a window. */
interface Window {
  readonly rule: Rule;
  readonly windowMs: number;
  readonly limit: number;
}

/** Makes the rules of plans count in the windows of all of them. @param maxInCall the most that a call may bring */
export function inAllWindows(policies: readonly Policy[], maxInCall = 0): (policy: Policy) => Policy {
  const windows = windowsOf(policies, maxInCall);
  return (policy) => {
    const rules = policy.rules.map((rule, index) => {
      const made = counting(rule, windows[index] ?? [], policy.pool !== undefined);
      return "allowed" in made ? rule : made;
    });
    const isSame = rules.every((rule, index) => rule === policy.rules[index]);
    return isSame ? policy : { ...policy, rules: rules as unknown as Policy["rules"] };
  };
}

/**
 * The windows of plans that cannot be counted beside longer ones. Only policies that are written are refused for it: under
 * those that are stored, and have been in force, what a longer window held is forgotten. @param table as it was written
 */
export function planWindowProblems({ plans, pool }: Policy, table: Table): readonly Violation[] {
  const named = [...(plans ?? [])];
  const policies = named.map(([, policy]) => policy);
  const windows = windowsOf(policies, policies[0]?.limitInCall?.max);
  return named.flatMap(([plan, { name, rules }]) =>
    rules.flatMap((rule, index) => {
      const made = counting(rule, windows[index] ?? [], pool !== undefined);
      if (!("allowed" in made)) return [];
      const path = rules.length === 1 && rule.name === name ? ["window"] : ["rules", rule.name, "window"];
      const problem = wrong(path, writtenAt(path, table, plan), made.allowed);
      return [plan === "" ? problem : inPlan(plan, problem)];
    }),
  );
}

/** A plan's value, or the policy's. */
function writtenAt(path: readonly string[], table: Table, plan: string): unknown {
  const read = (from: readonly string[]) =>
    from.reduce<unknown>((value, field) => (isTable(value) ? value[field] : undefined), table);
  return read(["plans", plan, ...path]) ?? read(path);
}

/** A problem of a plan's table. */
export function inPlan(plan: string, { path, detail }: Violation): Violation {
  return { path: ["plans", plan, ...path], detail: `plans.${clip(plan)}: ${detail}` };
}

/** By rule, the windows of all plans, the longest first. */
function windowsOf(policies: readonly Policy[], maxInCall = 0): readonly (readonly Window[])[] {
  return (policies[0]?.rules ?? []).map((_, index) => {
    const loosest = new Map<number, Window>();
    for (const { rules } of policies) {
      const rule = rules[index];
      const { units, windowMs } = rule?.quota ?? { units: 0 };
      if (rule === undefined || windowMs === undefined) continue;
      const limit = Math.max(units, maxInCall);
      if (limit > (loosest.get(windowMs)?.limit ?? -1)) loosest.set(windowMs, { rule, windowMs, limit });
    }
    return [...loosest.values()].toSorted((one, other) => other.windowMs - one.windowMs);
  });
}

/** The largest number of units that fits. @param fit that does, as do all fewer @param tooMany that does not */
export function largestThat(fits: (units: number) => boolean, fit: number, tooMany: number): number {
  let [largest, above] = [fit, tooMany];
  while (largest + 1 < above) {
    const middle = Math.floor((largest + above) / 2);
    if (fits(middle)) largest = middle;
    else above = middle;
  }
  return largest;
}

/** The limit that could be counted instead, and its bound. @param times how often it may be admitted in the window */
function lowerLimit({ algorithm, config }: Rule, times: number): string {
  const counted = largestThat((units) => algorithm.canCount?.(config, units) === true, 0, MAX_UNITS + 1);
  const most = Math.floor(counted / times);
  const lower = most < 1 ? "" : `, or the limit at most ${most}`;
  return `longer${lower}: algorithm "${algorithm.name}" counts at most ${counted} units, here also in`;
}

/** @returns what must be so instead, if it cannot be counted beside a longer window */
function counting(
  rule: Rule,
  windows: readonly Window[],
  isPooled: boolean,
): Rule | { readonly allowed: string } {
  const { algorithm, config, quota } = rule;
  const known = COUNTING[algorithm.name];
  if (windows.length < 2 || known === undefined || "own" in config) return rule;
  const ownMs = quota.windowMs ?? Infinity;
  const ofAll = `the longest window of the policy's plans, ${durationText(windows[0]?.windowMs ?? 0)}`;
  if (algorithm.isFair === true || algorithm.hasPenalty === true || isPooled)
    return ownMs === windows[0]?.windowMs ? rule : { allowed: `${ofAll}, with fair, blockFor or a pool` };
  const counted: CountedWindow[] = [];
  for (const { rule: loosest, windowMs, limit: largest } of windows) {
    const other = loosest.config as never;
    const most = windowMs > ownMs ? known.mostIn(config as never, other) : 0;
    const limit = Math.max(largest, most);
    if (windowMs > ownMs && algorithm.canCount?.(loosest.config, limit) !== true)
      return { allowed: `${lowerLimit(loosest, limit / quota.units)} ${ofAll}` };
    const longer = () => known.countedIn(config as never, other, limit);
    counted.push({ windowMs, config: windowMs > ownMs ? longer() : windowMs === ownMs ? config : other });
  }
  const own = counted.findIndex(({ windowMs }) => windowMs === ownMs);
  const made = severalWindows(algorithm) as unknown as Rule["algorithm"];
  return { ...rule, algorithm: made, config: { ...config, windows: counted, own } };
}
