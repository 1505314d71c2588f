/** Laws of a key whose calls name plans: the object, with each algorithm. */
import { describe, expect, test } from "vitest";
import { planOf } from "../../../core/policies/named-plans.ts";
import { HIGH, Key, LOW, TABLES, window } from "../../support/planned-keys.ts";
import { announcedSeed, seededRandom, whole } from "../../support/random.ts";

describe.each(Object.entries(TABLES))("%s", (_, table) => {
  test("from plan to plan nothing is forgotten, and nothing is minted", () => {
    const random = seededRandom(announcedSeed("plans"));
    for (let round = 0; round < 200; round += 1) {
      const key = new Key(table);
      const before = 1 + whole(random, HIGH);
      for (let unit = 0; unit < before; unit += 1) key.takes("pro", 1);
      const left = key.remaining("pro");
      for (let step = 1 + whole(random, 6); step > 0; step -= 1) {
        const plan = random() < 0.5 ? "pro" : "";
        expect(key.remaining(plan)).toBeLessThanOrEqual(
          plan === "pro" ? left : Math.max(0, LOW - (HIGH - left)),
        );
        if (random() < 0.3) key.crash();
      }
      expect(key.remaining("pro")).toBe(left);
    }
  });

  test("in no window more is admitted than the loosest plan named in it allows", () => {
    const random = seededRandom(announcedSeed("plans in windows"));
    for (let round = 0; round < 60; round += 1) {
      const key = new Key(table);
      const admitted: { readonly atMs: number; readonly plan: string }[] = [];
      const named: { readonly atMs: number; readonly plan: string }[] = [];
      for (let step = 0; step < 120; step += 1) {
        key.nowMs += whole(random, 3_000);
        const plan = random() < 0.2 ? "pro" : "";
        named.push({ atMs: key.nowMs, plan });
        if (key.takes(plan, 1)) admitted.push({ atMs: key.nowMs, plan });
        if (random() < 0.05) key.crash();
      }
      for (const { atMs } of admitted) {
        const within = ({ atMs: otherMs }: { readonly atMs: number }) =>
          otherMs >= atMs && otherMs < atMs + window;
        const isPro = named.some((call) => within(call) && call.plan === "pro");
        const count = admitted.filter(within).length;
        // What refills, or begins anew, in a window comes on top of what there was.
        if (!isPro) expect(count).toBeLessThanOrEqual(2 * LOW);
        expect(count).toBeLessThanOrEqual(4 * HIGH);
      }
    }
  });

  test("a call that names no plan changes none, and a peek says which the key has", () => {
    const key = new Key(table);
    const limitOf = (plan: string) => planOf(key.policy, plan).rules[0].capacity;
    key.takes("pro", 3);
    const left = key.remaining("pro");
    expect(key.peek()).toMatchObject({ plan: "pro", rules: [{ limit: limitOf("pro"), remaining: left }] });
    key.crash();
    expect(key.peek()).toMatchObject({ plan: "pro", rules: [{ limit: limitOf("pro"), remaining: left }] });
    key.takes("", 1);
    expect(key.peek()).toMatchObject({ rules: [{ limit: limitOf("") }] });
    expect(key.peek().plan).toBeUndefined();
  });
});
