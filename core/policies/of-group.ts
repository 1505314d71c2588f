/** A policy as calls of a group see it: core/algorithms/fair/fair.ts says what a group is. */
import type { GroupOfCall, PolicyView } from "./policy.ts";

const MAX_VIEWS = 1_000;
const views = new WeakMap<PolicyView, Map<string, PolicyView>>();

/** The policy as calls of a group see it. One that is kept is the same for all of their calls. */
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
