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
  // Node 20 has no Map.groupBy.
  const byObject = new Map<string, Ending[]>();
  for (const ending of endings) {
    const name = objectName(ending.policy, ending.returned.key);
    byObject.set(name, [...(byObject.get(name) ?? []), ending]);
  }
  await Promise.all(
    [...byObject.values()].map(async (each) => {
      const [first] = each;
      if (first === undefined) return;
      const { policy, returned } = first;
      const all = each.map((ending) => ending.returned);
      await objects.call(policy, returned.key, { giveBack: { policy: policy.name, returned: all } });
    }),
  );
}
