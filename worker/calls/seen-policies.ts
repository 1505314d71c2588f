import { limitedRules } from "../../core/policies/plans.ts";
import type { Policy } from "../../core/policies/policy.ts";
/** The policy as a call sees it: its plan, limits that the call brings, and its group. */
import { namedPlan, ofGroup, withCallLimits } from "../../core/policies/seen-policy.ts";
import { hash } from "../../core/protocol/names.ts";
import type { Problem } from "../../core/protocol/problems.ts";
import { clip, oneOfNames, wrong } from "../../core/violations.ts";
import type { Principal } from "../auth/tokens.ts";
import { GROUP_ALLOWED as GROUP_BYTES } from "./schemas/request-schemas.ts";
import { badValue, notAllowed } from "./validate.ts";

/** How a request names a key, and what counts for it. */
export interface TargetFields {
  readonly policy: string;
  readonly key: string;
  /** "": the policy's own figures. Absent: those that the key has. */
  readonly plan?: string | undefined;
  /** As the caller wrote them: a table of anything. */
  readonly limits?: Readonly<Record<string, number>> | undefined;
  readonly group?: string | undefined;
}

/** The policy as the plan of a call sees it. A key with an override keeps that, whatever limits the call brings. */
export function withPlan(
  policy: Policy,
  { plan, limits }: TargetFields,
  below: readonly string[],
): Policy | Problem {
  if (policy.plans === undefined) {
    if (limits !== undefined) return badValue([...below, "limits"], limits, NO_LIMITS);
    return plan === undefined || plan === "" ? policy : badValue([...below, "plan"], plan, NO_PLANS);
  }
  if (plan === undefined) return policy;
  const own = policy.plans.get(plan);
  if (own === undefined) {
    const names = [...policy.plans.keys()].filter((name) => name !== "");
    return badValue([...below, "plan"], plan, names.length === 0 ? NO_PLANS : oneOfNames(plan, names));
  }
  return limits === undefined ? own : withLimits(policy, own, limits, [...below, "limits"]);
}

/** The policy as the group of a call sees it. */
export function withGroup(
  policy: Policy,
  { id }: Pick<Principal, "id">,
  { plan, group }: TargetFields,
  below: readonly string[],
  isDecided: boolean,
): Policy | Problem {
  if (policy.isFair !== true)
    return group === undefined ? policy : badValue([...below, "group"], group, NO_GROUPS);
  if (group !== undefined) return ofGroup(policy, { group, namedBy: hash(id).toString(36) });
  // Calls without a plan only give back what others took.
  return !isDecided || plan === undefined ? policy : badValue([...below, "group"], group, GROUP_ALLOWED);
}

const NO_GROUPS = "left out: this policy has no fair = true";
const GROUP_ALLOWED = `${GROUP_BYTES}: whose call it is, since groups share this policy's limit (fair = true)`;
const NO_PLANS = "left out: this policy has no plans";
const NO_LIMITS = "left out: this policy has no limitInCall";

function withLimits(
  policy: Policy,
  own: Policy,
  limits: Readonly<Record<string, number>>,
  path: readonly string[],
): Policy | Problem {
  const { limitInCall, rules, override, plan = "" } = own;
  if (limitInCall === undefined) return badValue(path, limits, NO_LIMITS);
  const { max, whyNot } = limitInCall;
  const units = unitsOf(limitedRules(rules));
  const allowed = `an integer from 0 to ${max}, the policy's limitInCall.max`;
  const given = Object.entries(limits);
  const problems = given.flatMap(([unit, limit]) => {
    const place = [...path, unit];
    if (!units.includes(unit)) return [{ path: place, detail: unknownUnit(unit, units) }];
    return Number.isInteger(limit) && limit >= 0 && limit <= max ? [] : [wrong(place, limit, allowed)];
  });
  if (problems.length > 0) return notAllowed(problems);
  if (override !== undefined) return own;
  const limited = namedPlan(policy, withCallLimits(plan, limits));
  if (limited !== undefined) return limited;
  // The algorithm counts `max`, but another field of the rule may need a larger limit, as `carry` does.
  const unfit = given.flatMap(([unit, limit]) => {
    const why = whyNot({ [unit]: limit });
    return why === ""
      ? []
      : [wrong([...path, unit], limit, `a limit that the policy's rule can have (${why})`)];
  });
  return unfit.length > 0 ? notAllowed(unfit) : badValue(path, limits, `other limits (${whyNot(limits)})`);
}

/** A unit that no rule counts, or of which no rule has a limit. */
export function unknownUnit(unit: string, units: readonly string[]): string {
  return `${clip(unit)} is not a unit of this policy: there are ${units.join(", ")}`;
}

export function unitsOf(rules: readonly { readonly unit: string }[]): readonly string[] {
  return [...new Set(rules.map(({ unit }) => unit))];
}
