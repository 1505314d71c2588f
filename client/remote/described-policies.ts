/** Policies as the limiter describes them to its clients, and as calls here see them. */
import type { PolicyView, RuleView } from "../../core/policies/policy.ts";
import { ofGroup } from "../../core/policies/seen-policy.ts";
import type {
  DescribedPolicy,
  PolicyDescription,
  RuleDescription,
} from "../../core/protocol/reservation-messages.ts";
import type { PlainCall } from "../local-limiter.ts";

/**
 * From this round trip on a process asks for a bucket, however few the holders are. Nearer ones use more of a limit with
 * units (99 % with eight processes; with buckets 94 to 98 %, as some end with their processes), and farther ones less.
 */
const FAR_MS = 75;

/** The policy as a call's plan and group see it; `undefined`: it is not known, or the limiter says what is wrong with them. */
export function seenBy(
  known: DescribedPolicy | undefined,
  { plan, group }: PlainCall,
): DescribedPolicy | undefined {
  const policy = ofPlan(known, plan);
  if (policy?.isFair !== (group === undefined ? undefined : true)) return undefined;
  return ofItsGroup(policy, group);
}

/** The policy as calls of a plan see it; `undefined`: it does not have the plan, or is not known. */
function ofPlan(policy: DescribedPolicy | undefined, plan: string): DescribedPolicy | undefined {
  return policy?.plans === undefined && plan === "" ? policy : policy?.plans?.get(plan);
}

/** Whether the policy has the units and the priority of a call. */
export function isOf({ rules, priorityNames }: DescribedPolicy, { cost, priority }: PlainCall): boolean {
  if (priority !== undefined && !priorityNames.includes(priority)) return false;
  return (
    typeof cost === "number" || Object.keys(cost).every((unit) => rules.some((rule) => rule.unit === unit))
  );
}

export function describedPolicy(
  name: string,
  description: PolicyDescription,
  farMs = FAR_MS,
): DescribedPolicy {
  const { plans, ...usual } = description;
  const policy = describedRules(name, usual, farMs);
  if (plans === undefined) return policy;
  const each = [["", usual] as const, ...Object.entries(plans)].map(([plan, rules]) => {
    const { seen: _, ...others } = usual;
    return [plan, describedRules(name, { ...others, ...rules }, farMs, plan)] as const;
  });
  return { ...policy, plans: new Map(each) };
}

function describedRules(
  name: string,
  description: PolicyDescription,
  farMs: number,
  plan?: string,
): DescribedPolicy {
  const {
    isPooled,
    priorities: priorityNames,
    defaultPriority: usual,
    seen,
    rules,
    plans: _,
    localDecisions,
    ofGroups,
    ...policy
  } = description;
  const views = new Map<string, PolicyView>();
  const view = {
    ...(plan !== undefined && { plan }),
    farMs,
    ...policy,
    localDecisions: ofGroups ?? localDecisions,
    ...(ofGroups && { isFair: true }),
    name,
    priorityNames,
    rules: rules.map((rule) => viewedRule(rule, rule.capacity)),
    priorities: { usual, seen: views },
    ...(isPooled && { pool: { kind: "redis" as const } }),
  };
  for (const [priority, capacities] of Object.entries(seen ?? {})) {
    const viewed = rules.map((rule, index) => viewedRule(rule, capacities[index] ?? rule.capacity));
    views.set(priority, { ...view, rules: viewed, priority });
  }
  return view;
}

/** Linear interpolation, never too short for rates that refill evenly, or all at once. */
function viewedRule({ wholeMs: { one, all }, ...rule }: RuleDescription, capacity: number) {
  const { name, unit, capacity: max, isCuttable } = rule;
  const eachMs = max > 1 ? (all - one) / (max - 1) : 0;
  const refillMs = (_: object, missing: number) => Math.ceil(one + (missing - 1) * eachMs);
  // Only the limiter cuts it.
  const lessRate = (config: object) => (isCuttable ? config : undefined);
  return { name, unit, capacity, config: {}, algorithm: { refillMs, lessRate } } satisfies RuleView;
}

/** The policy as holders of a call's group see it, if groups share it. */
export function ofItsGroup(policy: DescribedPolicy | undefined, group: unknown): DescribedPolicy | undefined {
  return policy?.isFair === true && typeof group === "string" ? ofGroup(policy, { group }) : policy;
}
