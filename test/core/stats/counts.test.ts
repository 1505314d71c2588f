import * as fc from "fast-check";
import { expect, test } from "vitest";
import {
  merged,
  MAX_POLICIES,
  OTHER_POLICIES,
  PolicyNames,
  type Counts,
} from "../../../core/stats/counts.ts";

const counts = fc.dictionary(
  fc.constantFrom("decisions api admitted ok isolate", "rows_read", "a", "b"),
  fc.nat(1_000),
) as fc.Arbitrary<Counts>;

test("merging does not ask for an order, nor what is merged first", () => {
  fc.assert(
    fc.property(counts, counts, counts, (a, b, c) => {
      expect(merged(a, b)).toEqual(merged(b, a));
      expect(merged(merged(a, b), c)).toEqual(merged(a, merged(b, c)));
      expect(merged(a, {})).toEqual(a);
    }),
  );
});

test("merging changes neither side", () => {
  const [one, other] = [{ a: 1 }, { a: 2, b: 3 }];
  expect(merged(one, other)).toEqual({ a: 3, b: 3 });
  expect([one, other]).toEqual([{ a: 1 }, { a: 2, b: 3 }]);
});

test("the first thousand policies have a name of their own, and keep it", () => {
  const names = new PolicyNames();
  for (let policy = 0; policy < MAX_POLICIES; policy += 1) expect(names.of(`p${policy}`)).toBe(`p${policy}`);
  expect(names.of("late")).toBe(OTHER_POLICIES);
  expect(names.of("p0")).toBe("p0");
  expect(names.of(OTHER_POLICIES)).toBe(OTHER_POLICIES);
  expect(names.all.size).toBe(MAX_POLICIES);
});
