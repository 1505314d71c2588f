import type { HeldPolicy } from "../../core/policies/held-policy.ts";
import type { BatchedCall } from "../../core/protocol/batches.ts";
import type { Returned } from "../../core/protocol/messages.ts";
import { objectName } from "../../core/protocol/object-names.ts";

/** A reservation that has ended. The object of its key has to be told. */
export interface Ending {
  readonly policy: HeldPolicy;
  readonly returned: Returned;
}

/** Gives back ended reservations, with one message for each object. If it is lost, the units count as used. */
export async function giveBack(
  objects: { call(policy: HeldPolicy, key: string, call: BatchedCall): Promise<unknown> },
  endings: readonly Ending[],
): Promise<void> {
  await Promise.all(
    byObject(endings).map(async (each) => {
      const [first] = each;
      if (first === undefined) return;
      const { policy, returned } = first;
      const all = each.map((ending) => ending.returned);
      await objects.call(policy, returned.key, { giveBack: { policy: policy.name, returned: all } });
    }),
  );
}

/** Those that so many messages can give back, and the others. */
export function split(
  endings: readonly Ending[],
  mostMessages: number,
): { readonly first: readonly Ending[]; readonly rest: readonly Ending[] } {
  const groups = byObject(endings);
  return { first: groups.slice(0, mostMessages).flat(), rest: groups.slice(mostMessages).flat() };
}

function byObject(endings: readonly Ending[]): readonly (readonly Ending[])[] {
  // Node 20 has no Map.groupBy.
  const groups = new Map<string, Ending[]>();
  for (const ending of endings) {
    const name = objectName(ending.policy, ending.returned.key);
    const group = groups.get(name);
    if (group === undefined) groups.set(name, [ending]);
    else group.push(ending);
  }
  return [...groups.values()];
}
