import type { Policy } from "../../core/policies/policy.ts";
import type { Returned } from "../../core/protocol/messages.ts";
import { objectName } from "../../core/protocol/object-names.ts";
import type { Objects } from "./objects.ts";

/** A reservation that has ended. The object of its key has to be told. */
export interface Ending {
  readonly policy: Policy;
  readonly returned: Returned;
}

/** Gives back ended reservations, with one message for each object. If it is lost, the units count as used. */
export async function giveBack(objects: Objects, endings: readonly Ending[]): Promise<void> {
  const byObject = Map.groupBy(endings, ({ policy, returned }) => objectName(policy, returned.key));
  await Promise.all(
    [...byObject.values()].map(async (each) => {
      const [first] = each;
      if (first === undefined) return;
      const { policy, returned } = first;
      const all = each.map((ending) => ending.returned);
      await objects.call<null>(policy, returned.key, { giveBack: { policy: policy.name, returned: all } });
    }),
  );
}
