/** A policy as a call sees it: by its plan, with limits of its own as a part of the text (plans.ts reads plans), and its group. */
import type { GroupOfCall, Policy, PolicyView } from "./policy.ts";

/** A call's limits follow the plan in its text. No name of a plan has a brace. */
const LIMITS = "{";

/** The plan in the text, without a call's own limits. "": the policy's own figures. */
function planName(plan: string): string {
  const end = plan.indexOf(LIMITS);
  return end < 0 ? plan : plan.slice(0, end);
}

/** The name of a policy's plan as a field of an answer; none for the policy's own figures. */
export function planIn({ plan = "" }: { readonly plan?: string | undefined }): { readonly plan?: string } {
  const name = planName(plan);
  return name === "" ? {} : { plan: name };
}

/** A plan with limits of a call. */
export function withCallLimits(plan: string, limits: Readonly<Record<string, number>> | undefined): string {
  const sorted = Object.entries(limits ?? {}).toSorted(([one], [other]) => (one < other ? -1 : 1));
  if (sorted.length === 0) return plan;
  return `${plan}${JSON.stringify(Object.fromEntries(sorted))}`;
}

/** The policy as calls of a plan see it; itself: it does not have the plan, or the call names none. */
export function planOf(policy: Policy, plan: string | undefined): Policy {
  return (plan === undefined ? undefined : namedPlan(policy, plan)) ?? policy;
}

/** The same; `undefined`: the policy does not have the plan, or a rule of it cannot have such a limit. */
export function namedPlan({ plans }: Policy, plan: string): Policy | undefined {
  const own = plans?.get(planName(plan));
  const from = plan.indexOf(LIMITS);
  if (own === undefined || from < 0) return own;
  return own.limitInCall?.withLimits(JSON.parse(plan.slice(from)) as Record<string, number>);
}

const MAX_VIEWS = 1_000;
const views = new WeakMap<PolicyView, Map<string, PolicyView>>();

/** The policy as calls of a group (core/algorithms/fair/fair.ts) see it. One that is kept is the same for all of their calls. */
export function ofGroup<View extends PolicyView>(policy: View, group: GroupOfCall): View {
  const known = views.get(policy) ?? new Map<string, PolicyView>();
  views.set(policy, known);
  const id = `${group.namedBy} ${group.group}`;
  const seen = known.get(id);
  if (seen !== undefined) return seen as View;
  const of = <Seen extends PolicyView>(seenBefore: Seen) => ({ ...seenBefore, group, groupOf: seenBefore });
  const byPriority = [...policy.priorities.seen].map(([name, each]) => [name, of(each)] as const);
  const made = { ...of(policy), priorities: { ...policy.priorities, seen: new Map(byPriority) } };
  for (const oldest of known.keys()) {
    if (known.size < MAX_VIEWS) break;
    known.delete(oldest);
  }
  known.set(id, made);
  return made;
}
