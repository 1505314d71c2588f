/** What groups hold is said from one list of holds to the next, and is always what a fresh count of the list says. */
import { expect, test } from "vitest";
import { type Hold, heldByGroup, withHold, withoutHold } from "../../../core/accounts/hold.ts";
import { depth } from "../../support/depth.ts";
import { announcedSeed, seededRandom, whole } from "../../support/random.ts";

function counted(holds: readonly Hold[]): Record<string, number> {
  const sums: Record<string, number> = {};
  for (const { group, units } of holds) if (group !== undefined) sums[group] = (sums[group] ?? 0) + units;
  return sums;
}

test("after any holds that come and go, each group holds what its holds have, and no list changes", () => {
  const random = seededRandom(announcedSeed("held by group"));
  for (let history = 0; history < depth(20, 200); history += 1) {
    const groups = [1, 3, 200][history % 3] ?? 1;
    let holds: readonly Hold[] = [];
    const kept: { readonly holds: readonly Hold[]; readonly held: ReturnType<typeof heldByGroup> }[] = [];
    for (let step = 0; step < 300; step += 1) {
      const gone = holds[whole(random, 2 * holds.length + 1)];
      const group = random() < 0.1 ? undefined : `g${whole(random, groups)}`;
      const more = { id: `${step}`, units: 1 + whole(random, 3), expiresAtMs: whole(random, 1_000) };
      holds =
        gone !== undefined && random() < 0.5
          ? withoutHold(holds, gone.id)
          : withHold(holds, { ...more, ...(group !== undefined && { group }) });
      const held = heldByGroup(holds);
      expect(Object.fromEntries(held)).toEqual(counted(holds));
      expect(held.size).toBe(Object.keys(counted(holds)).length);
      expect(held.get("g0")).toBe(counted(holds)["g0"]);
      if (step % 50 === 0) kept.push({ holds, held });
    }
    for (const each of kept) expect(Object.fromEntries(each.held)).toEqual(counted(each.holds));
  }
});
